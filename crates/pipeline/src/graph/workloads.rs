//! Workloads that are selected by their labels, found by one of them.

use std::sync::Arc;

use pilot_base::{Labels, Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{Selectable, WorkloadId, WorkloadKey};
use pilot_model::{Config, ConfigId, Resolution, Service, ServiceEntry};

use super::inputs::Inputs;
use super::namespaces;

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
        // Their endpoints tell Kubernetes services of pods, so these ask only for what is outside.
        let wanted_outside = graph.tally("selectors of services by namespace", |feeds| {
            feeds.from(&inputs.services, |id: &ConfigId, service: &Arc<Service>, out| {
                if let Some(selector) = outside_selector(service) {
                    out.emit(id.namespace.clone(), Selectable::key_of(&id.namespace, selector), ());
                }
            });
        });
        let entries = graph.map("workloads", &inputs.workload_entries, move |id, reader| {
            let wanted = [reader.get(&wanted, &id.namespace), reader.get(&wanted_outside, &id.namespace)];
            let cluster = namespaces::cluster_of(reader, inputs, id)?;
            let mut workload = Selectable::of_entry(reader.get(&inputs.workload_entries, id)?, cluster)?;
            // Those of other clusters come like services: it is for us to see whether they count, and where they are.
            if !id.cluster.is_empty() {
                if !namespaces::is_discovered(reader, inputs, id) {
                    return None;
                }
                namespaces::network_map(reader, inputs, id)?.settle(&mut workload.endpoint);
            }
            filed(workload, &wanted)
        });
        let pods = graph.map("pod workloads", &inputs.pods, move |id, reader| {
            let wanted = [reader.get(&wanted, &id.namespace)];
            let cluster = namespaces::cluster_of(reader, inputs, id)?;
            let counts = namespaces::is_discovered(reader, inputs, id);
            let features = &reader.get(&inputs.options, &())?.features;
            let pod = reader.get(&inputs.pods, id).filter(|_| counts && features.entries_select_pods)?;
            let node = reader.get(&inputs.nodes, &id.beside(Name::empty(), pod.node.clone()));
            let mut workload = Selectable::of_pod(id, pod, node, cluster)?;
            namespaces::network_map(reader, inputs, id)?.settle(&mut workload.endpoint);
            if !features.dual_stack {
                workload.endpoint.more_addresses.clear();
            }
            filed(workload, &wanted)
        });
        let by_label = graph.group("workloads by label", |feeds| {
            feeds.from(&entries, |id: &ConfigId, filed: &Filed, out| {
                for key in &filed.keys {
                    let entry = WorkloadId::Entry(id.name.clone(), id.cluster.clone());
                    out.emit(key.clone(), entry, Arc::clone(&filed.workload));
                }
            });
            feeds.from(&pods, |id: &ConfigId, filed: &Filed, out| {
                for key in &filed.keys {
                    let pod = WorkloadId::Pod(id.name.clone(), id.cluster.clone());
                    out.emit(key.clone(), pod, Arc::clone(&filed.workload));
                }
            });
        });
        Self { by_label }
    }

    /// What a Kubernetes service selects outside Kubernetes, in order: only in its own cluster.
    pub(super) fn outside<'a>(
        &self,
        reader: &Reader<'a>,
        service: &Service,
        of: &ConfigId,
    ) -> Vec<&'a Arc<Selectable>> {
        let Some(selector) = outside_selector(service) else { return Vec::new() };
        let key = Selectable::key_of(&service.namespace, selector);
        let found = reader.get(&self.by_label, &key).into_iter().flatten();
        let is_near = |id: &WorkloadId| matches!(id, WorkloadId::Entry(_, cluster) if *cluster == of.cluster);
        let outside = found.filter(|(id, _)| is_near(id)).map(|(_, workload)| workload);
        outside.filter(|workload| workload.endpoint.is_selected_by(selector)).collect()
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

/// What a Kubernetes service selects of what is outside Kubernetes.
fn outside_selector(service: &Service) -> Option<&Labels> {
    let selector = service.selector.as_ref()?;
    (service.resolution == Resolution::Static && !service.is_alias()).then_some(selector)
}

fn key_of(entry: &Config<ServiceEntry>) -> Option<WorkloadKey> {
    entry.spec.workload_selector.as_ref().map(|selector| Selectable::key_of(&entry.id.namespace, selector))
}

fn filed(workload: Selectable, wanted: &[Option<&SharedMap<WorkloadKey, ()>>]) -> Option<Filed> {
    let is_wanted = |key: &WorkloadKey| wanted.iter().flatten().any(|wanted| wanted.get(key).is_some());
    let keys: Vec<WorkloadKey> = workload.keys().filter(is_wanted).collect();
    (!keys.is_empty()).then(|| Filed { workload: Arc::new(workload), keys })
}
