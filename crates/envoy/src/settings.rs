use std::sync::Arc;

use pilot_base::{Labels, Name};
use pilot_mesh::{AccessLogs, ExtensionUse, StatsPlan, TracingPlan};
use pilot_model::{
    Caller, CertificateFiles, ConfigId, ConnectionSettings, GatewayTopology, Interception, IpMode,
    MeshConfig, MeshOptions, OutboundMode, ProxyHeaders, ProxyTracing, ProxyType, Span, Version,
};

/// What every resource may depend on.
#[derive(Clone, Copy)]
pub struct Settings<'a> {
    pub mesh: &'a MeshConfig,
    pub options: &'a MeshOptions,
    /// What policies put into every filter chain, for those who build one.
    pub chain: &'a ChainTraits,
}

impl<'a> Settings<'a> {
    pub fn new(mesh: &'a MeshConfig, options: &'a MeshOptions) -> Self {
        static NONE: ChainTraits =
            ChainTraits { logs: AccessLogs::OfMesh, stats: Vec::new(), extensions: Vec::new() };
        Self { mesh, options, chain: &NONE }
    }

    #[must_use]
    pub fn with_chain(self, chain: &'a ChainTraits) -> Self {
        Self { chain, ..self }
    }
}

/// What policies put into every filter chain on one side of a workload.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChainTraits {
    pub logs: AccessLogs,
    pub stats: Vec<StatsPlan>,
    /// Those that look at connections.
    pub extensions: Vec<ExtensionUse>,
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
    /// Where services are found that are called only in their client's cluster.
    pub cluster: Name,
    /// Where it is, and which addresses it can connect to, if there are gateways between networks.
    pub network: Option<(Name, IpMode)>,
    /// The networks that it wants to see; all, if it does not say.
    pub view: Vec<Name>,
    /// Does it pass TLS on to the clusters that server names spell out?
    pub passes_tls: bool,
}

/// What of a proxy can shape a listener.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerTraits {
    pub ip_mode: IpMode,
    pub interception: Interception,
    /// What stands behind the namespace in the proxy's DNS domain: `.svc.cluster.local`.
    pub dns_suffix: Name,
    /// What decides by which addresses services are called.
    pub caller: Caller,
    /// Those of its labels that some rule for connections asks for.
    pub labels: Labels,
    pub outbound: Outbound,
    pub exact_balance: bool,
    pub inbound_exact_balance: bool,
    pub unprivileged: bool,
    /// Ports at which the proxy's own bootstrap listens.
    pub own_ports: Vec<u16>,
    pub idle_timeout: Option<Span>,
    pub server_files: CertificateFiles,
    /// Does a server beside the proxy have the secrets that are asked for as `sds://`?
    pub external_secrets: bool,
    /// For outbound traffic, and for that of gateways.
    pub chain: Arc<ChainTraits>,
}

/// What becomes of traffic to hosts that nobody declared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Outbound {
    pub mode: OutboundMode,
    /// The cluster that a Sidecar sends it to, instead of where it was going.
    pub proxy: Option<Name>,
    /// Who is asked for addresses where anybody may be called by name; Envoy's own resolver, if nobody is.
    pub dns_proxy: Option<(Name, u16)>,
}

/// What, beyond that, can shape a listener for HTTP. Most of it is for tracing, and differs from workload to workload.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HttpTraits {
    pub headers: ProxyHeaders,
    pub http10: bool,
    /// What stands in front of a gateway.
    pub topology: GatewayTopology,
    pub tracing: TracingTraits,
    /// Those that look at requests.
    pub extensions: Vec<ExtensionUse>,
    /// Does the proxy ask for clusters when a request needs them?
    pub on_demand: bool,
    pub connections: Option<ConnectionSettings>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TracingTraits {
    pub plan: TracingPlan,
    /// What the proxy's own settings say.
    pub proxy: ProxyTracing,
    pub canonical_service: Name,
    pub canonical_revision: Name,
    pub mesh_id: Name,
    pub namespace: Name,
    pub cluster: Name,
    /// What some collectors are told to call the service.
    pub service_cluster: Name,
    /// What it is called by OpenTelemetry's conventions.
    pub otel_service: Name,
    pub kind: ProxyType,
    pub version: Version,
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
    pub caller: Caller,
    /// What stands behind the namespace in the proxy's DNS domain: `.svc.cluster.local`.
    pub dns_suffix: Name,
    /// Those of its labels that some rule for requests asks for.
    pub labels: Labels,
    pub outbound: Outbound,
    /// Does it serve as a forward proxy, too?
    pub http_proxy: bool,
    /// Does the application call the proxy's ports, instead of being redirected to them?
    pub local: bool,
    pub attempt_count: bool,
    pub x_forwarded_host: bool,
    /// Is there no Envoy, but a gRPC library that reads less?
    pub proxyless: bool,
}

/// What of a proxy can shape the clusters that every proxy has.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FixedTraits {
    pub kind: ProxyType,
    pub ip_mode: IpMode,
    pub preserve_case: bool,
    /// Who serves secrets that are asked for by name.
    pub credentials: SecretServer,
    /// Where anybody may be called by name.
    pub dynamic: Option<Outbound>,
}
