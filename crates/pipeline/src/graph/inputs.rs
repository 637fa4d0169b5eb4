use std::sync::Arc;

use pilot_base::{Name, ObjectRef};
use pilot_envoy::Settings;
use pilot_incr::{Graph, Input, Reader, Shard, Txn};
use pilot_model::{
    Config, ConfigId, DestinationRule, EndpointSlice, Kind, MeshConfig, MeshOptions, Namespace, Node, Object,
    ObjectKey, Pod, Proxy, ProxyId, Service, ServiceEntry, Sidecar, VirtualService, WorkloadEntry,
};

/// The tables that sources and streams write. Nothing else can change what proxies are sent.
#[derive(Clone, Copy)]
pub struct Inputs {
    pub options: Input<(), MeshOptions>,
    pub mesh: Input<(), MeshConfig>,
    pub virtual_services: Input<ConfigId, Config<VirtualService>>,
    pub destination_rules: Input<ConfigId, Config<DestinationRule>>,
    pub service_entries: Input<ConfigId, Config<ServiceEntry>>,
    pub workload_entries: Input<ConfigId, Config<WorkloadEntry>>,
    pub sidecars: Input<ConfigId, Config<Sidecar>>,
    pub services: Input<ConfigId, Arc<Service>>,
    pub slices: Input<ConfigId, EndpointSlice>,
    pub pods: Input<ConfigId, Pod>,
    pub nodes: Input<ConfigId, Node>,
    pub namespaces: Input<ConfigId, Namespace>,
    pub proxies: Input<ProxyId, Arc<Proxy>>,
}

impl Inputs {
    pub(super) fn declare(graph: &mut Graph) -> Self {
        Self {
            options: graph.input("options", |()| ObjectRef::new("Options", Name::empty(), Name::empty())),
            mesh: graph.input("mesh config", |()| ObjectRef::new("MeshConfig", Name::empty(), Name::empty())),
            virtual_services: graph
                .input("virtual services", |id: &ConfigId| id.object(Kind::VirtualService)),
            destination_rules: graph
                .input("destination rules", |id: &ConfigId| id.object(Kind::DestinationRule)),
            service_entries: graph.input("service entries", |id: &ConfigId| id.object(Kind::ServiceEntry)),
            workload_entries: graph.input("workload entries", |id: &ConfigId| id.object(Kind::WorkloadEntry)),
            sidecars: graph.input("sidecars", |id: &ConfigId| id.object(Kind::Sidecar)),
            services: graph.input("kubernetes services", |id: &ConfigId| id.object(Kind::Service)),
            slices: graph.input("endpoint slices", |id: &ConfigId| id.object(Kind::EndpointSlice)),
            pods: graph.input("pods", |id: &ConfigId| id.object(Kind::Pod)),
            nodes: graph.input("nodes", |id: &ConfigId| id.object(Kind::Node)),
            namespaces: graph.input("namespaces", |id: &ConfigId| id.object(Kind::Namespace)),
            proxies: graph
                .input("proxies", |id: &ProxyId| ObjectRef::new("Proxy", Name::empty(), id.to_string())),
        }
    }

    pub fn upsert(&self, txn: &mut Txn, shard: Shard, object: Object) {
        let (_, id) = object.key();
        match object {
            Object::VirtualService(config) => txn.upsert(&self.virtual_services, shard, id, config),
            Object::DestinationRule(config) => txn.upsert(&self.destination_rules, shard, id, *config),
            Object::ServiceEntry(config) => txn.upsert(&self.service_entries, shard, id, config),
            Object::WorkloadEntry(config) => txn.upsert(&self.workload_entries, shard, id, config),
            Object::Sidecar(config) => txn.upsert(&self.sidecars, shard, id, config),
            Object::Service(_, service) => txn.upsert(&self.services, shard, id, Arc::new(service)),
            Object::EndpointSlice(_, slice) => txn.upsert(&self.slices, shard, id, slice),
            Object::Pod(_, pod) => txn.upsert(&self.pods, shard, id, pod),
            Object::Node(_, node) => txn.upsert(&self.nodes, shard, id, node),
            Object::Namespace(_, namespace) => txn.upsert(&self.namespaces, shard, id, namespace),
        }
    }

    pub fn remove(&self, txn: &mut Txn, shard: Shard, (kind, id): ObjectKey) {
        match kind {
            Kind::VirtualService => txn.remove(&self.virtual_services, shard, id),
            Kind::DestinationRule => txn.remove(&self.destination_rules, shard, id),
            Kind::ServiceEntry => txn.remove(&self.service_entries, shard, id),
            Kind::WorkloadEntry => txn.remove(&self.workload_entries, shard, id),
            Kind::Sidecar => txn.remove(&self.sidecars, shard, id),
            Kind::Service => txn.remove(&self.services, shard, id),
            Kind::EndpointSlice | Kind::Endpoints => txn.remove(&self.slices, shard, id),
            Kind::Pod => txn.remove(&self.pods, shard, id),
            Kind::Node => txn.remove(&self.nodes, shard, id),
            Kind::Namespace => txn.remove(&self.namespaces, shard, id),
        }
    }

    /// Makes the shard exactly these objects, without a moment of emptiness. Of several with the same key the last counts.
    pub fn replace(&self, txn: &mut Txn, shard: Shard, objects: Vec<Object>) {
        let (mut virtual_services, mut destination_rules, mut service_entries) = (vec![], vec![], vec![]);
        let (mut workload_entries, mut sidecars, mut services) = (vec![], vec![], vec![]);
        let (mut slices, mut pods, mut nodes, mut namespaces) = (vec![], vec![], vec![], vec![]);
        for object in objects {
            let (_, id) = object.key();
            match object {
                Object::VirtualService(config) => virtual_services.push((id, config)),
                Object::DestinationRule(config) => destination_rules.push((id, *config)),
                Object::ServiceEntry(config) => service_entries.push((id, config)),
                Object::WorkloadEntry(config) => workload_entries.push((id, config)),
                Object::Sidecar(config) => sidecars.push((id, config)),
                Object::Service(_, service) => services.push((id, Arc::new(service))),
                Object::EndpointSlice(_, slice) => slices.push((id, slice)),
                Object::Pod(_, pod) => pods.push((id, pod)),
                Object::Node(_, node) => nodes.push((id, node)),
                Object::Namespace(_, namespace) => namespaces.push((id, namespace)),
            }
        }
        txn.replace(&self.virtual_services, shard, virtual_services);
        txn.replace(&self.destination_rules, shard, destination_rules);
        txn.replace(&self.service_entries, shard, service_entries);
        txn.replace(&self.workload_entries, shard, workload_entries);
        txn.replace(&self.sidecars, shard, sidecars);
        txn.replace(&self.services, shard, services);
        txn.replace(&self.slices, shard, slices);
        txn.replace(&self.pods, shard, pods);
        txn.replace(&self.nodes, shard, nodes);
        txn.replace(&self.namespaces, shard, namespaces);
    }

    /// What every resource may depend on; nothing until it was written once.
    pub(super) fn settings<'a>(&self, reader: &Reader<'a>) -> Option<Settings<'a>> {
        Some(Settings { mesh: reader.get(&self.mesh, &())?, options: reader.get(&self.options, &())? })
    }
}
