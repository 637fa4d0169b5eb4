//! Whom an object concerns, and since when it says what it says: for people and programs that wait for a change.

mod same;

use std::collections::BTreeSet;

use pilot_incr::Reach;
use pilot_model::{Kind, Object, ObjectKey, ProxyId};

use crate::Pipeline;

/// So many rows are followed from one object, which takes the engine some milliseconds. What shapes more than that shapes
/// nearly everything.
const MOST_ROWS: usize = 20_000;

/// Whom an object concerns.
pub struct Concerned {
    pub proxies: Vec<ProxyId>,
    /// Were they found? Otherwise the object shapes too much to be followed to the end, and these are all proxies.
    pub is_whole: bool,
    /// So many rows were followed.
    pub followed: usize,
}

/// Does something with the input table of a kind.
macro_rules! in_table {
    ($inputs:expr, $kind:expr, |$table:ident| $what:expr) => {{
        macro_rules! of {
            ($field:ident) => {{
                let $table = &$inputs.$field;
                $what
            }};
        }
        match $kind {
            Kind::VirtualService => of!(virtual_services),
            Kind::DestinationRule => of!(destination_rules),
            Kind::ServiceEntry => of!(service_entries),
            Kind::WorkloadEntry => of!(workload_entries),
            Kind::Sidecar => of!(sidecars),
            Kind::Gateway => of!(gateways),
            Kind::WorkloadGroup => of!(workload_groups),
            Kind::EnvoyFilter => of!(envoy_filters),
            Kind::ProxyConfig => of!(proxy_configs),
            Kind::AuthorizationPolicy => of!(authorization_policies),
            Kind::PeerAuthentication => of!(peer_authentications),
            Kind::RequestAuthentication => of!(request_authentications),
            Kind::Telemetry => of!(telemetries),
            Kind::WasmPlugin => of!(wasm_plugins),
            Kind::TrafficExtension => of!(traffic_extensions),
            Kind::Service => of!(services),
            Kind::EndpointSlice | Kind::Endpoints => of!(slices),
            Kind::Pod => of!(pods),
            Kind::Node => of!(nodes),
            Kind::Namespace => of!(namespaces),
            Kind::Secret => of!(secrets),
        }
    }};
}

impl Pipeline {
    /// The epoch in which an object last changed; nothing if it is not there.
    pub fn changed_at(&self, (kind, id): &ObjectKey) -> Option<u64> {
        in_table!(self.inputs, kind, |table| self.engine.changed_at(table, id))
    }

    /// Is an object there, and does it say just this? Of what clusters and tools fill in themselves only that counts which
    /// was written.
    pub fn says(&self, object: &Object) -> bool {
        let (_, id) = object.key();
        macro_rules! known {
            ($field:ident, $is_same:ident, $written:expr) => {
                self.engine.get(&self.inputs.$field, &id).is_some_and(|known| same::$is_same(known, $written))
            };
        }
        match object {
            Object::VirtualService(rule) => known!(virtual_services, rule, rule),
            Object::DestinationRule(rule) => known!(destination_rules, rule, rule),
            Object::ServiceEntry(entry) => known!(service_entries, service_entry, entry),
            Object::WorkloadEntry(entry) => known!(workload_entries, workload_entry, entry),
            Object::Sidecar(rule) => known!(sidecars, rule, rule),
            Object::Gateway(rule) => known!(gateways, rule, rule),
            Object::WorkloadGroup(rule) => known!(workload_groups, rule, rule),
            Object::EnvoyFilter(rule) => known!(envoy_filters, rule, rule),
            Object::ProxyConfig(rule) => known!(proxy_configs, rule, rule),
            Object::AuthorizationPolicy(rule) => known!(authorization_policies, rule, rule),
            Object::PeerAuthentication(rule) => known!(peer_authentications, rule, rule),
            Object::RequestAuthentication(rule) => known!(request_authentications, rule, rule),
            Object::Telemetry(rule) => known!(telemetries, rule, rule),
            Object::WasmPlugin(rule) => known!(wasm_plugins, rule, rule),
            Object::TrafficExtension(rule) => known!(traffic_extensions, rule, rule),
            Object::Service(_, service) => known!(services, service, service),
            Object::EndpointSlice(_, slice) => known!(slices, slice, slice),
            Object::Namespace(_, namespace) => known!(namespaces, namespace, namespace),
            Object::Pod(_, pod) => known!(pods, pod, pod),
            Object::Node(_, node) => known!(nodes, node, node),
            Object::Secret(_, secret) => known!(secrets, secret, secret),
        }
    }

    /// The proxies of whose configuration something was made with a look at an object.
    ///
    /// Most objects are looked at by those resources that they shape. Others only have a say in what a proxy is to
    /// everything else, such as an EnvoyFilter: these concern every proxy for which they were looked at. Who is behind a
    /// service is told of it in both ways.
    pub fn concerned(&self, (kind, id): &ObjectKey) -> Concerned {
        let reach = in_table!(self.inputs, kind, |table| self.engine.reach(table, id, MOST_ROWS));
        if !reach.is_whole() {
            let all = self.engine.dump(&self.inputs.proxies).into_iter().map(|(proxy, _)| *proxy);
            return Concerned { proxies: all.collect(), is_whole: false, followed: reach.len() };
        }
        let mut told = self.told(&reach);
        if told.is_empty() || is_of_servers(*kind) {
            told.extend(self.engine.reached(&reach, &self.outputs.audiences));
        }
        Concerned { proxies: told.into_iter().collect(), is_whole: true, followed: reach.len() }
    }

    fn told(&self, reach: &Reach) -> BTreeSet<ProxyId> {
        let audiences = self.engine.reached(reach, &self.outputs.manifests);
        let members =
            audiences.into_iter().filter_map(|audience| self.engine.get(&self.outputs.members, audience));
        members.flat_map(|members| members.iter().map(|(proxy, ())| *proxy)).collect()
    }
}

/// Is it about those who serve, and about those who call them?
fn is_of_servers(kind: Kind) -> bool {
    use Kind::{EndpointSlice, Endpoints, PeerAuthentication, Pod, Service, ServiceEntry, WorkloadEntry};
    matches!(
        kind,
        PeerAuthentication | Service | EndpointSlice | Endpoints | Pod | ServiceEntry | WorkloadEntry
    )
}
