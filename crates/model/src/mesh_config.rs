use std::collections::BTreeMap;

use pilot_base::Name;

use crate::{ExportTo, H2UpgradePolicy, Keepalive, LocalityLb, OutboundTrafficPolicy, Retries, Span};

/// Settings of the whole mesh, as far as they shape what proxies are sent. Defaults are Istio's.
#[derive(Clone, PartialEq, Debug)]
pub struct MeshConfig {
    pub root_namespace: Name,
    pub trust_domain: Name,
    pub trust_domain_aliases: Vec<Name>,
    pub proxy_listen_port: u16,
    pub proxy_inbound_listen_port: u16,
    pub proxy_http_port: u16,
    pub connect_timeout: Span,
    pub protocol_detection_timeout: Option<Span>,
    pub tcp_keepalive: Option<Keepalive>,
    pub outbound: OutboundTrafficPolicy,
    pub inbound: InboundPolicy,
    pub auto_mtls: bool,
    pub tracing: bool,
    pub access_log: Option<AccessLog>,
    pub access_log_service: bool,
    pub listener_access_log: bool,
    /// Are Istio's own metrics asked for by default?
    pub metrics: bool,
    pub locality: Option<LocalityLb>,
    pub retries: Option<Retries>,
    pub h2_upgrade: H2UpgradePolicy,
    pub path_normalization: PathNormalization,
    pub service_export_to: ExportTo,
    pub virtual_service_export_to: ExportTo,
    pub destination_rule_export_to: ExportTo,
    pub inbound_cluster_stat_name: Name,
    pub outbound_cluster_stat_name: Name,
    pub default_config: ProxyConfig,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InboundPolicy {
    #[default]
    Passthrough,
    Localhost,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessLog {
    pub path: Name,
    pub format: Name,
    pub encoding: AccessLogEncoding,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessLogEncoding {
    #[default]
    Text,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PathNormalization {
    #[default]
    Base,
    None,
    MergeSlashes,
    DecodeAndMergeSlashes,
}

/// Settings of a proxy. A proxy may send its own, which count instead of the mesh's.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProxyConfig {
    pub tracing: Option<TracingConfig>,
    pub headers: ProxyHeaders,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct TracingConfig {
    pub sampling: f64,
    pub max_path_tag_length: u32,
    pub istio_tags: Option<bool>,
    pub literal_tags: BTreeMap<Name, Name>,
}

/// Headers that a proxy adds or leaves out. The default changes nothing of what Istio does.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ProxyHeaders {
    pub forwarded_client_cert: Option<ForwardClientCert>,
    pub cert_details: CertDetails,
    pub server: ServerHeader,
    pub no_request_id: bool,
    pub no_attempt_count: bool,
    pub no_envoy_debug_headers: bool,
    pub no_metadata_headers: bool,
    pub preserve_case: bool,
    pub x_forwarded_host: bool,
    pub x_forwarded_port: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum ServerHeader {
    #[default]
    Default,
    Untouched,
    Value(Name),
}

/// What becomes of the `x-forwarded-client-cert` header.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ForwardClientCert {
    Sanitize,
    ForwardOnly,
    AppendForward,
    SanitizeSet,
    AlwaysForwardOnly,
}

/// What of a client's certificate is passed on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CertDetails {
    pub subject: Option<bool>,
    pub cert: Option<bool>,
    pub chain: Option<bool>,
    pub dns: Option<bool>,
    pub uri: Option<bool>,
}

impl Default for MeshConfig {
    fn default() -> Self {
        let public = ExportTo::parse(["*"]);
        Self {
            root_namespace: Name::new("istio-system"),
            trust_domain: Name::new("cluster.local"),
            trust_domain_aliases: Vec::new(),
            proxy_listen_port: 15001,
            proxy_inbound_listen_port: 15006,
            proxy_http_port: 0,
            connect_timeout: Span::from_secs(10),
            protocol_detection_timeout: Some(Span::ZERO),
            tcp_keepalive: None,
            outbound: OutboundTrafficPolicy::default(),
            inbound: InboundPolicy::default(),
            auto_mtls: true,
            tracing: true,
            access_log: None,
            access_log_service: false,
            listener_access_log: true,
            metrics: false,
            locality: Some(LocalityLb { enabled: Some(true), ..LocalityLb::default() }),
            retries: None,
            h2_upgrade: H2UpgradePolicy::default(),
            path_normalization: PathNormalization::default(),
            service_export_to: public.clone(),
            virtual_service_export_to: public.clone(),
            destination_rule_export_to: public,
            inbound_cluster_stat_name: Name::empty(),
            outbound_cluster_stat_name: Name::empty(),
            default_config: ProxyConfig::default(),
        }
    }
}
