//! Filters for connections, whatever is spoken on them.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3 as cluster;
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::extensions::filters::network::tcp_proxy::v3 as tcp;
use pilot_envoy_api::udpa::r#type::v1::TypedStruct;
use pilot_envoy_api::{stats, to_any};
use pilot_mesh::{ExtensionUse, MetricPlan, StatsPlan};
use pilot_model::{ExtensionPhase, Span, Tunnel};
use prost_types::{Any, Struct};

use crate::access_log;
use crate::convert::duration;
use crate::extension_config::discovery;
use crate::http_filter::Direction;
use crate::metadata::{fields_of, text, yes};
use crate::security::{SecurityFilters, Step};
use crate::settings::Settings;
use crate::stat_name::StatName;

pub(crate) const TCP_PROXY: &str = "envoy.filters.network.tcp_proxy";
pub(crate) const STATS: &str = "istio.stats";
const METADATA_EXCHANGE: &str = "istio.metadata_exchange";
/// The agent may replace code that it cannot fetch by a filter that refuses everything.
const WASM_OR_REFUSAL: [&str; 2] = [
    "type.googleapis.com/envoy.extensions.filters.network.wasm.v3.Wasm",
    "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC",
];
/// All phases, in order.
pub(crate) const PHASES: [ExtensionPhase; 4] =
    [ExtensionPhase::Authn, ExtensionPhase::Authz, ExtensionPhase::Stats, ExtensionPhase::Unspecified];

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

/// What a connection passes before it is handed on: policies, the user's code and metrics, in this order.
pub(crate) fn leading(
    direction: Direction,
    port: u16,
    security: Option<&SecurityFilters>,
    settings: Settings<'_>,
) -> Vec<listener::Filter> {
    let policies = |step| security.map(|security| security.network(step)).unwrap_or_default();
    let mut filters: Vec<listener::Filter> = policies(Step::Custom).into_iter().collect();
    filters.extend(extensions(&[ExtensionPhase::Authn, ExtensionPhase::Authz], port, settings));
    filters.extend(policies(Step::Local));
    filters.extend(extensions(&[ExtensionPhase::Stats, ExtensionPhase::Unspecified], port, settings));
    filters.extend(istio_stats(direction, settings));
    filters
}

/// The user's code for connections to a port, in the given phases.
pub(crate) fn extensions(
    phases: &[ExtensionPhase],
    port: u16,
    settings: Settings<'_>,
) -> Vec<listener::Filter> {
    use listener::filter::ConfigType;
    let here = |extension: &&ExtensionUse| phases.contains(&extension.phase) && extension.applies_at(port);
    let one = |extension: &ExtensionUse| listener::Filter {
        name: extension.name.to_string(),
        config_type: Some(ConfigType::ConfigDiscovery(discovery(WASM_OR_REFUSAL))),
    };
    settings.chain.extensions.iter().filter(here).map(one).collect()
}

/// Istio's own metrics for connections.
pub(crate) fn istio_stats(direction: Direction, settings: Settings<'_>) -> Vec<listener::Filter> {
    settings.chain.stats.iter().map(|plan| filter(STATS, stats_config(plan, direction))).collect()
}

pub(crate) fn stats_config(plan: &StatsPlan, direction: Direction) -> Any {
    let metric = |metric: &MetricPlan| {
        let tags = || metric.tags.iter();
        let kept =
            |(tag, value): (&Name, &Option<Name>)| Some((tag.to_string(), value.as_ref()?.to_string()));
        stats::MetricConfig {
            name: metric.name.to_string(),
            drop: metric.disabled,
            dimensions: tags().filter_map(kept).collect(),
            tags_to_remove: tags().filter(|(_, v)| v.is_none()).map(|(tag, _)| tag.to_string()).collect(),
            ..stats::MetricConfig::default()
        }
    };
    to_any(&stats::PluginConfig {
        // Who is called by others knows who it is; it must not believe the host header.
        disable_host_header_fallback: direction != Direction::Outbound,
        tcp_reporting_duration: plan.reporting_interval.map(duration),
        metrics: plan.metrics.iter().map(metric).collect(),
        ..stats::PluginConfig::default()
    })
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

    /// Counted under the name that the mesh's pattern gives, if it has one and it is known who is called.
    pub(crate) fn named(self, stats: StatName<'_>, settings: Settings<'_>) -> Self {
        let known = stats.service.is_some().then(|| stats.by(&settings.mesh.outbound_cluster_stat_name));
        match known.flatten() {
            Some(stat_prefix) => Self { stat_prefix, ..self },
            None => self,
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
            access_log: if self.logged { access_log::of_connections(settings) } else { Vec::new() },
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
