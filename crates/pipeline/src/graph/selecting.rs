//! Kubernetes services by what they select: a proxy whose pod is not known yet tells its labels itself.

use std::sync::Arc;

use pilot_base::{Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_model::{ConfigId, Protocol, Proxy, Service, ServicePort, WorkloadPort};

use super::registry::Served;

/// A namespace, and one label.
type Key = (Name, Name, Name);

#[derive(Clone, Copy)]
pub(super) struct Selecting {
    /// Each service stands under the first label that it asks for.
    by_label: Table<Key, SharedMap<ConfigId, Arc<Service>>>,
}

impl Selecting {
    pub(super) fn declare(graph: &mut Graph, services: &Table<ConfigId, Arc<Service>>) -> Self {
        let by_label = graph.group("services by selector", |feeds| {
            feeds.from(services, |id: &ConfigId, service: &Arc<Service>, out| {
                let first = service.selector.as_ref().and_then(|selector| selector.iter().next());
                if let Some((label, value)) = first {
                    let key = (service.namespace.clone(), label.clone(), value.clone());
                    out.emit(key, id.clone(), Arc::clone(service));
                }
            });
        });
        Self { by_label }
    }

    /// What a proxy serves, by the labels that it tells, in the cluster that it is in.
    pub(super) fn served(&self, reader: &Reader<'_>, proxy: &Proxy) -> Vec<Served> {
        let candidates = proxy.labels.iter().filter_map(|(label, value)| {
            reader.get(&self.by_label, &(proxy.namespace.clone(), label.clone(), value.clone()))
        });
        let selects = |service: &Service| {
            service.selector.as_ref().is_some_and(|selector| selector.subset_of(&proxy.labels))
                && (proxy.cluster.is_empty() || service.cluster_addresses.contains_key(&proxy.cluster))
        };
        let services = candidates.flatten().map(|(_, service)| service).filter(|service| selects(service));
        services.flat_map(|service| ports(service)).collect()
    }
}

/// Where a service is served. A port that only the pod knows by its name has to wait for the pod.
fn ports(service: &Service) -> impl Iterator<Item = Served> {
    let ports = service.ports.iter().filter(|port| port.protocol != Protocol::Udp);
    ports.filter_map(move |port: &ServicePort| match service.workload_ports.get(&port.name)? {
        WorkloadPort::Number(number) => Some(Served::new(service, port, *number)),
        WorkloadPort::Named(_) => None,
    })
}
