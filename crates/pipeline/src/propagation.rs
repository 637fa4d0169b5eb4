//! Whom an object concerns, and since when it says what it says: for people and programs that wait for a change.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{Name, ObjectRef};
use pilot_incr::Reach;
use pilot_model::{Kind, Object, ObjectKey, ProxyId, Service};

use crate::Pipeline;

/// So many rows are followed from one object. What shapes more than that shapes everything.
const MOST_ROWS: usize = 200_000;

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
        }
    }};
}

impl Pipeline {
    /// The epoch in which an object last changed; nothing if it is not there.
    pub fn changed_at(&self, (kind, id): &ObjectKey) -> Option<u64> {
        in_table!(self.inputs, kind, |table| self.engine.changed_at(table, id))
    }

    /// Is an object there, and does it say just this? Of what Kubernetes fills in itself only that counts which people write.
    pub fn says(&self, object: &Object) -> bool {
        let (_, id) = object.key();
        macro_rules! same_spec {
            ($field:ident, $config:expr) => {
                self.engine.get(&self.inputs.$field, &id).is_some_and(|known| known.spec == $config.spec)
            };
        }
        match object {
            Object::VirtualService(config) => same_spec!(virtual_services, config),
            Object::DestinationRule(config) => same_spec!(destination_rules, config),
            Object::ServiceEntry(config) => same_spec!(service_entries, config),
            Object::WorkloadEntry(config) => same_spec!(workload_entries, config),
            Object::Sidecar(config) => same_spec!(sidecars, config),
            Object::Gateway(config) => same_spec!(gateways, config),
            Object::WorkloadGroup(config) => same_spec!(workload_groups, config),
            Object::EnvoyFilter(config) => same_spec!(envoy_filters, config),
            Object::ProxyConfig(config) => same_spec!(proxy_configs, config),
            Object::AuthorizationPolicy(config) => same_spec!(authorization_policies, config),
            Object::PeerAuthentication(config) => same_spec!(peer_authentications, config),
            Object::RequestAuthentication(config) => same_spec!(request_authentications, config),
            Object::Telemetry(config) => same_spec!(telemetries, config),
            Object::WasmPlugin(config) => same_spec!(wasm_plugins, config),
            Object::TrafficExtension(config) => same_spec!(traffic_extensions, config),
            Object::Service(_, service) => {
                let known = self.engine.get(&self.inputs.services, &id);
                known.is_some_and(|known| is_written_alike(known, service))
            }
            Object::EndpointSlice(_, slice) => {
                self.engine.get(&self.inputs.slices, &id).is_some_and(|known| **known == *slice)
            }
            Object::Namespace(_, namespace) => {
                self.engine.get(&self.inputs.namespaces, &id).is_some_and(|known| **known == *namespace)
            }
            // Nearly all that counts of them is said by the cluster.
            Object::Pod(..) => self.engine.get(&self.inputs.pods, &id).is_some(),
            Object::Node(..) => self.engine.get(&self.inputs.nodes, &id).is_some(),
        }
    }

    /// The proxies of whose configuration something was made with a look at an object.
    ///
    /// Most objects are looked at by those resources that they shape. Others only have a say in what a proxy is to
    /// everything else, such as an EnvoyFilter: these concern every proxy for which they were looked at. Who is behind a
    /// service is told of it in both ways.
    pub fn concerned(&self, (kind, id): &ObjectKey) -> Vec<ProxyId> {
        let reach = in_table!(self.inputs, kind, |table| self.engine.reach(table, id, MOST_ROWS));
        if !reach.is_whole() {
            return self.engine.dump(&self.inputs.proxies).into_iter().map(|(proxy, _)| *proxy).collect();
        }
        let mut told = self.told(&reach);
        if told.is_empty() || is_of_servers(*kind) {
            told.extend(self.engine.reached(&reach, &self.outputs.audiences));
        }
        told.into_iter().collect()
    }

    /// Is a resource that a proxy is sent made of an object, among others?
    pub fn is_made_of(&self, proxy: ProxyId, resource: &Name, object: &ObjectRef) -> bool {
        let Some(audience) = self.audience_of(proxy) else { return false };
        let origins = self.engine.member_provenance(&self.outputs.manifests, &audience, resource);
        origins.iter().any(|origin| origin.object == *object)
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

/// Do two forms of a service say the same, as far as it is not the cluster that says it?
fn is_written_alike(known: &Arc<Service>, written: &Service) -> bool {
    known.ports == written.ports
        && known.selector == written.selector
        && known.workload_ports == written.workload_ports
        && known.publish_not_ready == written.publish_not_ready
        && known.export_to == written.export_to
        && known.labels == written.labels
}
