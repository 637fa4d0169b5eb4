//! Workloads that are selected by their labels, found by one of them.

use std::sync::Arc;

use pilot_base::{Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{Selectable, WorkloadId, WorkloadKey};
use pilot_model::{Config, ConfigId, ServiceEntry};

use super::inputs::Inputs;

#[derive(Clone, Copy)]
pub(super) struct Workloads {
    by_label: Table<WorkloadKey, SharedMap<WorkloadId, Arc<Selectable>>>,
}

/// A workload, and where somebody may look for it.
#[derive(PartialEq)]
struct Filed {
    workload: Arc<Selectable>,
    keys: Vec<WorkloadKey>,
}

impl Workloads {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        // What is asked for, by namespace: most have no selector, and nothing is filed there.
        let wanted = graph.tally("selectors by namespace", |feeds| {
            feeds.from(&inputs.service_entries, |id: &ConfigId, entry: &Config<ServiceEntry>, out| {
                if let Some(key) = key_of(entry) {
                    out.emit(id.namespace.clone(), key, ());
                }
            });
        });
        let entries = graph.map("workloads", &inputs.workload_entries, move |id, reader| {
            let wanted = reader.get(&wanted, &id.namespace)?;
            let options = reader.get(&inputs.options, &())?;
            let workload = Selectable::of_entry(reader.get(&inputs.workload_entries, id)?, &options.cluster)?;
            filed(workload, wanted)
        });
        let pods = graph.map("pod workloads", &inputs.pods, move |id, reader| {
            let wanted = reader.get(&wanted, &id.namespace)?;
            let options = reader.get(&inputs.options, &())?;
            let pod = reader.get(&inputs.pods, id)?;
            let node = reader.get(&inputs.nodes, &ConfigId::new(Name::empty(), pod.node.clone()));
            filed(Selectable::of_pod(id, pod, node, &options.cluster)?, wanted)
        });
        let by_label = graph.group("workloads by label", |feeds| {
            feeds.from(&entries, |id: &ConfigId, filed: &Filed, out| {
                for key in &filed.keys {
                    out.emit(key.clone(), WorkloadId::Entry(id.name.clone()), Arc::clone(&filed.workload));
                }
            });
            feeds.from(&pods, |id: &ConfigId, filed: &Filed, out| {
                for key in &filed.keys {
                    out.emit(key.clone(), WorkloadId::Pod(id.name.clone()), Arc::clone(&filed.workload));
                }
            });
        });
        Self { by_label }
    }

    /// What a ServiceEntry selects, in order.
    pub(super) fn selected_by(
        &self,
        reader: &Reader<'_>,
        entry: &Config<ServiceEntry>,
    ) -> Vec<Arc<Selectable>> {
        let (Some(key), Some(selector)) = (key_of(entry), &entry.spec.workload_selector) else {
            return Vec::new();
        };
        let found = reader.get(&self.by_label, &key).into_iter().flatten().map(|(_, workload)| workload);
        found.filter(|workload| workload.endpoint.is_selected_by(selector)).cloned().collect()
    }
}

fn key_of(entry: &Config<ServiceEntry>) -> Option<WorkloadKey> {
    entry.spec.workload_selector.as_ref().map(|selector| Selectable::key_of(&entry.id.namespace, selector))
}

fn filed(workload: Selectable, wanted: &SharedMap<WorkloadKey, ()>) -> Option<Filed> {
    let keys: Vec<WorkloadKey> = workload.keys().filter(|key| wanted.get(key).is_some()).collect();
    (!keys.is_empty()).then(|| Filed { workload: Arc::new(workload), keys })
}
