use std::collections::BTreeMap;

use pilot_base::{Host, Labels, Name};

use crate::{ExportTo, Locality, Span};

/// What happens to traffic once its destination is known.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct DestinationRule {
    pub host: Host,
    pub policy: Option<TrafficPolicy>,
    pub subsets: Vec<Subset>,
    pub export_to: ExportTo,
    pub workload_selector: Option<Labels>,
    /// How endpoints are asked whether they are well, by an annotation.
    pub health_check: Option<HealthCheck>,
}

/// Endpoints are asked from time to time whether they are well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HealthCheck {
    pub probe: HealthProbe,
    /// The service's ports at which they are asked; at all of them, if there are none.
    pub ports: Vec<u16>,
    pub interval: Span,
    pub timeout: Span,
    pub unhealthy_threshold: u32,
    pub healthy_threshold: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HealthProbe {
    /// Anything but 200 is a failure. Without a host the service's own is asked for.
    Http { path: Name, host: Name },
    /// By gRPC's own health service.
    Grpc { service: Name },
    /// It is enough to connect.
    Tcp,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct TrafficPolicy {
    pub load_balancer: Option<LoadBalancer>,
    pub connection_pool: Option<ConnectionPool>,
    pub outlier_detection: Option<OutlierDetection>,
    pub tls: Option<Tls>,
    pub ports: Vec<PortPolicy>,
    pub tunnel: Option<Tunnel>,
    pub proxy_protocol: Option<ProxyProtocol>,
    pub retry_budget: Option<RetryBudget>,
}

/// The part of a policy that can be said for one port. It replaces the general one wholly, also where it is silent.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PortPolicy {
    pub port: u16,
    pub load_balancer: Option<LoadBalancer>,
    pub connection_pool: Option<ConnectionPool>,
    pub outlier_detection: Option<OutlierDetection>,
    pub tls: Option<Tls>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Subset {
    pub name: Name,
    pub labels: Labels,
    pub policy: Option<TrafficPolicy>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct LoadBalancer {
    pub simple: SimpleLb,
    pub consistent_hash: Option<ConsistentHash>,
    pub locality: Option<LocalityLb>,
    pub zone_aware: Option<ZoneAwareLb>,
    pub warmup: Option<Warmup>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum SimpleLb {
    #[default]
    Unspecified,
    LeastRequest,
    Random,
    RoundRobin,
    Passthrough,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ConsistentHash {
    pub key: HashKey,
    pub ring: HashRing,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HashKey {
    Header(Name),
    Cookie(Cookie),
    SourceIp(bool),
    QueryParameter(Name),
    None,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cookie {
    pub name: Name,
    pub path: Name,
    pub ttl: Option<Span>,
    pub attributes: Vec<(Name, Name)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HashRing {
    /// Neither was asked for: a ring of at least this size, where zero leaves it to the default.
    Default {
        minimum_size: u64,
    },
    RingHash {
        minimum_size: u64,
    },
    Maglev {
        table_size: u64,
    },
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct LocalityLb {
    pub enabled: Option<bool>,
    pub distribute: Vec<LocalityDistribute>,
    pub failover: Vec<LocalityFailover>,
    pub failover_priority: Vec<Name>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalityDistribute {
    pub from: Locality,
    pub to: BTreeMap<Name, u32>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalityFailover {
    pub from: Name,
    pub to: Name,
}

/// Envoy itself keeps traffic in the zone, as far as there are enough endpoints.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ZoneAwareLb {
    pub enabled: Option<bool>,
    pub failover: Vec<LocalityFailover>,
    pub failover_priority: Vec<Name>,
    pub min_cluster_size: Option<u32>,
}

/// How a new endpoint is given its share.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Warmup {
    pub duration: Option<Span>,
    /// Unset for the older form of the rule, which says nothing but the time.
    pub detail: Option<(f64, f64)>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionPool {
    pub tcp: Option<TcpPool>,
    pub http: Option<HttpPool>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TcpPool {
    pub max_connections: u32,
    pub connect_timeout: Option<Span>,
    pub keepalive: Option<Keepalive>,
    pub max_connection_duration: Option<Span>,
    pub idle_timeout: Option<Span>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keepalive {
    pub probes: u32,
    pub time: Option<Span>,
    pub interval: Option<Span>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HttpPool {
    pub max_pending_requests: u32,
    pub max_requests: u32,
    pub max_requests_per_connection: u32,
    pub max_retries: u32,
    pub idle_timeout: Option<Span>,
    pub h2_upgrade: H2UpgradePolicy,
    pub use_client_protocol: bool,
    pub max_concurrent_streams: u32,
    pub http2_keepalive: Option<(Option<Span>, Option<Span>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum H2UpgradePolicy {
    #[default]
    Default,
    DoNotUpgrade,
    Upgrade,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OutlierDetection {
    pub consecutive_5xx: Option<u32>,
    pub consecutive_gateway_errors: Option<u32>,
    pub consecutive_local_failures: Option<u32>,
    pub split_local_errors: bool,
    pub interval: Option<Span>,
    pub base_ejection_time: Option<Span>,
    pub max_ejection_percent: u32,
    pub min_health_percent: i32,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tls {
    pub mode: TlsMode,
    pub client_certificate: Name,
    pub private_key: Name,
    pub ca_certificates: Name,
    pub credential_name: Name,
    /// `None` leaves the names to the service's own identities; an empty list asks for none.
    pub subject_alt_names: Option<Vec<Name>>,
    pub sni: Name,
    pub insecure_skip_verify: bool,
    pub ca_crl: Name,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum TlsMode {
    #[default]
    Disable,
    Simple,
    Mutual,
    IstioMutual,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tunnel {
    pub protocol: Name,
    pub target_host: Name,
    pub target_port: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyProtocol {
    V1,
    V2,
}

#[derive(Clone, PartialEq, Debug)]
pub struct RetryBudget {
    pub percent: Option<f64>,
    pub min_retry_concurrency: u32,
    pub interval: Option<Span>,
}
