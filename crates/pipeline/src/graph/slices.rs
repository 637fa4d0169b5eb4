//! Endpoints of Kubernetes services: those of its slices, and those that stand in WorkloadEntries.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use pilot_base::{FastMap, Host, Name};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{Selectable, SliceSurroundings, kube_endpoints, outranks, workload_endpoints};
use pilot_model::{Address, ConfigId, Endpoint, EndpointSlice, Kind, Service};

use super::inputs::Inputs;
use super::namespaces;
use super::pods::Pods;
use super::registry::{HostKey, Origin, Shards};
use super::workloads::Workloads;

/// The endpoints of one slice, or of what stands in for one.
#[derive(PartialEq)]
pub(super) struct SlicePlan {
    pub(super) key: HostKey,
    pub(super) endpoints: Arc<[Endpoint]>,
}

/// Endpoints that do not count, because another slice of the service says them too.
pub(super) type Repeated = BTreeSet<(Origin, usize)>;

pub(super) fn slices(graph: &mut Graph, inputs: Inputs, pods: Pods) -> Table<ConfigId, SlicePlan> {
    graph.map("slice plans", &inputs.slices, move |id, reader| slice_plan(id, inputs, pods, reader))
}

/// The endpoints of Kubernetes services that stand in WorkloadEntries, each of its own cluster.
pub(super) fn outside(graph: &mut Graph, inputs: Inputs, workloads: Workloads) -> Table<ConfigId, SlicePlan> {
    graph.map("endpoints outside kubernetes", &inputs.services, move |id, reader| {
        let features = &reader.get(&inputs.options, &())?.features;
        let service = reader.get(&inputs.services, id).filter(|_| features.services_select_entries)?;
        let workloads = workloads.outside(reader, service, id);
        outside_plan(service, workloads).filter(|_| namespaces::is_discovered(reader, inputs, id))
    })
}

fn slice_plan(id: &ConfigId, inputs: Inputs, pods: Pods, reader: &Reader<'_>) -> Option<SlicePlan> {
    let slice: &EndpointSlice = reader.get(&inputs.slices, id)?;
    let options = reader.get(&inputs.options, &())?;
    let namespace = &id.namespace;
    if !namespaces::is_discovered(reader, inputs, id) {
        return None;
    }
    let cluster = namespaces::cluster_of(reader, inputs, id)?;
    let both_families = || {
        let service = reader.get(&inputs.services, &id.beside(namespace.clone(), slice.service.clone()));
        let own = service.and_then(|service| service.cluster_addresses.get(cluster));
        own.is_some_and(|addresses| addresses.len() > 1)
    };
    let around = SliceSurroundings {
        namespace,
        cluster,
        pod: &|name: &Name| reader.get(&inputs.pods, &id.beside(namespace.clone(), name.clone())),
        pod_at: &|ip: IpAddr| pods.at(reader, id, ip),
        node: &|name: &Name| reader.get(&inputs.nodes, &id.beside(Name::empty(), name.clone())),
        dual_stack: &|| options.features.dual_stack && both_families(),
    };
    let mut endpoints = kube_endpoints(slice, &around);
    let networks = namespaces::network_map(reader, inputs, id)?;
    endpoints.iter_mut().for_each(|endpoint| networks.settle(endpoint));
    let host = Host::new(&format!("{}.{namespace}.svc.{}", slice.service, options.domain));
    Some(SlicePlan { key: (namespace.clone(), host), endpoints: endpoints.into() })
}

fn outside_plan(service: &Service, workloads: Vec<&Arc<Selectable>>) -> Option<SlicePlan> {
    let endpoints: Vec<Endpoint> =
        workloads.into_iter().flat_map(|workload| workload_endpoints(service, workload)).collect();
    let key = (service.namespace.clone(), service.host.clone());
    (!endpoints.is_empty()).then(|| SlicePlan { key, endpoints: endpoints.into() })
}

/// What several slices of a service say, as happens while endpoints move from one to another. It is a row of its own so
/// that it is found once for all who read the endpoints; most services have one slice, and no row here.
pub(super) fn repeated(graph: &mut Graph, endpoints: &Table<HostKey, Shards>) -> Table<HostKey, Repeated> {
    let endpoints = *endpoints;
    graph.map("repeated endpoints", &endpoints, move |key, reader| {
        let found = repeated_in(reader.get(&endpoints, key)?);
        (!found.is_empty()).then_some(found)
    })
}

fn repeated_in(shards: &Shards) -> Repeated {
    let mut out = Repeated::new();
    let of_slices = || shards.iter().filter(|((_, _, (kind, _)), _)| *kind == Kind::EndpointSlice);
    if of_slices().nth(1).is_none() {
        return out;
    }
    let mut seen: FastMap<(&Name, &Address, &Name), (&Origin, usize, &Endpoint)> = FastMap::default();
    for ((_, _, origin), endpoints) in of_slices() {
        for (at, endpoint) in endpoints.iter().enumerate() {
            let Endpoint { cluster, address, port_name, .. } = endpoint;
            let Some(known) = seen.get_mut(&(cluster, address, port_name)) else {
                seen.insert((cluster, address, port_name), (origin, at, endpoint));
                continue;
            };
            let mut worse = (origin, at, endpoint);
            if outranks(endpoint, known.2) {
                std::mem::swap(known, &mut worse);
            }
            out.insert((worse.0.clone(), worse.1));
        }
    }
    out
}
