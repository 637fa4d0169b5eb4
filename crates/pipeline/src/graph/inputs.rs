use std::sync::Arc;

use pilot_base::{Name, ObjectRef};
use pilot_envoy::Settings;
use pilot_incr::{Graph, Input, Reader, Shard, Txn};
use pilot_model::{
    AuthorizationPolicy, Config, ConfigId, DestinationRule, EndpointSlice, EnvoyFilter, Gateway,
    HostAddresses, KeySet, KeySource, Kind, MeshConfig, MeshNetworks, MeshOptions, Namespace, Node, Object,
    ObjectKey, PeerAuthentication, Pod, Proxy, ProxyId, RequestAuthentication, Secret, Service, ServiceEntry,
    Sidecar, Telemetry, TrafficExtension, VirtualService, WasmPlugin, WorkloadEntry, WorkloadGroup,
    WorkloadProxyConfig,
};

/// The tables that sources, streams and who fetches keys write. Nothing else can change what proxies are sent.
#[derive(Clone, Copy)]
pub struct Inputs {
    pub options: Input<(), MeshOptions>,
    pub mesh: Input<(), MeshConfig>,
    pub networks: Input<(), MeshNetworks>,
    pub virtual_services: Input<ConfigId, Config<VirtualService>>,
    pub destination_rules: Input<ConfigId, Config<DestinationRule>>,
    pub service_entries: Input<ConfigId, Config<ServiceEntry>>,
    pub workload_entries: Input<ConfigId, Config<WorkloadEntry>>,
    pub sidecars: Input<ConfigId, Config<Sidecar>>,
    pub gateways: Input<ConfigId, Arc<Config<Gateway>>>,
    pub workload_groups: Input<ConfigId, Arc<Config<WorkloadGroup>>>,
    pub envoy_filters: Input<ConfigId, Arc<Config<EnvoyFilter>>>,
    pub proxy_configs: Input<ConfigId, Arc<Config<WorkloadProxyConfig>>>,
    pub authorization_policies: Input<ConfigId, Arc<Config<AuthorizationPolicy>>>,
    pub peer_authentications: Input<ConfigId, Arc<Config<PeerAuthentication>>>,
    pub request_authentications: Input<ConfigId, Arc<Config<RequestAuthentication>>>,
    pub telemetries: Input<ConfigId, Arc<Config<Telemetry>>>,
    pub wasm_plugins: Input<ConfigId, Arc<Config<WasmPlugin>>>,
    pub traffic_extensions: Input<ConfigId, Arc<Config<TrafficExtension>>>,
    pub services: Input<ConfigId, Arc<Service>>,
    pub slices: Input<ConfigId, EndpointSlice>,
    pub pods: Input<ConfigId, Pod>,
    pub nodes: Input<ConfigId, Node>,
    pub namespaces: Input<ConfigId, Namespace>,
    pub secrets: Input<ConfigId, Secret>,
    pub proxies: Input<ProxyId, Arc<Proxy>>,
    /// Keys that were fetched for policies.
    pub key_sets: Input<KeySource, KeySet>,
    /// What names of gateways between networks stand for.
    pub host_addresses: Input<Name, HostAddresses>,
}

impl Inputs {
    pub(super) fn declare(graph: &mut Graph) -> Self {
        Self {
            options: graph.input("options", |()| ObjectRef::new("Options", Name::empty(), Name::empty())),
            mesh: graph.input("mesh config", |()| ObjectRef::new("MeshConfig", Name::empty(), Name::empty())),
            networks: graph
                .input("mesh networks", |()| ObjectRef::new("MeshNetworks", Name::empty(), Name::empty())),
            virtual_services: graph
                .input("virtual services", |id: &ConfigId| id.object(Kind::VirtualService)),
            destination_rules: graph
                .input("destination rules", |id: &ConfigId| id.object(Kind::DestinationRule)),
            service_entries: graph.input("service entries", |id: &ConfigId| id.object(Kind::ServiceEntry)),
            workload_entries: graph.input("workload entries", |id: &ConfigId| id.object(Kind::WorkloadEntry)),
            sidecars: graph.input("sidecars", |id: &ConfigId| id.object(Kind::Sidecar)),
            gateways: graph.input("gateways", |id: &ConfigId| id.object(Kind::Gateway)),
            workload_groups: graph.input("workload groups", |id: &ConfigId| id.object(Kind::WorkloadGroup)),
            envoy_filters: graph.input("envoy filters", |id: &ConfigId| id.object(Kind::EnvoyFilter)),
            proxy_configs: graph.input("proxy configs", |id: &ConfigId| id.object(Kind::ProxyConfig)),
            authorization_policies: graph
                .input("authorization policies", |id: &ConfigId| id.object(Kind::AuthorizationPolicy)),
            peer_authentications: graph
                .input("peer authentications", |id: &ConfigId| id.object(Kind::PeerAuthentication)),
            request_authentications: graph
                .input("request authentications", |id: &ConfigId| id.object(Kind::RequestAuthentication)),
            telemetries: graph.input("telemetries", |id: &ConfigId| id.object(Kind::Telemetry)),
            wasm_plugins: graph.input("wasm plugins", |id: &ConfigId| id.object(Kind::WasmPlugin)),
            traffic_extensions: graph
                .input("traffic extensions", |id: &ConfigId| id.object(Kind::TrafficExtension)),
            services: graph.input("kubernetes services", |id: &ConfigId| id.object(Kind::Service)),
            slices: graph.input("endpoint slices", |id: &ConfigId| id.object(Kind::EndpointSlice)),
            pods: graph.input("pods", |id: &ConfigId| id.object(Kind::Pod)),
            nodes: graph.input("nodes", |id: &ConfigId| id.object(Kind::Node)),
            namespaces: graph.input("namespaces", |id: &ConfigId| id.object(Kind::Namespace)),
            secrets: graph.input("secrets", |id: &ConfigId| id.object(Kind::Secret)),
            proxies: graph
                .input("proxies", |id: &ProxyId| ObjectRef::new("Proxy", Name::empty(), id.to_string())),
            key_sets: graph.input("key sets", |source: &KeySource| {
                ObjectRef::new("KeySet", Name::empty(), source.as_str())
            }),
            host_addresses: graph.input("addresses of names", |name: &Name| {
                ObjectRef::new("HostAddresses", Name::empty(), name.clone())
            }),
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
            Object::Gateway(config) => txn.upsert(&self.gateways, shard, id, config),
            Object::WorkloadGroup(config) => txn.upsert(&self.workload_groups, shard, id, config),
            Object::EnvoyFilter(config) => txn.upsert(&self.envoy_filters, shard, id, config),
            Object::ProxyConfig(config) => txn.upsert(&self.proxy_configs, shard, id, config),
            Object::AuthorizationPolicy(config) => {
                txn.upsert(&self.authorization_policies, shard, id, config);
            }
            Object::PeerAuthentication(config) => txn.upsert(&self.peer_authentications, shard, id, config),
            Object::RequestAuthentication(config) => {
                txn.upsert(&self.request_authentications, shard, id, config);
            }
            Object::Telemetry(config) => txn.upsert(&self.telemetries, shard, id, config),
            Object::WasmPlugin(config) => txn.upsert(&self.wasm_plugins, shard, id, config),
            Object::TrafficExtension(config) => txn.upsert(&self.traffic_extensions, shard, id, config),
            Object::Service(_, service) => txn.upsert(&self.services, shard, id, Arc::new(service)),
            Object::EndpointSlice(_, slice) => txn.upsert(&self.slices, shard, id, slice),
            Object::Pod(_, pod) => txn.upsert(&self.pods, shard, id, pod),
            Object::Node(_, node) => txn.upsert(&self.nodes, shard, id, node),
            Object::Namespace(_, namespace) => txn.upsert(&self.namespaces, shard, id, namespace),
            Object::Secret(_, secret) => txn.upsert(&self.secrets, shard, id, secret),
        }
    }

    pub fn remove(&self, txn: &mut Txn, shard: Shard, (kind, id): ObjectKey) {
        match kind {
            Kind::VirtualService => txn.remove(&self.virtual_services, shard, id),
            Kind::DestinationRule => txn.remove(&self.destination_rules, shard, id),
            Kind::ServiceEntry => txn.remove(&self.service_entries, shard, id),
            Kind::WorkloadEntry => txn.remove(&self.workload_entries, shard, id),
            Kind::Sidecar => txn.remove(&self.sidecars, shard, id),
            Kind::Gateway => txn.remove(&self.gateways, shard, id),
            Kind::WorkloadGroup => txn.remove(&self.workload_groups, shard, id),
            Kind::EnvoyFilter => txn.remove(&self.envoy_filters, shard, id),
            Kind::ProxyConfig => txn.remove(&self.proxy_configs, shard, id),
            Kind::AuthorizationPolicy => txn.remove(&self.authorization_policies, shard, id),
            Kind::PeerAuthentication => txn.remove(&self.peer_authentications, shard, id),
            Kind::RequestAuthentication => txn.remove(&self.request_authentications, shard, id),
            Kind::Telemetry => txn.remove(&self.telemetries, shard, id),
            Kind::WasmPlugin => txn.remove(&self.wasm_plugins, shard, id),
            Kind::TrafficExtension => txn.remove(&self.traffic_extensions, shard, id),
            Kind::Service => txn.remove(&self.services, shard, id),
            Kind::EndpointSlice | Kind::Endpoints => txn.remove(&self.slices, shard, id),
            Kind::Pod => txn.remove(&self.pods, shard, id),
            Kind::Node => txn.remove(&self.nodes, shard, id),
            Kind::Namespace => txn.remove(&self.namespaces, shard, id),
            Kind::Secret => txn.remove(&self.secrets, shard, id),
        }
    }

    /// Makes the shard exactly these objects, without a moment of emptiness. Of several with the same key the last counts.
    pub fn replace(&self, txn: &mut Txn, shard: Shard, objects: Vec<Object>) {
        let (mut virtual_services, mut destination_rules, mut service_entries) = (vec![], vec![], vec![]);
        let (mut workload_entries, mut sidecars, mut services) = (vec![], vec![], vec![]);
        let mut gateways = vec![];
        let mut workload_groups = vec![];
        let mut envoy_filters = vec![];
        let mut proxy_configs = vec![];
        let mut authorization_policies = vec![];
        let mut peer_authentications = vec![];
        let mut request_authentications = vec![];
        let mut telemetries = vec![];
        let mut wasm_plugins = vec![];
        let mut traffic_extensions = vec![];
        let (mut slices, mut pods, mut nodes, mut namespaces) = (vec![], vec![], vec![], vec![]);
        let mut secrets = vec![];
        for object in objects {
            let (_, id) = object.key();
            match object {
                Object::VirtualService(config) => virtual_services.push((id, config)),
                Object::DestinationRule(config) => destination_rules.push((id, *config)),
                Object::ServiceEntry(config) => service_entries.push((id, config)),
                Object::WorkloadEntry(config) => workload_entries.push((id, config)),
                Object::Sidecar(config) => sidecars.push((id, config)),
                Object::Gateway(config) => gateways.push((id, config)),
                Object::WorkloadGroup(config) => workload_groups.push((id, config)),
                Object::EnvoyFilter(config) => envoy_filters.push((id, config)),
                Object::ProxyConfig(config) => proxy_configs.push((id, config)),
                Object::AuthorizationPolicy(config) => authorization_policies.push((id, config)),
                Object::PeerAuthentication(config) => peer_authentications.push((id, config)),
                Object::RequestAuthentication(config) => request_authentications.push((id, config)),
                Object::Telemetry(config) => telemetries.push((id, config)),
                Object::WasmPlugin(config) => wasm_plugins.push((id, config)),
                Object::TrafficExtension(config) => traffic_extensions.push((id, config)),
                Object::Service(_, service) => services.push((id, Arc::new(service))),
                Object::EndpointSlice(_, slice) => slices.push((id, slice)),
                Object::Pod(_, pod) => pods.push((id, pod)),
                Object::Node(_, node) => nodes.push((id, node)),
                Object::Namespace(_, namespace) => namespaces.push((id, namespace)),
                Object::Secret(_, secret) => secrets.push((id, secret)),
            }
        }
        txn.replace(&self.virtual_services, shard, virtual_services);
        txn.replace(&self.destination_rules, shard, destination_rules);
        txn.replace(&self.service_entries, shard, service_entries);
        txn.replace(&self.workload_entries, shard, workload_entries);
        txn.replace(&self.sidecars, shard, sidecars);
        txn.replace(&self.gateways, shard, gateways);
        txn.replace(&self.workload_groups, shard, workload_groups);
        txn.replace(&self.envoy_filters, shard, envoy_filters);
        txn.replace(&self.proxy_configs, shard, proxy_configs);
        txn.replace(&self.authorization_policies, shard, authorization_policies);
        txn.replace(&self.peer_authentications, shard, peer_authentications);
        txn.replace(&self.request_authentications, shard, request_authentications);
        txn.replace(&self.telemetries, shard, telemetries);
        txn.replace(&self.wasm_plugins, shard, wasm_plugins);
        txn.replace(&self.traffic_extensions, shard, traffic_extensions);
        txn.replace(&self.services, shard, services);
        txn.replace(&self.slices, shard, slices);
        txn.replace(&self.pods, shard, pods);
        txn.replace(&self.nodes, shard, nodes);
        txn.replace(&self.namespaces, shard, namespaces);
        txn.replace(&self.secrets, shard, secrets);
    }

    /// What every resource may depend on; nothing until it was written once.
    pub(super) fn settings<'a>(&self, reader: &Reader<'a>) -> Option<Settings<'a>> {
        Some(Settings::new(reader.get(&self.mesh, &())?, reader.get(&self.options, &())?))
    }
}
