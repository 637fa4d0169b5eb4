use pilot_base::Name;

/// What flags and environment say. A row in an input table like everything else: nothing reads a global.
#[derive(Clone, PartialEq, Debug)]
pub struct MeshOptions {
    /// The suffix of service names: `cluster.local`.
    pub domain: Name,
    /// The cluster this server runs in.
    pub cluster: Name,
    pub features: Features,
}

impl Default for MeshOptions {
    fn default() -> Self {
        Self {
            domain: Name::new("cluster.local"),
            cluster: Name::new("Kubernetes"),
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
    /// `PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS`
    pub send_unhealthy_endpoints: bool,
    /// `ISTIO_DUAL_STACK`
    pub dual_stack: bool,
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
    /// `PILOT_ENABLE_QUIC_LISTENERS`
    pub quic_listeners: bool,
    /// `PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT`
    pub transport_connect_timeout: crate::Span,
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
            send_unhealthy_endpoints: true,
            dual_stack: false,
            continue_headers: true,
            absolute_fqdn: true,
            max_connections_per_event: 1,
            scope_gateway_to_namespace: false,
            route_collapse: true,
            quic_listeners: false,
            transport_connect_timeout: crate::Span::from_secs(15),
        }
    }
}
