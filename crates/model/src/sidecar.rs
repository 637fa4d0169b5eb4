use pilot_base::{Host, Labels, Name};

use crate::{ConnectionPool, Destination, Protocol};

/// What a proxy listens on and can reach.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sidecar {
    pub workload_selector: Option<Labels>,
    pub ingress: Vec<IngressListener>,
    pub egress: Vec<EgressListener>,
    pub outbound_traffic_policy: Option<OutboundTrafficPolicy>,
    pub inbound_connection_pool: Option<ConnectionPool>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct IngressListener {
    pub port: u16,
    pub port_name: Name,
    pub protocol: Protocol,
    pub bind: Name,
    pub default_endpoint: Name,
    pub connection_pool: Option<ConnectionPool>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct EgressListener {
    /// `None` catches every port that no other listener names.
    pub port: Option<(u16, Name, Protocol)>,
    pub bind: Name,
    pub hosts: Vec<EgressHost>,
}

/// `namespace/host`: what may be reached. `.` was replaced when it was read where the namespace is known.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EgressHost {
    /// `*` for every namespace, `.` for the one of the proxy.
    pub namespace: Name,
    pub host: Host,
    /// `~namespace/host` takes away what other entries give.
    pub exclude: bool,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct OutboundTrafficPolicy {
    pub mode: OutboundMode,
    pub egress_proxy: Option<Destination>,
}

/// What happens to traffic for hosts that nobody declared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum OutboundMode {
    RegistryOnly,
    #[default]
    AllowAny,
    AllowAnyDynamicDns,
}
