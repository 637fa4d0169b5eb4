use std::sync::Arc;

use pilot_base::Name;

use crate::{
    AuthorizationPolicy, Config, ConfigId, DestinationRule, EndpointSlice, EnvoyFilter, Gateway, Kind,
    Namespace, Node, PeerAuthentication, Pod, RequestAuthentication, Secret, Service, ServiceEntry, Sidecar,
    Telemetry, TrafficExtension, VirtualService, WasmPlugin, WorkloadEntry, WorkloadGroup,
    WorkloadProxyConfig,
};

/// One object of any kind that sources deliver.
#[derive(Clone, PartialEq, Debug)]
pub enum Object {
    VirtualService(Config<VirtualService>),
    DestinationRule(Box<Config<DestinationRule>>),
    ServiceEntry(Config<ServiceEntry>),
    WorkloadEntry(Config<WorkloadEntry>),
    Sidecar(Config<Sidecar>),
    Gateway(Arc<Config<Gateway>>),
    WorkloadGroup(Arc<Config<WorkloadGroup>>),
    EnvoyFilter(Arc<Config<EnvoyFilter>>),
    ProxyConfig(Arc<Config<WorkloadProxyConfig>>),
    AuthorizationPolicy(Arc<Config<AuthorizationPolicy>>),
    PeerAuthentication(Arc<Config<PeerAuthentication>>),
    RequestAuthentication(Arc<Config<RequestAuthentication>>),
    Telemetry(Arc<Config<Telemetry>>),
    WasmPlugin(Arc<Config<WasmPlugin>>),
    TrafficExtension(Arc<Config<TrafficExtension>>),
    Service(ConfigId, Service),
    /// `v1 Endpoints` become one for each of their subsets.
    EndpointSlice(ConfigId, EndpointSlice),
    Pod(ConfigId, Pod),
    Node(ConfigId, Node),
    Namespace(ConfigId, Namespace),
    Secret(ConfigId, Secret),
}

impl Object {
    /// Where the object is kept: its kind, after `v1 Endpoints` have become slices, and its own name.
    pub fn key(&self) -> ObjectKey {
        let (kind, id) = match self {
            Self::VirtualService(config) => (Kind::VirtualService, &config.id),
            Self::DestinationRule(config) => (Kind::DestinationRule, &config.id),
            Self::ServiceEntry(config) => (Kind::ServiceEntry, &config.id),
            Self::WorkloadEntry(config) => (Kind::WorkloadEntry, &config.id),
            Self::Sidecar(config) => (Kind::Sidecar, &config.id),
            Self::Gateway(config) => (Kind::Gateway, &config.id),
            Self::WorkloadGroup(config) => (Kind::WorkloadGroup, &config.id),
            Self::EnvoyFilter(config) => (Kind::EnvoyFilter, &config.id),
            Self::ProxyConfig(config) => (Kind::ProxyConfig, &config.id),
            Self::AuthorizationPolicy(config) => (Kind::AuthorizationPolicy, &config.id),
            Self::PeerAuthentication(config) => (Kind::PeerAuthentication, &config.id),
            Self::RequestAuthentication(config) => (Kind::RequestAuthentication, &config.id),
            Self::Telemetry(config) => (Kind::Telemetry, &config.id),
            Self::WasmPlugin(config) => (Kind::WasmPlugin, &config.id),
            Self::TrafficExtension(config) => (Kind::TrafficExtension, &config.id),
            Self::Service(id, _) => (Kind::Service, id),
            Self::EndpointSlice(id, _) => (Kind::EndpointSlice, id),
            Self::Pod(id, _) => (Kind::Pod, id),
            Self::Node(id, _) => (Kind::Node, id),
            Self::Namespace(id, _) => (Kind::Namespace, id),
            Self::Secret(id, _) => (Kind::Secret, id),
        };
        (kind, id.clone())
    }
}

impl Object {
    /// Says which cluster an object of Kubernetes is in, where it is not the one that we belong to.
    pub fn move_to(&mut self, cluster: &Name) {
        match self {
            Self::Service(id, service) => {
                id.cluster = cluster.clone();
                service.object = id.object(Kind::Service);
            }
            Self::EndpointSlice(id, _)
            | Self::Pod(id, _)
            | Self::Node(id, _)
            | Self::Namespace(id, _)
            | Self::Secret(id, _) => id.cluster = cluster.clone(),
            // What stands in it is in that cluster.
            Self::WorkloadEntry(config) => config.id.cluster = cluster.clone(),
            // Rules are of the whole mesh.
            _ => {}
        }
    }
}

/// Which object of all.
pub type ObjectKey = (Kind, ConfigId);
