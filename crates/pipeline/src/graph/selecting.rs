//! Kubernetes services by what they select: who serves them is known from a workload's labels alone.

use std::sync::Arc;

use pilot_base::{Labels, Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_model::{ConfigId, Protocol, Service, ServicePort, WorkloadPort};

use super::inputs::Inputs;
use super::serving::Served;

/// A cluster, a namespace, and one label.
type Key = (Name, Name, (Name, Name));

#[derive(Clone, Copy)]
pub(super) struct Selecting {
    /// Each service stands under the first label that it asks for.
    by_label: Table<Key, SharedMap<ConfigId, Arc<Service>>>,
}

/// Somebody whom services may select.
pub(super) struct Candidate<'a> {
    /// As in the names of objects.
    pub(super) cluster: Name,
    pub(super) namespace: &'a Name,
    pub(super) labels: &'a Labels,
    /// Where it listens for what it calls by name.
    pub(super) port: &'a dyn Fn(&Name) -> Option<u16>,
}

impl Selecting {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs) -> Self {
        let by_label = graph.group("services by selector", |feeds| {
            feeds.from(&inputs.services, |id: &ConfigId, service: &Arc<Service>, out| {
                let first = service.selector.as_ref().and_then(|selector| selector.iter().next());
                if let Some((label, value)) = first {
                    let label = (label.clone(), value.clone());
                    let key = (id.cluster.clone(), service.namespace.clone(), label);
                    out.emit(key, id.clone(), Arc::clone(service));
                }
            });
        });
        Self { by_label }
    }

    /// What somebody serves; nothing if no service selects it, which is not the same as serving no port of one.
    pub(super) fn served(&self, reader: &Reader<'_>, candidate: &Candidate<'_>) -> Option<Vec<Served>> {
        let Candidate { cluster, namespace, labels, port } = candidate;
        let filed = labels.iter().filter_map(|(label, value)| {
            let label = (label.clone(), value.clone());
            reader.get(&self.by_label, &(cluster.clone(), (*namespace).clone(), label))
        });
        let selects = |service: &&Arc<Service>| {
            service.selector.as_ref().is_some_and(|selector| selector.subset_of(labels))
        };
        let mut services = filed.flatten().map(|(_, service)| service).filter(selects).peekable();
        services.peek()?;
        Some(services.flat_map(|service| ports(service, port)).collect())
    }
}

/// Where a service is served. Of ports that lead to the same place and speak the same the first stands for all.
fn ports(service: &Service, port_of: &dyn Fn(&Name) -> Option<u16>) -> Vec<Served> {
    let mut taken = Vec::new();
    let mut out = Vec::new();
    for port in service.ports.iter().filter(|port| port.protocol != Protocol::Udp) {
        let Some(target) = target(service, port, port_of) else { continue };
        if !taken.contains(&(target, port.protocol)) {
            taken.push((target, port.protocol));
            out.push(Served::new(service, port, target));
        }
    }
    out
}

fn target(service: &Service, port: &ServicePort, port_of: &dyn Fn(&Name) -> Option<u16>) -> Option<u16> {
    match service.workload_ports.get(&port.name)? {
        WorkloadPort::Number(number) => Some(*number),
        WorkloadPort::Named(name) => port_of(name),
    }
}
