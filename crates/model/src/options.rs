use std::collections::BTreeMap;

use pilot_base::Name;

/// What flags and environment say. A row in an input table like everything else: nothing reads a global.
#[derive(Clone, PartialEq, Debug)]
pub struct MeshOptions {
    /// The suffix of service names: `cluster.local`.
    pub domain: Name,
    /// The cluster this server runs in.
    pub cluster: Name,
    /// The namespace this server runs in.
    pub namespace: Name,
    /// Names that proxies may call a cluster by, and its own.
    pub cluster_aliases: BTreeMap<Name, Name>,
    /// What becomes of a host that several registries have.
    pub registry_merge: RegistryMerge,
    pub features: Features,
}

/// What becomes of a host that several registries have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RegistryMerge {
    /// The instances of all of them.
    #[default]
    Union,
    /// Those of the first registry that has any: a later one is used while the earlier ones have none.
    Priority,
    /// The same, and it is reported that others have the host too.
    Conflict,
}

impl RegistryMerge {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "union" => Some(Self::Union),
            "priority" => Some(Self::Priority),
            "conflict" => Some(Self::Conflict),
            _ => None,
        }
    }
}

impl Default for MeshOptions {
    fn default() -> Self {
        Self {
            domain: Name::new("cluster.local"),
            cluster: Name::new("Kubernetes"),
            namespace: Name::new("istio-system"),
            cluster_aliases: BTreeMap::new(),
            registry_merge: RegistryMerge::default(),
            features: Features::default(),
        }
    }
}

/// Who fetches the keys that tokens are checked with, where a policy only says where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum JwksFetch {
    #[default]
    Istiod,
    /// Envoy, if the host is one of the mesh.
    Hybrid,
    Envoy,
}

impl JwksFetch {
    pub fn parse(text: &str) -> Self {
        match text {
            "hybrid" | "true" => Self::Hybrid,
            "envoy" => Self::Envoy,
            _ => Self::Istiod,
        }
    }
}

/// Which standard all TLS has to keep to, whatever users ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compliance {
    Fips140v2,
    Fips140v3,
    /// Keys are agreed upon in a way that quantum computers cannot break.
    PostQuantum,
}

impl Compliance {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "fips-140-2" => Some(Self::Fips140v2),
            "fips-140-3" => Some(Self::Fips140v3),
            "pqc" => Some(Self::PostQuantum),
            _ => None,
        }
    }
}

/// Switches that Istio's users know by their environment variables.
#[derive(Clone, PartialEq, Debug)]
pub struct Features {
    /// `PILOT_ENABLE_ALPN_FILTER`
    pub alpn_filter: bool,
    /// `PILOT_ENABLE_METADATA_EXCHANGE`
    pub metadata_exchange: bool,
    /// `PILOT_DISABLE_MX_ALPN`
    pub disable_metadata_exchange_alpn: bool,
    /// `PILOT_HTTP10`
    pub http10: bool,
    /// `PILOT_ENABLE_TELEMETRY_LABEL`
    pub telemetry_label: bool,
    /// `PILOT_ENDPOINT_TELEMETRY_LABEL`
    pub endpoint_telemetry_label: bool,
    /// `PILOT_TRACE_SAMPLING`, in percent
    pub trace_sampling: f64,
    /// `PILOT_SIDECAR_USE_REMOTE_ADDRESS`
    pub use_remote_address: bool,
    /// `PILOT_SKIP_VALIDATE_TRUST_DOMAIN`
    pub skip_validate_trust_domain: bool,
    /// `PILOT_JWT_ENABLE_REMOTE_JWKS`
    pub jwks_fetch: JwksFetch,
    /// `PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS`
    pub many_authz_providers: bool,
    /// `ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY`
    pub gateways_are_selected: bool,
    /// `PILOT_ENABLE_PERSISTENT_SESSION_FILTER`
    pub persistent_sessions: bool,
    /// `PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS`
    pub send_unhealthy_endpoints: bool,
    /// `ISTIO_DUAL_STACK`
    pub dual_stack: bool,
    /// `PILOT_ENABLE_IP_AUTOALLOCATE`: addresses of services without one are those in their status. Otherwise they follow
    /// from their names.
    pub ip_autoallocate: bool,
    /// `PILOT_DNS_CARES_UDP_MAX_QUERIES`
    pub dns_max_queries: u32,
    /// `PILOT_DNS_JITTER_DURATION`
    pub dns_jitter: crate::Span,
    /// `ENABLE_LOCALITY_WEIGHTED_LB_CONFIG`
    pub locality_weighted: bool,
    /// `DISABLE_TRACK_REMAINING_CB_METRICS`
    pub no_remaining_metrics: bool,
    /// `PILOT_SEND_UNHEALTHY_ENDPOINTS`
    pub force_unhealthy_endpoints: bool,
    /// `PILOT_ENABLE_EDS_FOR_HEADLESS_SERVICES`
    pub eds_for_headless: bool,
    /// Names of services without an address have pods of every cluster behind them.
    pub multicluster_headless: bool,
    /// `PILOT_PERSISTENT_SESSION_LABEL`
    pub persistent_session_label: Name,
    /// `PILOT_PERSISTENT_SESSION_HEADER_LABEL`
    pub persistent_session_header_label: Name,
    /// `PILOT_DRAINING_LABEL`
    pub draining_label: Name,
    /// `LABEL_CANONICAL_SERVICES_FOR_MESH_EXTERNAL_SERVICE_ENTRIES`
    pub canonical_external_services: bool,
    /// `PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES`
    pub prefer_rule_tls: bool,
    /// `ENABLE_ENHANCED_DESTINATIONRULE_MERGE`
    pub enhanced_rule_merge: bool,
    /// `PILOT_ENABLE_REDIS_FILTER`
    pub redis_filter: bool,
    /// `ENABLE_100_CONTINUE_HEADERS`
    pub continue_headers: bool,
    /// `PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN`
    pub absolute_fqdn: bool,
    /// `MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP`; zero leaves it to Envoy
    pub max_connections_per_event: u32,
    /// `PILOT_SCOPE_GATEWAY_TO_NAMESPACE`: does a Gateway select workloads only of its own namespace?
    pub scope_gateway_to_namespace: bool,
    /// `PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION`: do hosts of a gateway with the same routes share a virtual host?
    pub route_collapse: bool,
    /// `DISABLE_SHADOW_HOST_SUFFIX`: do copies of requests keep their host?
    pub keep_shadow_host: bool,
    /// `PILOT_ENABLE_MONGO_FILTER`
    pub mongo_filter: bool,
    /// `PILOT_ENABLE_MYSQL_FILTER`
    pub mysql_filter: bool,
    /// `PILOT_ALLOW_SIDECAR_SERVICE_INBOUND_LISTENER_MERGE`: do services' ports count beside those of a Sidecar?
    pub merge_ingress: bool,
    /// `ISTIO_ENABLE_IPV4_OUTBOUND_LISTENER_FOR_IPV6_CLUSTERS`
    pub ipv4_outbound_for_ipv6: bool,
    /// `PILOT_ENABLE_QUIC_LISTENERS`: do gateways serve HTTP/3 where they serve HTTPS?
    pub quic_listeners: bool,
    /// `ENABLE_TLS_ON_SIDECAR_INGRESS`
    pub ingress_tls: bool,
    /// `COMPLIANCE_POLICY`
    pub compliance: Option<Compliance>,
    /// `PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS`
    pub dynamic_dns_max_hosts: u32,
    /// `PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT`
    pub transport_connect_timeout: crate::Span,
    /// `PILOT_ENABLE_SERVICEENTRY_SELECT_PODS`
    pub entries_select_pods: bool,
    /// `PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES`
    pub services_select_entries: bool,
    /// `ENABLE_PROXY_FIND_POD_BY_IP`: is a proxy whose pod is not found by its name that of a pod at its address?
    pub pods_by_address: bool,
    /// `RESOLVE_HOSTNAME_GATEWAYS`: are names of gateways between networks looked up?
    pub resolve_gateways: bool,
    /// `PILOT_ENABLE_ON_DEMAND_CLUSTERS`: do sidecars ask for clusters when they need them? Istio has no such switch.
    pub on_demand_clusters: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            alpn_filter: true,
            metadata_exchange: true,
            disable_metadata_exchange_alpn: false,
            http10: false,
            telemetry_label: true,
            endpoint_telemetry_label: true,
            trace_sampling: 1.0,
            use_remote_address: false,
            skip_validate_trust_domain: false,
            jwks_fetch: JwksFetch::default(),
            many_authz_providers: false,
            gateways_are_selected: true,
            persistent_sessions: false,
            send_unhealthy_endpoints: true,
            dual_stack: false,
            ip_autoallocate: true,
            dns_max_queries: 100,
            dns_jitter: crate::Span::from_millis(100),
            locality_weighted: false,
            no_remaining_metrics: true,
            force_unhealthy_endpoints: false,
            eds_for_headless: false,
            multicluster_headless: true,
            persistent_session_label: Name::new("istio.io/persistent-session"),
            persistent_session_header_label: Name::new("istio.io/persistent-session-header"),
            draining_label: Name::new("istio.io/draining"),
            canonical_external_services: false,
            prefer_rule_tls: true,
            enhanced_rule_merge: true,
            redis_filter: false,
            continue_headers: true,
            absolute_fqdn: true,
            max_connections_per_event: 1,
            scope_gateway_to_namespace: false,
            route_collapse: true,
            keep_shadow_host: true,
            mongo_filter: true,
            mysql_filter: false,
            merge_ingress: false,
            ipv4_outbound_for_ipv6: false,
            quic_listeners: false,
            ingress_tls: false,
            compliance: None,
            dynamic_dns_max_hosts: 1024,
            transport_connect_timeout: crate::Span::from_secs(15),
            entries_select_pods: true,
            services_select_entries: true,
            pods_by_address: false,
            resolve_gateways: true,
            on_demand_clusters: false,
        }
    }
}
