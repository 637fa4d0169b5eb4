//! The mesh in words that belong to no platform: what sources write and `mesh` reads.
//!
//! Everything here is plain data that was checked when it was decoded. Optional things are `Option`, choices are enums,
//! and nothing knows where it came from or what it will be encoded as.

mod authorization_policy;
mod config;
mod connection_settings;
mod destination_rule;
mod endpoint;
mod envoy_filter;
mod export;
mod extension_provider;
mod gateway;
mod json;
mod key_set;
mod kube;
mod locality;
mod mesh_config;
mod networks;
mod object;
mod options;
mod peer_authentication;
mod policy_target;
mod protocol;
mod proxy;
mod proxy_config;
mod proxy_tracing;
mod request_authentication;
mod secret;
mod service;
mod service_entry;
mod share;
mod sidecar;
mod telemetry;
mod traffic_extension;
mod virtual_service;
mod wasm_plugin;
mod workload_group;

pub use authorization_policy::{AuthorizationPolicy, AuthzAction, AuthzAttribute, AuthzMatch, AuthzRule};
pub use config::{Config, ConfigId, Created, Kind};
pub use connection_settings::{ConnectionSettings, EscapedSlashes, Underscores};
pub use destination_rule::{
    ConnectionPool, ConsistentHash, Cookie, DestinationRule, H2UpgradePolicy, HashKey, HashRing, HealthCheck,
    HealthProbe, HttpPool, Keepalive, LoadBalancer, LocalityDistribute, LocalityFailover, LocalityLb,
    OutlierDetection, PortPolicy, ProxyProtocol, RetryBudget, SimpleLb, Subset, TcpPool, Tls, TlsMode,
    TrafficPolicy, Tunnel, Warmup, ZoneAwareLb,
};
pub use endpoint::{Address, Endpoint, Health, TlsSupport};
pub use envoy_filter::{
    ApplyTo, ChainMatch, ClusterMatch, EnvoyFilter, EnvoyPatch, ListenerMatch, ObjectMatch, PatchContext,
    PatchOperation, RouteActionKind, RouteConfigurationMatch, RouteMatch, VirtualHostMatch,
};
pub use export::{ExportTo, Visibility};
pub use extension_provider::{
    DynatraceSampler, ExtAuthzBody, ExtAuthzGrpc, ExtAuthzHttp, ExtensionProvider, FileLogProvider,
    HttpLogProvider, LogFormat, OpenTelemetryProvider, OtelExport, OtelLogProvider, ProviderHttp,
    ProviderKind, ProviderService, TcpLogProvider, ZipkinProvider,
};
pub use gateway::{
    CertificatePair, Gateway, GatewayServer, HostNamespace, ServerHost, ServerTls, ServerTlsMode,
    ServerTlsVersion,
};
pub use json::{Json, Number};
pub use key_set::{KeySet, KeySource, NOBODYS_KEYS};
pub use kube::{EndpointSlice, Namespace, Node, Pod, PodSight, SliceEndpoint, SlicePort};
pub use locality::Locality;
pub use mesh_config::{
    AccessLog, CertDetails, DefaultProviders, DefaultTrafficPolicy, EntryVisibility, ForwardClientCert,
    GatewayTopology, InboundPolicy, IngressMode, IngressSettings, LabelExpression, LabelOperator,
    LabelSelector, MeshConfig, PathNormalization, PrivateKeyKind, PrivateKeyProvider, ProxyConfig,
    ProxyHeaders, ServerHeader, ServiceEntryVisibility, ServiceSettings, TlsConfig, TlsVersion,
};
pub use networks::{GatewayAt, HostAddresses, MeshNetworks, Network, NetworkMembers};
pub use object::{Object, ObjectKey};
pub use options::{Compliance, Features, JwksFetch, MeshOptions, RegistryMerge};
pub use peer_authentication::{MtlsMode, PeerAuthentication};
pub use policy_target::{PolicyTarget, TargetRef};
pub use protocol::{ListenerProtocol, Protocol};
pub use proxy::{CertificateFiles, Interception, IpMode, Proxy, ProxyId, ProxyType, SecretAccess, Version};
pub use proxy_config::WorkloadProxyConfig;
pub use proxy_tracing::{ProxyTracing, TraceTag};
pub use request_authentication::{ClaimToHeader, JwtRule, RequestAuthentication};
pub use secret::{Authority, Content, KeyPair, Secret};
pub use service::{
    Caller, NodePorts, Registry, Resolution, Service, ServicePort, TrafficDistribution, WorkloadPort,
};
pub use service_entry::{EntryEndpoint, EntryPort, Location, RegistryOrigin, ServiceEntry, WorkloadEntry};
pub use sidecar::{
    CaptureMode, DefaultEndpoint, EgressHost, EgressListener, EgressPort, IngressListener, OutboundMode,
    OutboundTrafficPolicy, Sidecar,
};
pub use telemetry::{
    AccessLogging, IstioMetric, MetricMatch, Metrics, MetricsOverride, Telemetry, Tracing, WorkloadMode,
};
pub use traffic_extension::{
    ExtensionCode, ExtensionPhase, FailStrategy, PullPolicy, TrafficExtension, TrafficSelector, Wasm, WasmUrl,
};
pub use virtual_service::{
    Abort, AbortError, Body, Cors, Delay, Delegate, Destination, DirectResponse, Fault, HeaderOps, Headers,
    HttpMatch, HttpRoute, L4Destination, L4Match, Mirror, Percent, Redirect, RedirectPort, Retries, Rewrite,
    StringMatch, TcpRoute, TlsMatch, TlsRoute, UriRewrite, VirtualService, WeightedDestination,
};
pub use wasm_plugin::WasmPlugin;
pub use workload_group::{WorkloadGroup, WorkloadProbe, WorkloadProbeMethod};

/// A span of time. Rules are written by people, so nanoseconds are more than enough.
pub type Span = std::time::Duration;
