//! Connection pools, load balancing and the ejection of bad endpoints.

use pilot_envoy_api::envoy::config::cluster::v3 as api;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::r#type::v3::Percent;
use pilot_mesh::{LbSetting, effective_locality};
use pilot_model::{
    ConnectionPool, ConsistentHash, H2UpgradePolicy, HashRing, HttpPool, Keepalive, LoadBalancer, MeshConfig,
    OutlierDetection, Protocol, RetryBudget, Service, ServicePort, SimpleLb, TrafficDistribution,
    TrafficPolicy, Warmup,
};

use super::Draft;
use crate::convert::duration;
use crate::settings::Settings;

/// Everything in a policy but TLS, for an outbound cluster.
pub(super) fn apply(
    draft: &mut Draft,
    policy: Option<&TrafficPolicy>,
    (service, port): (&Service, &ServicePort),
    settings: Settings<'_>,
) {
    let pool = policy.and_then(|p| p.connection_pool.as_ref());
    if wants_http2(pool, port, settings.mesh) {
        draft.set_http2();
    }
    let budget = policy.and_then(|p| p.retry_budget.as_ref());
    apply_connection_pool(draft, pool.unwrap_or(&ConnectionPool::default()), budget, settings);
    if let Some(outlier) = policy.and_then(|p| p.outlier_detection.as_ref()) {
        apply_outlier_detection(&mut draft.cluster, outlier, service, settings);
    }
    // A cluster that finds hosts out as they are called has nothing to choose from.
    if !draft.is_dynamic {
        apply_load_balancer(draft, policy.and_then(|p| p.load_balancer.as_ref()), (service, port), settings);
    }
}

/// Are endpoints that are not ready told whatever a rule says?
fn forces_unhealthy(service: &Service, settings: Settings<'_>) -> bool {
    settings.options.features.force_unhealthy_endpoints
        || service.traffic_distribution != TrafficDistribution::Any
}

/// Do clients of a service go on talking to the endpoint they began with?
pub(super) fn is_persistent(service: &Service, settings: Settings<'_>) -> bool {
    let features = &settings.options.features;
    let labelled =
        |label: &str| !label.is_empty() && service.labels.get(label).is_some_and(|v| !v.is_empty());
    labelled(&features.persistent_session_label) || labelled(&features.persistent_session_header_label)
}

fn wants_http2(pool: Option<&ConnectionPool>, port: &ServicePort, mesh: &MeshConfig) -> bool {
    if let Some(http) = pool.and_then(|pool| pool.http.as_ref()) {
        match http.h2_upgrade {
            _ if http.use_client_protocol => return false,
            H2UpgradePolicy::Upgrade => return true,
            H2UpgradePolicy::DoNotUpgrade => return false,
            H2UpgradePolicy::Default => (),
        }
    }
    // A port whose protocol is found out must go on as its client spoke.
    port.protocol.is_http() && mesh.h2_upgrade == H2UpgradePolicy::Upgrade
}

pub(crate) fn apply_connection_pool(
    draft: &mut Draft,
    pool: &ConnectionPool,
    budget: Option<&RetryBudget>,
    settings: Settings<'_>,
) {
    let mesh = settings.mesh;
    let mut limits = unlimited();
    limits.track_remaining = !settings.options.features.no_remaining_metrics;
    limits.retry_budget = budget.map(retry_budget);
    let (tcp, http) = (pool.tcp.clone().unwrap_or_default(), pool.http.clone().unwrap_or_default());
    let set = |limit: &mut Option<u32>, value: u32| {
        if value > 0 {
            *limit = Some(value);
        }
    };
    set(&mut limits.max_requests, http.max_requests);
    set(&mut limits.max_pending_requests, http.max_pending_requests);
    set(&mut limits.max_retries, http.max_retries);
    set(&mut limits.max_connections, tcp.max_connections);
    draft.cluster.connect_timeout = Some(duration(tcp.connect_timeout.unwrap_or(mesh.connect_timeout)));
    for keepalive in [&mesh.tcp_keepalive, &tcp.keepalive].into_iter().flatten() {
        apply_keepalive(&mut draft.cluster, keepalive);
    }
    draft.cluster.circuit_breakers =
        Some(api::CircuitBreakers { thresholds: vec![limits], ..api::CircuitBreakers::default() });
    apply_http_limits(draft, &http, http.idle_timeout.or(tcp.idle_timeout), tcp.max_connection_duration);
    if http.use_client_protocol {
        draft.use_downstream_protocol();
    }
}

/// Istio leaves limits to those who ask for them; Envoy's own are too low for a busy mesh.
fn unlimited() -> api::circuit_breakers::Thresholds {
    let none = Some(u32::MAX);
    api::circuit_breakers::Thresholds {
        max_connections: none,
        max_pending_requests: none,
        max_requests: none,
        max_retries: none,
        ..api::circuit_breakers::Thresholds::default()
    }
}

fn retry_budget(budget: &RetryBudget) -> api::circuit_breakers::thresholds::RetryBudget {
    let concurrency = if budget.min_retry_concurrency > 0 { budget.min_retry_concurrency } else { 3 };
    api::circuit_breakers::thresholds::RetryBudget {
        budget_percent: Some(Percent { value: budget.percent.unwrap_or(20.0) }),
        min_retry_concurrency: Some(concurrency),
        budget_interval: budget.interval.map(duration),
    }
}

fn apply_keepalive(cluster: &mut api::Cluster, keepalive: &Keepalive) {
    let options = cluster.upstream_connection_options.get_or_insert_default();
    let tcp = options.tcp_keepalive.get_or_insert_default();
    let whole = |span: pilot_model::Span| u32::try_from(span.as_secs()).unwrap_or(u32::MAX);
    if keepalive.probes > 0 {
        tcp.keepalive_probes = Some(keepalive.probes);
    }
    if let Some(time) = keepalive.time {
        tcp.keepalive_time = Some(whole(time));
    }
    if let Some(interval) = keepalive.interval {
        tcp.keepalive_interval = Some(whole(interval));
    }
}

fn apply_http_limits(
    draft: &mut Draft,
    http: &HttpPool,
    idle: Option<pilot_model::Span>,
    lifetime: Option<pilot_model::Span>,
) {
    use pilot_envoy_api::envoy::extensions::upstreams::http::v3::http_protocol_options::UpstreamProtocolOptions;
    use pilot_envoy_api::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
    let said = idle.is_some()
        || lifetime.is_some()
        || http.max_requests_per_connection > 0
        || http.max_concurrent_streams > 0
        || http.http2_keepalive.is_some();
    if !said {
        return;
    }
    let options = draft.http_mut();
    let common = options.common_http_protocol_options.get_or_insert_default();
    if let Some(idle) = idle {
        common.idle_timeout = Some(duration(idle));
    }
    if http.max_requests_per_connection > 0 {
        common.max_requests_per_connection = Some(http.max_requests_per_connection);
    }
    if let Some(lifetime) = lifetime {
        common.max_connection_duration = Some(duration(lifetime));
    }
    let Some(UpstreamProtocolOptions::ExplicitHttpConfig(explicit)) = &mut options.upstream_protocol_options
    else {
        return;
    };
    let Some(ProtocolConfig::Http2ProtocolOptions(http2)) = &mut explicit.protocol_config else { return };
    if http.max_concurrent_streams > 0 {
        http2.max_concurrent_streams = Some(http.max_concurrent_streams);
    }
    if let Some((interval, timeout)) = http.http2_keepalive {
        http2.connection_keepalive = Some(core::KeepaliveSettings {
            interval: interval.map(duration),
            timeout: timeout.map(duration),
            ..core::KeepaliveSettings::default()
        });
    }
}

fn apply_outlier_detection(
    cluster: &mut api::Cluster,
    outlier: &OutlierDetection,
    service: &Service,
    settings: Settings<'_>,
) {
    // A number switches its check on, zero switches it off; nothing leaves it to Envoy.
    let enforce = |count: Option<u32>| count.map(|count| if count > 0 { 100 } else { 0 });
    let mut out = api::OutlierDetection {
        // How often a host fails compared with others says little where there are few.
        enforcing_success_rate: Some(0),
        consecutive_5xx: outlier.consecutive_5xx,
        enforcing_consecutive_5xx: enforce(outlier.consecutive_5xx),
        consecutive_gateway_failure: outlier.consecutive_gateway_errors,
        enforcing_consecutive_gateway_failure: enforce(outlier.consecutive_gateway_errors),
        interval: outlier.interval.map(duration),
        base_ejection_time: outlier.base_ejection_time.map(duration),
        max_ejection_percent: (outlier.max_ejection_percent > 0).then_some(outlier.max_ejection_percent),
        ..api::OutlierDetection::default()
    };
    if outlier.split_local_errors {
        out.split_external_local_origin_errors = true;
        if let Some(count) = outlier.consecutive_local_failures.filter(|count| *count > 0) {
            out.consecutive_local_origin_failure = Some(count);
            out.enforcing_consecutive_local_origin_failure = Some(100);
        }
        out.enforcing_local_origin_success_rate = Some(0);
    }
    cluster.outlier_detection = Some(out);
    if outlier.min_health_percent >= 0 {
        let common = cluster.common_lb_config.get_or_insert_default();
        // A panic would send traffic to endpoints that are not ready.
        let percent = if forces_unhealthy(service, settings) { 0 } else { outlier.min_health_percent };
        common.healthy_panic_threshold = Some(Percent { value: f64::from(percent) });
    }
}

fn apply_load_balancer(
    draft: &mut Draft,
    lb: Option<&LoadBalancer>,
    (service, port): (&Service, &ServicePort),
    settings: Settings<'_>,
) {
    use api::cluster::LbPolicy;
    let features = &settings.options.features;
    let original_dst = draft.is_original_dst();
    let cluster = &mut draft.cluster;
    let common = cluster.common_lb_config.get_or_insert_default();
    let lists_unready = features.send_unhealthy_endpoints || forces_unhealthy(service, settings);
    if common.healthy_panic_threshold.is_none() && lists_unready {
        // Endpoints that are not ready are listed; a panic would send them traffic.
        common.healthy_panic_threshold = Some(Percent { value: 0.0 });
    }
    let setting = effective_locality(lb, service, settings.mesh);
    cluster.common_lb_config.get_or_insert_default().locality_config_specifier =
        locality_config(setting.as_ref(), cluster.outlier_detection.as_ref(), settings);
    if original_dst {
        cluster.lb_policy = LbPolicy::ClusterProvided as i32;
        return;
    }
    if features.redis_filter && port.protocol == Protocol::Redis {
        // Keys are spread over the endpoints, and each has to stay where it is.
        cluster.lb_policy = LbPolicy::Maglev as i32;
        return;
    }
    let warmup = lb.and_then(|lb| lb.warmup.as_ref());
    match lb.map(|lb| lb.simple).unwrap_or_default() {
        SimpleLb::Unspecified | SimpleLb::LeastRequest => {
            cluster.lb_policy = LbPolicy::LeastRequest as i32;
            if let Some(warmup) = warmup {
                let config = api::cluster::LeastRequestLbConfig {
                    slow_start_config: Some(slow_start(warmup)),
                    ..api::cluster::LeastRequestLbConfig::default()
                };
                cluster.lb_config = Some(api::cluster::LbConfig::LeastRequestLbConfig(config));
            }
        }
        SimpleLb::RoundRobin => {
            cluster.lb_policy = LbPolicy::RoundRobin as i32;
            if let Some(warmup) = warmup {
                let config = api::cluster::RoundRobinLbConfig { slow_start_config: Some(slow_start(warmup)) };
                cluster.lb_config = Some(api::cluster::LbConfig::RoundRobinLbConfig(config));
            }
        }
        SimpleLb::Random => cluster.lb_policy = LbPolicy::Random as i32,
        SimpleLb::Passthrough => cluster.lb_policy = LbPolicy::ClusterProvided as i32,
    }
    if let Some(hash) = lb.and_then(|lb| lb.consistent_hash.as_ref()) {
        apply_consistent_hash(cluster, hash);
    }
}

fn locality_config(
    setting: Option<&LbSetting<'_>>,
    ejection: Option<&api::OutlierDetection>,
    settings: Settings<'_>,
) -> Option<api::cluster::common_lb_config::LocalityConfigSpecifier> {
    use api::cluster::common_lb_config::{
        LocalityConfigSpecifier as Config, LocalityWeightedLbConfig, ZoneAwareLbConfig,
    };
    let weighs = match setting {
        None => false,
        Some(LbSetting::Locality { setting, force }) => {
            let fails_over = !setting.failover.is_empty() || !setting.failover_priority.is_empty();
            ((ejection.is_some() || *force) && fails_over) || !setting.distribute.is_empty()
        }
        Some(LbSetting::ZoneAware(setting)) => {
            return Some(Config::ZoneAwareLbConfig(ZoneAwareLbConfig {
                // Left alone, Envoy would do it by itself.
                routing_enabled: (!setting.enabled.unwrap_or(true)).then_some(Percent { value: 0.0 }),
                min_cluster_size: setting.min_cluster_size.map(u64::from),
                ..ZoneAwareLbConfig::default()
            }));
        }
    };
    let weighs = weighs || settings.options.features.locality_weighted;
    weighs.then_some(Config::LocalityWeightedLbConfig(LocalityWeightedLbConfig {}))
}

fn slow_start(warmup: &Warmup) -> api::cluster::SlowStartConfig {
    let mut config = api::cluster::SlowStartConfig {
        slow_start_window: warmup.duration.map(duration),
        ..api::cluster::SlowStartConfig::default()
    };
    if let Some((aggression, minimum)) = warmup.detail {
        // Envoy asks for a runtime key; one that cannot be set keeps the value.
        config.aggression =
            Some(core::RuntimeDouble { default_value: aggression, runtime_key: "(".to_owned() });
        config.min_weight_percent = Some(Percent { value: minimum });
    }
    config
}

pub(crate) fn apply_consistent_hash(cluster: &mut api::Cluster, hash: &ConsistentHash) {
    use api::cluster::{LbConfig, LbPolicy, MaglevLbConfig, RingHashLbConfig};
    let ring = |size: u64| {
        LbConfig::RingHashLbConfig(RingHashLbConfig {
            minimum_ring_size: Some(size),
            ..RingHashLbConfig::default()
        })
    };
    match hash.ring {
        HashRing::Maglev { table_size } => {
            cluster.lb_policy = LbPolicy::Maglev as i32;
            if table_size != 0 {
                cluster.lb_config =
                    Some(LbConfig::MaglevLbConfig(MaglevLbConfig { table_size: Some(table_size) }));
            }
        }
        HashRing::RingHash { minimum_size } => {
            cluster.lb_policy = LbPolicy::RingHash as i32;
            if minimum_size != 0 {
                cluster.lb_config = Some(ring(minimum_size));
            }
        }
        HashRing::Default { minimum_size } => {
            cluster.lb_policy = LbPolicy::RingHash as i32;
            cluster.lb_config = Some(ring(if minimum_size == 0 { 1024 } else { minimum_size }));
        }
    }
}
