use std::collections::BTreeMap;

use pilot_base::{Host, Labels, Name};

use crate::{
    ConnectionPool, ConnectionSettings, ExportTo, ExtensionProvider, H2UpgradePolicy, Keepalive, LocalityLb,
    OutboundTrafficPolicy, OutlierDetection, ProxyTracing, Retries, Span, Tls, ZoneAwareLb,
};

/// Settings of the whole mesh, as far as they shape what proxies are sent. Defaults are Istio's.
#[derive(Clone, PartialEq, Debug)]
pub struct MeshConfig {
    pub root_namespace: Name,
    pub trust_domain: Name,
    pub trust_domain_aliases: Vec<Name>,
    /// Of other meshes whose roots are trusted.
    pub ca_trust_domains: Vec<Name>,
    pub proxy_listen_port: u16,
    pub proxy_inbound_listen_port: u16,
    pub proxy_http_port: u16,
    pub connect_timeout: Span,
    pub protocol_detection_timeout: Option<Span>,
    pub tcp_keepalive: Option<Keepalive>,
    pub outbound: OutboundTrafficPolicy,
    /// How hosts that are found by name, because anybody may be called, are called.
    pub outbound_tls: Option<Tls>,
    pub inbound: InboundPolicy,
    pub auto_mtls: bool,
    pub mesh_mtls: TlsConfig,
    pub tls_defaults: TlsConfig,
    pub tracing: bool,
    pub access_log: AccessLog,
    pub access_log_service: bool,
    pub listener_access_log: bool,
    /// Those that every mesh has, and the user's.
    pub extension_providers: Vec<ExtensionProvider>,
    pub default_providers: DefaultProviders,
    pub locality: Option<LocalityLb>,
    pub zone_aware: Option<ZoneAwareLb>,
    pub retries: Option<Retries>,
    pub h2_upgrade: H2UpgradePolicy,
    pub path_normalization: PathNormalization,
    pub service_export_to: ExportTo,
    pub virtual_service_export_to: ExportTo,
    pub destination_rule_export_to: ExportTo,
    pub inbound_cluster_stat_name: Name,
    pub outbound_cluster_stat_name: Name,
    /// How often names are looked up again that could not be found.
    pub dns_refresh_rate: Span,
    pub hbone_idle_timeout: Option<Span>,
    /// Where proxies find this server.
    pub discovery_host: Name,
    /// What DestinationRules say if they say nothing.
    pub default_traffic_policy: DefaultTrafficPolicy,
    pub service_settings: Vec<ServiceSettings>,
    /// Of which namespaces objects count; of all, if there are none.
    pub discovery_selectors: Vec<LabelSelector>,
    pub service_entry_visibility: Option<ServiceEntryVisibility>,
    pub ingress: IngressSettings,
    pub default_config: ProxyConfig,
}

/// Which Ingresses of Kubernetes count, and which gateway serves them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IngressSettings {
    pub mode: IngressMode,
    /// What an Ingress calls the class that is ours.
    pub class: Name,
    /// The service in front of the gateway.
    pub service: Name,
    /// The gateway's label `istio`, if it is not the service's name.
    pub selector: Name,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IngressMode {
    Off,
    /// Those without a class too.
    Default,
    #[default]
    Strict,
}

impl Default for IngressSettings {
    fn default() -> Self {
        Self {
            mode: IngressMode::default(),
            class: Name::new("istio"),
            service: Name::new("istio-ingressgateway"),
            selector: Name::empty(),
        }
    }
}

impl IngressSettings {
    /// What the label `istio` of the gateway says.
    pub fn gateway(&self) -> &str {
        match (self.selector.as_str(), self.service.as_str()) {
            // The service of Istio's own gateway is called otherwise than its label.
            ("", "" | "istio-ingressgateway") => "ingressgateway",
            ("", service) => service,
            (selector, _) => selector,
        }
    }
}

/// Who is told about requests if no Telemetry says so.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DefaultProviders {
    pub tracing: Vec<Name>,
    pub metrics: Vec<Name>,
    pub access_logging: Vec<Name>,
}

/// Limits for TLS; empty lists and no version leave it to Istio.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TlsConfig {
    pub min_version: Option<TlsVersion>,
    pub cipher_suites: Vec<Name>,
    pub ecdh_curves: Vec<Name>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TlsVersion {
    V1_2,
    V1_3,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct DefaultTrafficPolicy {
    pub connection_pool: Option<ConnectionPool>,
    pub outlier_detection: Option<OutlierDetection>,
}

/// Hosts that are served only in the cluster of their client, or expressly everywhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceSettings {
    pub cluster_local: bool,
    pub hosts: Vec<Host>,
}

/// Chooses objects by their labels, as Kubernetes does.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LabelSelector {
    pub labels: Labels,
    pub expressions: Vec<LabelExpression>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelExpression {
    pub key: Name,
    pub operator: LabelOperator,
    pub values: Vec<Name>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LabelOperator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// Who may see the hosts of ServiceEntries, by their namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServiceEntryVisibility {
    pub default: EntryVisibility,
    pub apply_to_sidecars: bool,
    /// The first whose selectors all fit counts.
    pub policies: Vec<(EntryVisibility, Vec<LabelSelector>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EntryVisibility {
    #[default]
    Public,
    Namespace,
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum InboundPolicy {
    #[default]
    Passthrough,
    Localhost,
}

/// A log without a path is written nowhere; its format still counts for Istio's own provider.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AccessLog {
    pub path: Name,
    pub format: crate::LogFormat,
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
    pub tracing: ProxyTracing,
    pub headers: ProxyHeaders,
    /// Unless it says nothing about them: then the mesh's count.
    pub connection_settings: Option<ConnectionSettings>,
    pub topology: GatewayTopology,
    pub metadata: BTreeMap<Name, Name>,
    pub private_key_provider: Option<PrivateKeyProvider>,
    /// Does its agent ask the workload whether it is well?
    pub readiness_probe: bool,
}

/// What stands in front of a gateway.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GatewayTopology {
    pub num_trusted_proxies: u32,
    pub forward_client_cert: Option<ForwardClientCert>,
    pub proxy_protocol: bool,
}

/// Who signs with private keys, if not Envoy itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PrivateKeyProvider {
    pub kind: PrivateKeyKind,
    pub poll_delay: Span,
    pub fallback: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PrivateKeyKind {
    CryptoMb,
    Qat,
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
            ca_trust_domains: Vec::new(),
            proxy_listen_port: 15001,
            proxy_inbound_listen_port: 15006,
            proxy_http_port: 0,
            connect_timeout: Span::from_secs(10),
            protocol_detection_timeout: Some(Span::ZERO),
            tcp_keepalive: None,
            outbound: OutboundTrafficPolicy::default(),
            outbound_tls: None,
            inbound: InboundPolicy::default(),
            auto_mtls: true,
            mesh_mtls: TlsConfig::default(),
            tls_defaults: TlsConfig::default(),
            tracing: true,
            access_log: AccessLog { path: Name::empty(), format: crate::LogFormat::Text(Name::empty()) },
            access_log_service: false,
            listener_access_log: true,
            extension_providers: ExtensionProvider::built_in(),
            default_providers: DefaultProviders::default(),
            locality: Some(LocalityLb { enabled: Some(true), ..LocalityLb::default() }),
            zone_aware: None,
            retries: None,
            h2_upgrade: H2UpgradePolicy::default(),
            path_normalization: PathNormalization::default(),
            service_export_to: public.clone(),
            virtual_service_export_to: public.clone(),
            destination_rule_export_to: public,
            inbound_cluster_stat_name: Name::empty(),
            outbound_cluster_stat_name: Name::empty(),
            dns_refresh_rate: Span::from_secs(60),
            hbone_idle_timeout: None,
            discovery_host: Name::new("istiod.istio-system.svc"),
            default_traffic_policy: DefaultTrafficPolicy::default(),
            service_settings: Vec::new(),
            discovery_selectors: Vec::new(),
            service_entry_visibility: None,
            ingress: IngressSettings::default(),
            default_config: ProxyConfig::default(),
        }
    }
}

impl MeshConfig {
    /// A provider by its name, of which case does not matter.
    pub fn provider(&self, name: &str) -> Option<&ExtensionProvider> {
        self.extension_providers.iter().find(|provider| provider.name.eq_ignore_ascii_case(name))
    }
}

impl LabelSelector {
    pub fn selects(&self, labels: &Labels) -> bool {
        self.labels.subset_of(labels) && self.expressions.iter().all(|expression| expression.holds(labels))
    }
}

impl LabelExpression {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        let listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            LabelOperator::In => listed,
            LabelOperator::NotIn => !listed,
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

impl ServiceEntryVisibility {
    pub fn of_namespace(&self, labels: &Labels) -> EntryVisibility {
        let fits = |rules: &[LabelSelector]| rules.iter().all(|rule| rule.selects(labels));
        self.policies
            .iter()
            .find(|(_, rules)| fits(rules))
            .map_or(self.default, |(visibility, _)| *visibility)
    }
}
