//! What a workload serves: ports of services that select it, or that say its address.

use std::net::IpAddr;

use pilot_base::{Host, Name, SharedMap};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::EntryPlan;
use pilot_model::{Address, ConfigId, Endpoint, Pod, Proxy, Service, ServicePort};

use super::inputs::Inputs;
use super::namespaces;
use super::registry::HostKey;
use super::selecting::{Candidate, Selecting};
use super::slices::SlicePlan;

/// What an address serves: a port of a host, and where.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Served {
    /// Empty if it is the same in all of them.
    cluster: Name,
    pub(super) namespace: Name,
    pub(super) host: Host,
    pub(super) port_name: Name,
    pub(super) target_port: u16,
}

impl Served {
    pub(super) fn new(service: &Service, port: &ServicePort, target_port: u16) -> Self {
        Self {
            cluster: Name::empty(),
            namespace: service.namespace.clone(),
            host: service.host.clone(),
            port_name: port.name.clone(),
            target_port,
        }
    }

    /// Is it served in a cluster, as far as that is known?
    fn is_in(&self, cluster: &Name) -> bool {
        self.cluster.is_empty() || cluster.is_empty() || self.cluster == *cluster
    }

    /// The same, wherever it is.
    fn anywhere(&self) -> Self {
        Self { cluster: Name::empty(), ..self.clone() }
    }
}

/// Who says what an address serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum SaidBy {
    /// Kubernetes' endpoints.
    Slice,
    /// WorkloadEntries that Kubernetes services select.
    Outside,
    Entry,
}

#[derive(Clone, Copy)]
pub(super) struct Serving {
    inputs: Inputs,
    selecting: Selecting,
    by_address: Table<IpAddr, SharedMap<(SaidBy, Served), ()>>,
}

impl Serving {
    pub(super) fn declare(
        graph: &mut Graph,
        inputs: Inputs,
        [slices, outside]: [&Table<ConfigId, SlicePlan>; 2],
        entries: &Table<ConfigId, EntryPlan>,
    ) -> Self {
        // Only Kubernetes knows in which cluster an address is.
        let by_address = graph.tally("served by address", |feeds| {
            feeds.from(slices, |_, plan: &SlicePlan, out| {
                for (ip, served, cluster) in served(&plan.key, &plan.endpoints) {
                    let served = Served { cluster: cluster.clone(), ..served };
                    out.emit(ip, (SaidBy::Slice, served), ());
                }
            });
            feeds.from(outside, |_, plan: &SlicePlan, out| {
                served(&plan.key, &plan.endpoints)
                    .for_each(|(ip, served, _)| out.emit(ip, (SaidBy::Outside, served), ()));
            });
            feeds.from(entries, |id, plan: &EntryPlan, out| {
                for (host, endpoints) in &plan.endpoints {
                    let key = (id.namespace.clone(), host.clone());
                    served(&key, endpoints)
                        .for_each(|(ip, served, _)| out.emit(ip, (SaidBy::Entry, served), ()));
                }
            });
        });
        Self { inputs, selecting: Selecting::declare(graph, inputs), by_address }
    }

    /// All that is said to be served at an address, by whomever.
    pub(super) fn at<'a>(
        &self,
        reader: &Reader<'a>,
        ip: IpAddr,
    ) -> impl Iterator<Item = &'a (SaidBy, Served)> + use<'a> {
        reader.get(&self.by_address, &ip).into_iter().flatten().map(|(said, ())| said)
    }

    /// What a proxy's workload serves. That is what its own namespace says; the same port twice is one.
    pub(super) fn of(&self, reader: &Reader<'_>, proxy: &Proxy, pod: Option<&Pod>) -> Vec<Served> {
        let own = |served: &Served| proxy.namespace.is_empty() || served.namespace == proxy.namespace;
        let said = |by: SaidBy, ip: IpAddr| {
            let said = self.at(reader, ip).filter(move |(who, served)| *who == by && own(served));
            said.map(|(_, served)| served)
        };
        let of_entries = proxy.ips.iter().flat_map(|ip| said(SaidBy::Entry, *ip));
        let mut out: Vec<Served> = of_entries.map(Served::anywhere).collect();
        if let Some(ip) = proxy.ips.first() {
            let before = out.len();
            // A WorkloadEntry says all of who is there.
            out.extend(said(SaidBy::Outside, *ip).map(Served::anywhere));
            if out.len() == before {
                out.extend(self.of_kubernetes(reader, (proxy, pod), *ip));
            }
        }
        out.sort();
        out.dedup();
        out
    }

    /// Of Kubernetes, services that select the pod: those before any endpoint is there. A pod that none selects serves what
    /// somebody wrote down for its address. Without its pod a proxy is believed what it says itself.
    fn of_kubernetes(
        &self,
        reader: &Reader<'_>,
        (proxy, pod): (&Proxy, Option<&Pod>),
        ip: IpAddr,
    ) -> Vec<Served> {
        let namespace = &proxy.namespace;
        let Some(cluster) = namespaces::cluster_key(reader, self.inputs, &proxy.cluster) else {
            return Vec::new();
        };
        let here = ConfigId { cluster, ..ConfigId::new(namespace.clone(), Name::empty()) };
        if !namespaces::is_discovered(reader, self.inputs, &here) {
            return Vec::new();
        }
        let port = |name: &Name| pod.map_or(&proxy.pod_ports, |pod| &pod.ports).get(name).copied();
        let labels = pod.map_or(&proxy.labels, |pod| &pod.labels);
        let candidate = Candidate { cluster: here.cluster, namespace, labels, port: &port };
        self.selecting.served(reader, &candidate).unwrap_or_else(|| {
            let written = self.at(reader, ip).filter(|(who, _)| pod.is_some() && *who == SaidBy::Slice);
            let here = |served: &&Served| served.namespace == *namespace && served.is_in(&proxy.cluster);
            written.map(|(_, served)| served).filter(here).map(Served::anywhere).collect()
        })
    }
}

fn served<'a>(
    key: &'a HostKey,
    endpoints: &'a [Endpoint],
) -> impl Iterator<Item = (IpAddr, Served, &'a Name)> {
    endpoints.iter().filter_map(move |endpoint| match endpoint.address {
        Address::Ip(ip) => {
            let served = Served {
                cluster: Name::empty(),
                namespace: key.0.clone(),
                host: key.1.clone(),
                port_name: endpoint.port_name.clone(),
                target_port: endpoint.port,
            };
            Some((ip, served, &endpoint.cluster))
        }
        Address::Host(_) | Address::Pipe(_) => None,
    })
}
