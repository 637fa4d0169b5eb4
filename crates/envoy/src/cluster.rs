//! Clusters: where traffic can go.

mod fixed;
mod health_check;
mod inbound;
mod lookup;
mod policy;
mod tls;

pub use fixed::fixed_clusters;
pub use inbound::inbound_clusters;

use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3 as api;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::upstreams::http::v3 as http;
use pilot_envoy_api::to_any;
use pilot_mesh::{ClusterName, HostPlan, for_cluster, for_port};
use pilot_model::{
    Kind, LoadBalancer, MtlsMode, Protocol, ProxyType, Registry, Resolution, Service, ServicePort, SimpleLb,
    Subset, TlsSupport, TrafficPolicy,
};
use pilot_xds::{Encoded, EncodedList, TypeUrl};
use prost::Message as _;

use crate::convert::{ads_source, stat_prefix};
use crate::endpoint_group::{HostEndpoints, Reached};
use crate::metadata::IstioMetadata;
use crate::network_filter::metadata_exchange_upstream;
use crate::settings::{ClusterTraits, Settings};
use crate::stat_name::StatName;

pub(crate) use lookup::lookup_family;
pub(crate) use policy::{apply_connection_pool, apply_consistent_hash};

/// The key under which a cluster's HTTP options stand.
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// A cluster whose HTTP options are still open.
pub(crate) struct Draft {
    pub(crate) cluster: api::Cluster,
    pub(crate) http: Option<http::HttpProtocolOptions>,
    /// Are hosts found out as they are called?
    pub(crate) is_dynamic: bool,
}

/// What the clusters of a host are made of.
#[derive(Clone, Copy)]
pub struct HostClusters<'a> {
    pub plan: &'a HostPlan,
    /// The identities that its endpoints have.
    pub accounts: &'a [Name],
    /// Its endpoints, if [`needs_endpoints`] says so.
    pub endpoints: HostEndpoints<'a>,
    /// What its namespace, or the mesh, says about mutual TLS.
    pub mtls: MtlsMode,
}

/// Are a host's endpoints, or what they can do, part of its clusters?
pub fn needs_endpoints(plan: &HostPlan) -> bool {
    let told = |service: &Arc<Service>| service.resolution == Resolution::Static;
    let passes = |policy: &TrafficPolicy| {
        policy.load_balancer.as_ref().is_some_and(|lb| lb.simple == SimpleLb::Passthrough)
    };
    let rule = plan.traffic.as_ref().map(|traffic| &traffic.rule);
    let mut policies = rule.into_iter().flat_map(|rule| {
        rule.policy.iter().chain(rule.subsets.iter().filter_map(|subset| subset.policy.as_ref()))
    });
    !plan.services.iter().all(told) || policies.any(passes)
}

/// All clusters of a host: one for each port, and for each port one for each subset.
pub fn outbound_clusters(
    host: HostClusters<'_>,
    traits: &ClusterTraits,
    settings: Settings<'_>,
) -> EncodedList {
    let mut out = EncodedList::new();
    for (service, port) in host.plan.ports().into_iter().filter(|(_, port)| port.protocol != Protocol::Udp) {
        // Another name of a host has no clusters of its own.
        if service.is_alias() {
            continue;
        }
        let maker = Maker { host, service, port, traits, settings, reached: Reached::Plainly };
        out.extend(maker.clusters());
        if Reached::by_name(service, &traits.endpoint) && !maker.is_dynamic() {
            out.extend(Maker { reached: Reached::ByName, ..maker }.clusters());
        }
    }
    out
}

pub(crate) fn encode(draft: Draft) -> Arc<Encoded> {
    let cluster = draft.finish();
    let name = Name::new(&cluster.name);
    Arc::new(Encoded::new(TypeUrl::Cluster, name, &cluster.encode_to_vec()))
}

struct Maker<'a> {
    host: HostClusters<'a>,
    service: &'a Service,
    port: &'a ServicePort,
    traits: &'a ClusterTraits,
    settings: Settings<'a>,
    reached: Reached,
}

impl Maker<'_> {
    fn clusters(&self) -> EncodedList {
        let mut out: EncodedList = self.cluster(None).map(encode).into_iter().collect();
        if !self.is_dynamic() {
            let subsets = self.host.plan.traffic.iter().flat_map(|traffic| &traffic.rule.subsets);
            out.extend(subsets.filter_map(|subset| self.cluster(Some(subset))).map(encode));
        }
        out
    }

    fn cluster(&self, subset: Option<&Subset>) -> Option<Draft> {
        let subset_name = subset.map(|s| s.name.clone()).unwrap_or_default();
        let rule = self.host.plan.traffic.as_ref().map(|traffic| &traffic.rule);
        let policy = for_cluster(rule, &subset_name, self.port.number, self.settings.mesh);
        let policy = policy.as_deref();
        let name = self.reached.cluster(self.port.number, &subset_name, &self.service.host);
        let mut draft =
            if self.is_dynamic() { self.dynamic(&name)? } else { self.start(&name, subset, policy)? };
        draft.set_protocol(self.port.protocol, self.traits.kind, self.traits.http1());
        policy::apply(&mut draft, policy, (self.service, self.port), self.settings);
        // What is passed on is encrypted already: a check of our own would not be understood there.
        if self.reached == Reached::Plainly {
            let check = rule.and_then(|rule| rule.health_check.as_ref());
            health_check::apply(&mut draft, check, self.service, self.port);
            self.encrypt(&mut draft, subset, policy);
        }
        if draft.cluster.cluster_discovery_type == Some(discovery_type(api::cluster::DiscoveryType::Eds)) {
            draft.cluster.eds_cluster_config = Some(api::cluster::EdsClusterConfig {
                eds_config: Some(ads_source()),
                service_name: name.to_string(),
            });
        }
        if self.settings.options.features.metadata_exchange {
            draft.cluster.filters.push(metadata_exchange_upstream());
        }
        draft.cluster.metadata = self.metadata(subset, policy);
        Some(draft)
    }

    fn encrypt(&self, draft: &mut Draft, subset: Option<&Subset>, policy: Option<&TrafficPolicy>) {
        let subset_name = subset.map(|s| s.name.as_str()).unwrap_or_default();
        let rule = self.host.plan.traffic.as_ref().map(|traffic| &traffic.rule);
        let sni = ClusterName::sni(self.port.number, subset_name, &self.service.host);
        let upstream = tls::Upstream {
            external: self.service.mesh_external,
            registry: self.service.registry,
            // A name that is found out as it is called has no identity to be known by.
            accounts: if draft.is_dynamic { &[] } else { self.host.accounts },
            sni: &sni,
            kind: self.traits.kind,
            certs: &self.traits.certs,
            credentials: self.traits.credentials,
            mutual: self.can_be_mutual(subset),
            is_selective: rule.is_some_and(|rule| rule.workload_selector.is_some()),
        };
        tls::apply(draft, policy.and_then(|policy| policy.tls.as_ref()), &upstream, self.settings);
        if let Some(version) = policy.and_then(|policy| policy.proxy_protocol) {
            tls::wrap_in_proxy_protocol(&mut draft.cluster, version);
        }
    }

    /// The cluster before any policy, or nothing if there is nothing it could connect to.
    fn start(&self, name: &Name, subset: Option<&Subset>, policy: Option<&TrafficPolicy>) -> Option<Draft> {
        use api::cluster::DiscoveryType;
        let passes = |lb: Option<&LoadBalancer>| lb.is_some_and(|lb| lb.simple == SimpleLb::Passthrough);
        let rule = self.host.plan.traffic.as_ref().map(|traffic| &traffic.rule);
        let general = rule.and_then(|rule| rule.policy.as_ref()).map(|p| for_port(p, self.port.number));
        // A subset of what passes traffic through begins like that, and one that does so itself does too.
        let of_subset = subset.is_some_and(|subset| {
            passes(subset.policy.as_ref().and_then(|p| p.load_balancer.as_ref()))
                || passes(general.as_deref().and_then(|p| p.load_balancer.as_ref()))
        });
        let from = if of_subset { DiscoveryType::OriginalDst } else { self.discovery() };
        let mut draft = Draft::new(name, from);
        match from {
            DiscoveryType::StrictDns | DiscoveryType::LogicalDns => {
                self.look_up(&mut draft, name, subset, policy)?;
            }
            DiscoveryType::OriginalDst => self.set_target_port(&mut draft),
            _ => (),
        }
        if passes(policy.and_then(|p| p.load_balancer.as_ref())) {
            draft.cluster.cluster_discovery_type = Some(discovery_type(DiscoveryType::OriginalDst));
            draft.cluster.load_assignment = None;
        }
        let stats = StatName {
            service: Some(self.service),
            subset: subset.map(|s| s.name.as_str()).unwrap_or_default(),
            port: self.port.number,
            port_name: &self.port.name,
            target_port: Some(0),
        };
        if let Some(name) = stats.by(&self.settings.mesh.outbound_cluster_stat_name) {
            draft.cluster.alt_stat_name = stat_prefix(&name);
        }
        if self.reached == Reached::Plainly && policy::is_persistent(self.service, self.settings) {
            use core::HealthStatus as Status;
            let statuses = [Status::Healthy, Status::Draining, Status::Unknown, Status::Degraded];
            let common = draft.cluster.common_lb_config.get_or_insert_default();
            common.override_host_status = subset
                .is_none()
                .then(|| core::HealthStatusSet { statuses: statuses.map(|status| status as i32).to_vec() });
        }
        Some(draft)
    }

    fn set_target_port(&self, draft: &mut Draft) {
        use api::cluster::{LbConfig, OriginalDstLbConfig};
        if let Some(target) = self.service.target_ports.get(&self.port.number) {
            let config = OriginalDstLbConfig {
                upstream_port_override: Some(u32::from(*target)),
                ..OriginalDstLbConfig::default()
            };
            draft.cluster.lb_config = Some(LbConfig::OriginalDstLbConfig(config));
        }
    }

    /// How endpoints are found.
    fn discovery(&self) -> api::cluster::DiscoveryType {
        use api::cluster::DiscoveryType;
        let headless =
            self.service.registry == Registry::Kubernetes && self.settings.options.features.eds_for_headless;
        match self.service.resolution {
            Resolution::Static | Resolution::DynamicDns => DiscoveryType::Eds,
            // A gateway has no original destination to go to.
            Resolution::Passthrough if self.traits.kind == ProxyType::Router || headless => {
                DiscoveryType::Eds
            }
            Resolution::Passthrough => DiscoveryType::OriginalDst,
            Resolution::Dns if self.service.race_connect => DiscoveryType::LogicalDns,
            Resolution::Dns => DiscoveryType::StrictDns,
            Resolution::DnsRoundRobin => DiscoveryType::LogicalDns,
        }
    }

    /// Do its endpoints take mutual TLS, as far as that must be known beforehand? Where traffic goes where it was going,
    /// nobody can tell one endpoint from another.
    fn can_be_mutual(&self, subset: Option<&Subset>) -> bool {
        if self.host.mtls == MtlsMode::Disable {
            return false;
        }
        let rule = self.host.plan.traffic.as_ref().map(|traffic| &traffic.rule);
        let policy = match subset {
            Some(subset) => subset.policy.as_ref(),
            None => rule.and_then(|rule| rule.policy.as_ref()),
        };
        let simple = policy.and_then(|p| p.load_balancer.as_ref()).map(|lb| lb.simple);
        if self.service.resolution != Resolution::Passthrough && simple != Some(SimpleLb::Passthrough) {
            return true;
        }
        let mut here = self.host.endpoints.all.iter().filter(|e| e.port_name == self.port.name).peekable();
        here.peek().is_some() && here.all(|endpoint| endpoint.tls != TlsSupport::None)
    }

    fn metadata(&self, subset: Option<&Subset>, policy: Option<&TrafficPolicy>) -> Option<core::Metadata> {
        let mut metadata = IstioMetadata::default();
        if self.settings.options.features.telemetry_label && !self.is_dynamic() {
            metadata.services(std::iter::once(self.service));
        }
        // Only the cluster of the whole service says so; subsets never did.
        if self.service.mesh_external && subset.is_none() {
            metadata.external();
        }
        if let Some(id) = self.host.plan.traffic.as_ref().and_then(|traffic| traffic.from.first()) {
            metadata.config(Kind::DestinationRule, id);
            if tls::is_plain_tls(policy) {
                metadata.no_alpn_override();
            }
        }
        if let Some(subset) = subset {
            metadata.subset(&subset.name);
        }
        metadata.build()
    }
}

impl ClusterTraits {
    /// HTTP/1 as this proxy wants it, if it wants anything.
    fn http1(&self) -> Option<core::Http1ProtocolOptions> {
        self.preserve_case.then(preserve_case)
    }
}

pub(crate) fn discovery_type(kind: api::cluster::DiscoveryType) -> api::cluster::ClusterDiscoveryType {
    api::cluster::ClusterDiscoveryType::Type(kind as i32)
}

impl Draft {
    pub(crate) fn new(name: &Name, discovery: api::cluster::DiscoveryType) -> Self {
        let cluster = api::Cluster {
            name: name.to_string(),
            alt_stat_name: stat_prefix(name),
            cluster_discovery_type: Some(discovery_type(discovery)),
            common_lb_config: Some(api::cluster::CommonLbConfig::default()),
            ..api::Cluster::default()
        };
        Self { cluster, http: None, is_dynamic: false }
    }

    pub(crate) fn is_original_dst(&self) -> bool {
        let original = discovery_type(api::cluster::DiscoveryType::OriginalDst);
        self.cluster.cluster_discovery_type.as_ref() == Some(&original)
    }

    pub(crate) fn http_mut(&mut self) -> &mut http::HttpProtocolOptions {
        self.http.get_or_insert_default()
    }

    /// HTTP/2 where it is declared; what the client speaks where nothing is.
    fn set_protocol(
        &mut self,
        protocol: Protocol,
        kind: ProxyType,
        http1: Option<core::Http1ProtocolOptions>,
    ) {
        if protocol.is_http2() {
            self.set_http2();
            return;
        }
        if let Some(http1) = http1.filter(|_| protocol.is_http_or_auto()) {
            self.http_mut().upstream_protocol_options = Some(explicit_http1(http1));
        }
        if protocol == Protocol::Auto && kind == ProxyType::Sidecar {
            self.use_downstream_protocol();
        }
    }

    pub(crate) fn set_http2(&mut self) {
        use http::http_protocol_options::explicit_http_config::ProtocolConfig;
        use http::http_protocol_options::{ExplicitHttpConfig, UpstreamProtocolOptions};
        let options = self.http_mut();
        if options.upstream_protocol_options.is_none() {
            let config = ProtocolConfig::Http2ProtocolOptions(core::Http2ProtocolOptions::default());
            let explicit = ExplicitHttpConfig { protocol_config: Some(config) };
            options.upstream_protocol_options = Some(UpstreamProtocolOptions::ExplicitHttpConfig(explicit));
        }
    }

    pub(crate) fn use_downstream_protocol(&mut self) {
        use http::http_protocol_options::explicit_http_config::ProtocolConfig;
        use http::http_protocol_options::{UpstreamProtocolOptions, UseDownstreamHttpConfig};
        let options = self.http_mut();
        let http1 = match &options.upstream_protocol_options {
            Some(UpstreamProtocolOptions::ExplicitHttpConfig(explicit)) => match &explicit.protocol_config {
                Some(ProtocolConfig::HttpProtocolOptions(http1)) => http1.clone(),
                _ => core::Http1ProtocolOptions::default(),
            },
            _ => core::Http1ProtocolOptions::default(),
        };
        let config = UseDownstreamHttpConfig {
            http_protocol_options: Some(http1),
            http2_protocol_options: Some(core::Http2ProtocolOptions::default()),
            ..UseDownstreamHttpConfig::default()
        };
        options.upstream_protocol_options =
            Some(UpstreamProtocolOptions::UseDownstreamProtocolConfig(config));
    }

    pub(crate) fn is_http2(&self) -> bool {
        use http::http_protocol_options::UpstreamProtocolOptions;
        use http::http_protocol_options::explicit_http_config::ProtocolConfig;
        let options = self.http.as_ref().and_then(|http| http.upstream_protocol_options.as_ref());
        matches!(options, Some(UpstreamProtocolOptions::ExplicitHttpConfig(explicit))
            if matches!(explicit.protocol_config, Some(ProtocolConfig::Http2ProtocolOptions(_))))
    }

    pub(crate) fn finish(mut self) -> api::Cluster {
        if let Some(mut http) = self.http.take() {
            // istiod sends HTTP/2 to a dynamic host without TLS as Envoy refuses it.
            let checks = http.upstream_http_protocol_options.as_ref();
            if self.is_dynamic && !checks.is_some_and(|checks| checks.auto_sni && checks.auto_san_validation)
            {
                self.allow_unchecked_hosts();
            }
            // Envoy insists on one of them.
            if http.upstream_protocol_options.is_none() {
                http.upstream_protocol_options = Some(explicit_http1(core::Http1ProtocolOptions::default()));
            }
            let options = &mut self.cluster.typed_extension_protocol_options;
            options.insert(HTTP_OPTIONS.to_owned(), to_any(&http));
        }
        self.cluster
    }
}

fn explicit_http1(
    options: core::Http1ProtocolOptions,
) -> http::http_protocol_options::UpstreamProtocolOptions {
    use http::http_protocol_options::explicit_http_config::ProtocolConfig;
    use http::http_protocol_options::{ExplicitHttpConfig, UpstreamProtocolOptions};
    let explicit = ExplicitHttpConfig { protocol_config: Some(ProtocolConfig::HttpProtocolOptions(options)) };
    UpstreamProtocolOptions::ExplicitHttpConfig(explicit)
}

/// HTTP/1 headers keep the capitals they came with.
pub(crate) fn preserve_case() -> core::Http1ProtocolOptions {
    use core::http1_protocol_options::HeaderKeyFormat;
    use core::http1_protocol_options::header_key_format::HeaderFormat;
    let url = "type.googleapis.com/envoy.extensions.http.header_formatters.preserve_case.v3.PreserveCaseFormatterConfig";
    let formatter = core::TypedExtensionConfig {
        name: "preserve_case".to_owned(),
        typed_config: Some(prost_types::Any { type_url: url.to_owned(), value: Vec::new() }),
    };
    let format = HeaderKeyFormat { header_format: Some(HeaderFormat::StatefulFormatter(formatter)) };
    core::Http1ProtocolOptions { header_key_format: Some(format), ..core::Http1ProtocolOptions::default() }
}
