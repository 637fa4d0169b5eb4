use std::sync::Arc;

use pilot_base::{Host, Labels, Name};

use crate::{ConnectionPool, Destination, Protocol, ServerTls};

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
    /// Where to listen; the proxy's own address if it is empty.
    pub bind: Name,
    pub capture: CaptureMode,
    /// Where the application listens; at the address that was called, if nothing is said.
    pub default_endpoint: Option<DefaultEndpoint>,
    /// TLS that ends here, for clients that are not sidecars.
    pub tls: Option<Arc<ServerTls>>,
    pub connection_pool: Option<ConnectionPool>,
}

/// Where a Sidecar says that the application listens.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DefaultEndpoint {
    /// The path of a socket file.
    Unix(Name),
    /// `127.0.0.1:port`, or `[::1]:port`.
    Local { v6: bool, port: u16 },
    /// `0.0.0.0:port`, or `[::]:port`: the workload's own address.
    Instance { v6: bool, port: u16 },
}

/// How traffic reaches a listener.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum CaptureMode {
    /// As the proxy is set up.
    #[default]
    Default,
    /// It is redirected.
    Iptables,
    /// The listener opens its port.
    None,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EgressListener {
    /// `None` catches every port that no other listener names.
    pub port: Option<EgressPort>,
    /// Where to listen: an address, `unix://` and a path, or nothing.
    pub bind: Name,
    pub capture: CaptureMode,
    pub hosts: Vec<EgressHost>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EgressPort {
    /// Zero for a socket file.
    pub number: u16,
    pub name: Name,
    pub protocol: Protocol,
}

impl EgressListener {
    /// The port that a service must have to be reached here. A socket file and a forward proxy serve all ports.
    pub fn service_port(&self) -> Option<u16> {
        let port = self.port.as_ref()?;
        (port.number != 0 && port.protocol != Protocol::HttpProxy).then_some(port.number)
    }
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
