use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_model::{
    CertificateFiles, ConfigId, GatewayTopology, Interception, IpMode, MeshConfig, MeshOptions, Number,
    OutboundMode, ProxyHeaders, ProxyType, Span, TraceTag,
};

/// What every resource may depend on.
#[derive(Clone, Copy)]
pub struct Settings<'a> {
    pub mesh: &'a MeshConfig,
    pub options: &'a MeshOptions,
}

/// What of a proxy can shape its outbound clusters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterTraits {
    pub kind: ProxyType,
    pub preserve_case: bool,
    /// Which addresses of a name can it connect to?
    pub ip_mode: IpMode,
    /// Certificates of its own, which count instead of Istio's.
    pub certs: CertificateFiles,
    /// Who serves secrets that are asked for by name.
    pub credentials: SecretServer,
    pub endpoint: EndpointTraits,
}

/// Who a proxy asks for a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SecretServer {
    /// Its agent, or this server.
    Usual,
    /// A program beside it, behind a socket of its own.
    Beside,
}

impl SecretServer {
    #[allow(clippy::fn_params_excessive_bools, reason = "it makes the enum of what a proxy said")]
    pub fn of(is_beside: bool) -> Self {
        if is_beside { Self::Beside } else { Self::Usual }
    }
}

/// What of a proxy can shape the endpoints it is told. Where it is matters only to clusters that ask for it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EndpointTraits {
    pub kind: ProxyType,
    pub network: Name,
}

/// What of a proxy can shape a listener.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerTraits {
    pub ip_mode: IpMode,
    pub interception: Interception,
    /// The cluster it runs in decides by which addresses services are called.
    pub cluster: Name,
    pub outbound: OutboundMode,
    pub exact_balance: bool,
    pub inbound_exact_balance: bool,
    pub unprivileged: bool,
    /// Ports at which the proxy's own bootstrap listens.
    pub own_ports: Vec<u16>,
    pub idle_timeout: Option<Span>,
    pub server_files: CertificateFiles,
    /// Does a server beside the proxy have the secrets that are asked for as `sds://`?
    pub external_secrets: bool,
}

/// What, beyond that, can shape a listener for HTTP. Most of it is for tracing, and differs from workload to workload.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HttpTraits {
    pub headers: ProxyHeaders,
    pub http10: bool,
    /// What stands in front of a gateway.
    pub topology: GatewayTopology,
    pub tracing: TracingTraits,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TracingTraits {
    pub canonical_service: Name,
    pub canonical_revision: Name,
    pub mesh_id: Name,
    pub namespace: Name,
    pub cluster: Name,
    /// In percent.
    pub sampling: Number,
    pub max_path_tag_length: u32,
    pub istio_tags: bool,
    pub custom_tags: BTreeMap<Name, TraceTag>,
}

/// The policies that shape the filters of a proxy's listeners, in the order in which they count.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PolicyTraits {
    pub kind: ProxyType,
    pub requests: Vec<ConfigId>,
    pub authorization: Vec<ConfigId>,
}

/// What of a proxy can shape its routes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RouteTraits {
    pub ip_mode: IpMode,
    pub cluster: Name,
    /// What stands behind the namespace in the proxy's DNS domain: `.svc.cluster.local`.
    pub dns_suffix: Name,
    pub outbound: OutboundMode,
    /// Does the application call the proxy's ports, instead of being redirected to them?
    pub local: bool,
    pub attempt_count: bool,
    pub x_forwarded_host: bool,
}

/// What of a proxy can shape the clusters that every proxy has.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FixedTraits {
    pub kind: ProxyType,
    pub ip_mode: IpMode,
    pub preserve_case: bool,
}
