use std::fmt;

use pilot_base::{Labels, Name, ObjectRef};

/// The kinds of configuration that are read. `config` has one file for each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    VirtualService,
    DestinationRule,
    ServiceEntry,
    WorkloadEntry,
    Sidecar,
    Gateway,
    WorkloadGroup,
    EnvoyFilter,
    ProxyConfig,
    AuthorizationPolicy,
    PeerAuthentication,
    RequestAuthentication,
    Telemetry,
    WasmPlugin,
    TrafficExtension,
    Service,
    EndpointSlice,
    Endpoints,
    Pod,
    Node,
    Namespace,
    Secret,
}

impl Kind {
    pub const ALL: [Self; 22] = [
        Self::VirtualService,
        Self::DestinationRule,
        Self::ServiceEntry,
        Self::WorkloadEntry,
        Self::Sidecar,
        Self::Gateway,
        Self::WorkloadGroup,
        Self::EnvoyFilter,
        Self::ProxyConfig,
        Self::AuthorizationPolicy,
        Self::PeerAuthentication,
        Self::RequestAuthentication,
        Self::Telemetry,
        Self::WasmPlugin,
        Self::TrafficExtension,
        Self::Service,
        Self::EndpointSlice,
        Self::Endpoints,
        Self::Pod,
        Self::Node,
        Self::Namespace,
        Self::Secret,
    ];

    /// The kind that is called so.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::VirtualService => "VirtualService",
            Self::DestinationRule => "DestinationRule",
            Self::ServiceEntry => "ServiceEntry",
            Self::WorkloadEntry => "WorkloadEntry",
            Self::Sidecar => "Sidecar",
            Self::Gateway => "Gateway",
            Self::WorkloadGroup => "WorkloadGroup",
            Self::EnvoyFilter => "EnvoyFilter",
            Self::ProxyConfig => "ProxyConfig",
            Self::AuthorizationPolicy => "AuthorizationPolicy",
            Self::PeerAuthentication => "PeerAuthentication",
            Self::RequestAuthentication => "RequestAuthentication",
            Self::Telemetry => "Telemetry",
            Self::WasmPlugin => "WasmPlugin",
            Self::TrafficExtension => "TrafficExtension",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Endpoints => "Endpoints",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::Namespace => "Namespace",
            Self::Secret => "Secret",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which object of a kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ConfigId {
    /// The cluster it is in; empty for the one that we belong to, which counts before others, and for what is in none.
    pub cluster: Name,
    pub namespace: Name,
    pub name: Name,
}

impl ConfigId {
    pub fn new(namespace: impl Into<Name>, name: impl Into<Name>) -> Self {
        Self { cluster: Name::empty(), namespace: namespace.into(), name: name.into() }
    }

    /// Another object of the same cluster.
    pub fn beside(&self, namespace: impl Into<Name>, name: impl Into<Name>) -> Self {
        Self { cluster: self.cluster.clone(), ..Self::new(namespace, name) }
    }

    pub fn object(&self, kind: Kind) -> ObjectRef {
        let name = match self.cluster.as_str() {
            "" => self.name.clone(),
            cluster => Name::from(format!("{} (cluster {cluster})", self.name)),
        };
        ObjectRef::new(kind.name(), self.namespace.clone(), name)
    }
}

impl fmt::Display for ConfigId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// When an object was made, in seconds; zero if nobody said. The older of two that claim the same thing wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Created(pub i64);

/// One object: who it is, and what it says.
#[derive(Clone, PartialEq, Debug)]
pub struct Config<S> {
    pub id: ConfigId,
    pub created: Created,
    pub labels: Labels,
    pub annotations: Labels,
    pub spec: S,
}

impl<S> Config<S> {
    /// Objects of one kind in the order in which they claim things: older first, then by name.
    pub fn order(&self) -> (Created, Name, Name) {
        (self.created, self.id.name.clone(), self.id.namespace.clone())
    }
}
