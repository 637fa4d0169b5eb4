//! Filters for connections, whatever is spoken on them.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3 as cluster;
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::extensions::filters::network::tcp_proxy::v3 as tcp;
use pilot_envoy_api::udpa::r#type::v1::TypedStruct;
use pilot_envoy_api::{stats, to_any};
use pilot_model::{Span, Tunnel};
use prost_types::{Any, Struct};

use crate::access_log;
use crate::convert::duration;
use crate::http_filter::Direction;
use crate::metadata::{fields_of, text, yes};
use crate::settings::Settings;

pub(crate) const TCP_PROXY: &str = "envoy.filters.network.tcp_proxy";
const METADATA_EXCHANGE: &str = "istio.metadata_exchange";

/// A message of Istio's Envoy build, named and spelled out because a stock Envoy does not have it.
pub(crate) fn typed_struct(type_url: &str, value: Struct) -> Any {
    to_any(&TypedStruct { type_url: type_url.to_owned(), value: Some(value) })
}

fn metadata_exchange_config() -> Any {
    typed_struct(
        "type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange",
        fields_of([("enable_discovery", yes()), ("protocol", text("istio-peer-exchange"))]),
    )
}

/// Sidecars tell each other who they are.
pub(crate) fn metadata_exchange_upstream() -> cluster::Filter {
    cluster::Filter {
        name: METADATA_EXCHANGE.to_owned(),
        typed_config: Some(metadata_exchange_config()),
        ..cluster::Filter::default()
    }
}

pub(crate) fn metadata_exchange(settings: Settings<'_>) -> Option<listener::Filter> {
    settings.options.features.metadata_exchange.then(|| filter(METADATA_EXCHANGE, metadata_exchange_config()))
}

/// Istio's own metrics for connections.
pub(crate) fn istio_stats(direction: Direction, settings: Settings<'_>) -> Option<listener::Filter> {
    default_metrics(settings).then(|| filter("istio.stats", stats_config(direction)))
}

pub(crate) fn default_metrics(settings: Settings<'_>) -> bool {
    let wanted = &settings.mesh.default_providers.metrics;
    let kind = |name: &Name| settings.mesh.provider(name).map(|provider| &provider.kind);
    wanted.iter().any(|name| kind(name) == Some(&pilot_model::ProviderKind::Prometheus))
}

pub(crate) fn stats_config(direction: Direction) -> Any {
    // Whoever is called from anywhere must not believe the host header.
    let disable_host_header_fallback = direction != Direction::Outbound;
    to_any(&stats::PluginConfig { disable_host_header_fallback, ..stats::PluginConfig::default() })
}

/// Where a connection goes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Upstream {
    One(Name),
    /// One of these, by weight.
    Weighted(Vec<(Name, u32)>),
}

/// Hands a connection on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TcpProxy {
    pub(crate) stat_prefix: String,
    pub(crate) upstream: Upstream,
    pub(crate) idle_timeout: Option<Span>,
    pub(crate) max_duration: Option<Span>,
    pub(crate) hash_source_ip: bool,
    pub(crate) tunnel: Option<Tunnel>,
    pub(crate) logged: bool,
}

impl TcpProxy {
    pub(crate) fn to(cluster: &Name) -> Self {
        Self::towards(cluster.to_string(), Upstream::One(cluster.clone()))
    }

    pub(crate) fn towards(stat_prefix: String, upstream: Upstream) -> Self {
        Self {
            stat_prefix,
            upstream,
            idle_timeout: None,
            max_duration: None,
            hash_source_ip: false,
            tunnel: None,
            logged: true,
        }
    }

    pub(crate) fn build(&self, settings: Settings<'_>) -> listener::Filter {
        use pilot_envoy_api::envoy::r#type::v3::{HashPolicy, hash_policy};
        let hash = HashPolicy {
            policy_specifier: Some(hash_policy::PolicySpecifier::SourceIp(hash_policy::SourceIp {})),
        };
        let config = tcp::TcpProxy {
            stat_prefix: self.stat_prefix.clone(),
            cluster_specifier: Some(specifier(&self.upstream)),
            idle_timeout: self.idle_timeout.map(duration),
            max_downstream_connection_duration: self.max_duration.map(duration),
            hash_policy: if self.hash_source_ip { vec![hash] } else { Vec::new() },
            tunneling_config: self.tunnel.as_ref().map(tunneling),
            access_log: if self.logged { access_log::of_traffic(settings) } else { Vec::new() },
            ..tcp::TcpProxy::default()
        };
        filter(TCP_PROXY, to_any(&config))
    }
}

fn specifier(upstream: &Upstream) -> tcp::tcp_proxy::ClusterSpecifier {
    use tcp::tcp_proxy::{ClusterSpecifier, WeightedCluster, weighted_cluster::ClusterWeight};
    match upstream {
        Upstream::One(cluster) => ClusterSpecifier::Cluster(cluster.to_string()),
        Upstream::Weighted(clusters) => {
            let weight = |(name, weight): &(Name, u32)| ClusterWeight {
                name: name.to_string(),
                weight: *weight,
                ..ClusterWeight::default()
            };
            ClusterSpecifier::WeightedClusters(WeightedCluster {
                clusters: clusters.iter().map(weight).collect(),
            })
        }
    }
}

/// The connection is carried inside a request to a proxy further on.
fn tunneling(tunnel: &Tunnel) -> tcp::tcp_proxy::TunnelingConfig {
    let host = &tunnel.target_host;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
    tcp::tcp_proxy::TunnelingConfig {
        hostname: format!("{host}:{}", tunnel.target_port),
        use_post: tunnel.protocol == "POST",
        ..tcp::tcp_proxy::TunnelingConfig::default()
    }
}

pub(crate) fn filter(name: &str, config: Any) -> listener::Filter {
    use listener::filter::ConfigType;
    listener::Filter { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
}
