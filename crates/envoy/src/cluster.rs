//! Clusters: where traffic can go.

mod fixed;
mod inbound;
mod policy;
mod tls;

pub use fixed::fixed_clusters;
pub use inbound::inbound_clusters;

use std::borrow::Cow;
use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3 as api;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::upstreams::http::v3 as http;
use pilot_envoy_api::to_any;
use pilot_mesh::{ClusterName, HostPlan, for_subset};
use pilot_model::{
    Kind, Protocol, ProxyType, Resolution, Service, ServicePort, SimpleLb, Subset, TrafficPolicy,
};
use pilot_xds::{Encoded, EncodedList, TypeUrl};
use prost::Message as _;

use crate::convert::{ads_source, stat_prefix};
use crate::metadata::IstioMetadata;
use crate::network_filter::metadata_exchange_upstream;
use crate::settings::{ClusterTraits, Settings};

pub(crate) use policy::apply_connection_pool;

/// The key under which a cluster's HTTP options stand.
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// A cluster whose HTTP options are still open.
pub(crate) struct Draft {
    pub(crate) cluster: api::Cluster,
    pub(crate) http: Option<http::HttpProtocolOptions>,
}

/// All clusters of a host: one for each port, and for each port one for each subset. `accounts` are the identities that
/// its endpoints have.
pub fn outbound_clusters(
    plan: &HostPlan,
    accounts: &[Name],
    traits: &ClusterTraits,
    settings: Settings<'_>,
) -> EncodedList {
    let mut out = EncodedList::new();
    for (service, port) in plan.ports().into_iter().filter(|(_, port)| port.protocol != Protocol::Udp) {
        let maker = Maker { plan, service, port, accounts, traits, settings };
        out.extend(maker.cluster(None).map(encode));
        let subsets = plan.traffic.iter().flat_map(|traffic| &traffic.rule.subsets);
        out.extend(subsets.filter_map(|subset| maker.cluster(Some(subset))).map(encode));
    }
    out
}

pub(crate) fn encode(draft: Draft) -> Arc<Encoded> {
    let cluster = draft.finish();
    let name = Name::new(&cluster.name);
    Arc::new(Encoded::new(TypeUrl::Cluster, name, &cluster.encode_to_vec()))
}

struct Maker<'a> {
    plan: &'a HostPlan,
    service: &'a Service,
    port: &'a ServicePort,
    accounts: &'a [Name],
    traits: &'a ClusterTraits,
    settings: Settings<'a>,
}

impl Maker<'_> {
    fn cluster(&self, subset: Option<&Subset>) -> Option<Draft> {
        let subset_name = subset.map(|s| s.name.clone()).unwrap_or_default();
        let policy = self.policy(&subset_name);
        let discovery = self.discovery(policy.as_deref())?;
        let name = ClusterName::outbound(self.port.number, &subset_name, &self.service.host);
        let mut draft = Draft::new(&name, discovery);
        draft.set_protocol(self.port.protocol, self.traits);
        if discovery == api::cluster::DiscoveryType::OriginalDst
            && let Some(target) = self.service.target_ports.get(&self.port.number)
        {
            use api::cluster::{LbConfig, OriginalDstLbConfig};
            let config = OriginalDstLbConfig {
                upstream_port_override: Some(u32::from(*target)),
                ..OriginalDstLbConfig::default()
            };
            draft.cluster.lb_config = Some(LbConfig::OriginalDstLbConfig(config));
        }
        policy::apply(&mut draft, policy.as_deref(), self.port, self.settings);
        let sni = ClusterName::sni(self.port.number, &subset_name, &self.service.host);
        let upstream = tls::Upstream {
            service: self.service,
            accounts: self.accounts,
            sni: &sni,
            kind: self.traits.kind,
        };
        tls::apply(&mut draft, policy.as_deref(), &upstream, self.settings);
        if draft.cluster.cluster_discovery_type == Some(discovery_type(api::cluster::DiscoveryType::Eds)) {
            draft.cluster.eds_cluster_config = Some(api::cluster::EdsClusterConfig {
                eds_config: Some(ads_source()),
                service_name: name.to_string(),
            });
        }
        if self.settings.options.features.metadata_exchange {
            draft.cluster.filters.push(metadata_exchange_upstream());
        }
        draft.cluster.metadata = self.metadata(subset, policy.as_deref());
        Some(draft)
    }

    fn policy(&self, subset: &Name) -> Option<Cow<'_, TrafficPolicy>> {
        let traffic = self.plan.traffic.as_ref()?;
        for_subset(&traffic.rule, subset, self.port.number)
    }

    /// How endpoints are found; nothing for what is not supported yet.
    fn discovery(&self, policy: Option<&TrafficPolicy>) -> Option<api::cluster::DiscoveryType> {
        use api::cluster::DiscoveryType;
        let simple = policy.and_then(|p| p.load_balancer.as_ref()).map(|lb| lb.simple);
        match self.service.resolution {
            _ if simple == Some(SimpleLb::Passthrough) => Some(DiscoveryType::OriginalDst),
            Resolution::Static => Some(DiscoveryType::Eds),
            // A gateway has no original destination to go to.
            Resolution::Passthrough if self.traits.kind == ProxyType::Router => Some(DiscoveryType::Eds),
            Resolution::Passthrough => Some(DiscoveryType::OriginalDst),
            Resolution::Dns | Resolution::DnsRoundRobin | Resolution::DynamicDns => None,
        }
    }

    fn metadata(&self, subset: Option<&Subset>, policy: Option<&TrafficPolicy>) -> Option<core::Metadata> {
        let mut metadata = IstioMetadata::default();
        if self.settings.options.features.telemetry_label {
            metadata.services(std::iter::once(self.service));
        }
        // Only the cluster of the whole service says so; subsets never did.
        if self.service.mesh_external && subset.is_none() {
            metadata.external();
        }
        if let Some(id) = self.plan.traffic.as_ref().and_then(|traffic| traffic.from.first()) {
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
        Self { cluster, http: None }
    }

    pub(crate) fn is_original_dst(&self) -> bool {
        let original = discovery_type(api::cluster::DiscoveryType::OriginalDst);
        self.cluster.cluster_discovery_type.as_ref() == Some(&original)
    }

    pub(crate) fn http_mut(&mut self) -> &mut http::HttpProtocolOptions {
        self.http.get_or_insert_default()
    }

    /// HTTP/2 where it is declared; what the client speaks where nothing is.
    fn set_protocol(&mut self, protocol: Protocol, traits: &ClusterTraits) {
        if protocol.is_http2() {
            self.set_http2();
            return;
        }
        if protocol.is_http_or_auto() && traits.preserve_case {
            self.http_mut().upstream_protocol_options = Some(explicit_http1(preserve_case()));
        }
        if protocol == Protocol::Auto && traits.kind == ProxyType::Sidecar {
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
        if let Some(mut http) = self.http {
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
