use crate::{
    Config, ConfigId, DestinationRule, EndpointSlice, Kind, Namespace, Node, Pod, Service, ServiceEntry,
    Sidecar, VirtualService, WorkloadEntry,
};

/// One object of any kind that sources deliver.
#[derive(Clone, PartialEq, Debug)]
pub enum Object {
    VirtualService(Config<VirtualService>),
    DestinationRule(Box<Config<DestinationRule>>),
    ServiceEntry(Config<ServiceEntry>),
    WorkloadEntry(Config<WorkloadEntry>),
    Sidecar(Config<Sidecar>),
    Service(ConfigId, Service),
    /// `v1 Endpoints` become one for each of their subsets.
    EndpointSlice(ConfigId, EndpointSlice),
    Pod(ConfigId, Pod),
    Node(ConfigId, Node),
    Namespace(ConfigId, Namespace),
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
            Self::Service(id, _) => (Kind::Service, id),
            Self::EndpointSlice(id, _) => (Kind::EndpointSlice, id),
            Self::Pod(id, _) => (Kind::Pod, id),
            Self::Node(id, _) => (Kind::Node, id),
            Self::Namespace(id, _) => (Kind::Namespace, id),
        };
        (kind, id.clone())
    }
}

/// Which object of all.
pub type ObjectKey = (Kind, ConfigId);
