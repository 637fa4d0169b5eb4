pub(crate) mod health_check;
mod locality;
mod rules;

use pilot_api::networking as api;
use pilot_base::{Host, Labels};
use pilot_model::{
    ConnectionPool, ConsistentHash, Cookie, DestinationRule, ExportTo, H2UpgradePolicy, HashKey, HashRing,
    HttpPool, Keepalive, LoadBalancer, Locality, LocalityDistribute, LocalityFailover, LocalityLb,
    OutlierDetection, PortPolicy, ProxyProtocol, RetryBudget, SimpleLb, Subset, TcpPool, Tls, TlsMode,
    TrafficPolicy, Tunnel, Warmup, ZoneAwareLb,
};

use crate::check::{Check, fitted, names};

pub(crate) fn decode(message: api::DestinationRule, check: &mut Check<'_>) -> DestinationRule {
    rules::check(&message, check);
    let subsets = message.subsets.into_iter().enumerate().map(|(i, subset)| Subset {
        name: subset.name.into(),
        labels: Labels::new(subset.labels),
        policy: subset.traffic_policy.map(|p| policy(p, &format!("spec.subsets[{i}].trafficPolicy"), check)),
    });
    let subsets = fitted(subsets);
    DestinationRule {
        host: Host::new(&message.host),
        policy: message.traffic_policy.map(|p| policy(p, "spec.trafficPolicy", check)),
        subsets,
        export_to: ExportTo::parse(message.export_to.iter().map(String::as_str)),
        workload_selector: message.workload_selector.map(|selector| Labels::new(selector.match_labels)),
        health_check: None,
    }
}

fn policy(message: api::TrafficPolicy, path: &str, check: &mut Check<'_>) -> TrafficPolicy {
    use api::traffic_policy::proxy_protocol::Version;
    let at = |field: &str| format!("{path}.{field}");
    let ports = message.port_level_settings.into_iter().enumerate();
    let ports =
        ports.map(|(i, port)| port_policy(port, &format!("{path}.portLevelSettings[{i}]"), check)).collect();
    TrafficPolicy {
        load_balancer: message.load_balancer.map(|lb| load_balancer(lb, &at("loadBalancer"), check)),
        connection_pool: message
            .connection_pool
            .map(|pool| connection_pool(pool, &at("connectionPool"), check)),
        outlier_detection: message.outlier_detection.map(|o| outlier(&o, &at("outlierDetection"), check)),
        tls: message.tls.map(tls),
        ports,
        tunnel: message.tunnel.map(|t| Tunnel {
            protocol: t.protocol.into(),
            target_host: t.target_host.into(),
            target_port: check.port(at("tunnel.targetPort"), t.target_port),
        }),
        proxy_protocol: message
            .proxy_protocol
            .map(|p| if p.version == Version::V2 as i32 { ProxyProtocol::V2 } else { ProxyProtocol::V1 }),
        retry_budget: message.retry_budget.map(|b| RetryBudget {
            percent: b.percent,
            min_retry_concurrency: b.min_retry_concurrency,
            interval: check.span(at("retryBudget.budgetInterval"), b.budget_interval),
        }),
    }
}

fn port_policy(
    message: api::traffic_policy::PortTrafficPolicy,
    path: &str,
    check: &mut Check<'_>,
) -> PortPolicy {
    let at = |field: &str| format!("{path}.{field}");
    PortPolicy {
        port: check.port(at("port.number"), message.port.unwrap_or_default().number),
        load_balancer: message.load_balancer.map(|lb| load_balancer(lb, &at("loadBalancer"), check)),
        connection_pool: message
            .connection_pool
            .map(|pool| connection_pool(pool, &at("connectionPool"), check)),
        outlier_detection: message.outlier_detection.map(|o| outlier(&o, &at("outlierDetection"), check)),
        tls: message.tls.map(tls),
    }
}

fn load_balancer(message: api::LoadBalancerSettings, path: &str, check: &mut Check<'_>) -> LoadBalancer {
    use api::load_balancer_settings::{LbPolicy, SimpleLb as Api};
    let (simple, consistent_hash) = match message.lb_policy {
        None => (SimpleLb::Unspecified, None),
        Some(LbPolicy::ConsistentHash(hash)) => {
            (SimpleLb::Unspecified, Some(consistent_hash(hash, &format!("{path}.consistentHash"), check)))
        }
        Some(LbPolicy::Simple(simple)) => {
            let simple = match Api::try_from(simple).unwrap_or(Api::Unspecified) {
                Api::Unspecified => SimpleLb::Unspecified,
                Api::LeastConn | Api::LeastRequest => SimpleLb::LeastRequest,
                Api::Random => SimpleLb::Random,
                Api::RoundRobin => SimpleLb::RoundRobin,
                Api::Passthrough => SimpleLb::Passthrough,
            };
            (simple, None)
        }
    };
    let warmup = match (message.warmup, message.warmup_duration_secs) {
        (Some(w), _) => Some(Warmup {
            duration: check.span(format!("{path}.warmup.duration"), w.duration),
            detail: Some((w.aggression.unwrap_or(1.0), w.minimum_percent.unwrap_or(10.0))),
        }),
        (None, Some(duration)) => Some(Warmup {
            duration: check.span(format!("{path}.warmupDurationSecs"), Some(duration)),
            detail: None,
        }),
        (None, None) => None,
    };
    LoadBalancer {
        simple,
        consistent_hash,
        locality: message.locality_lb_setting.map(locality_lb),
        zone_aware: message.zone_aware_lb_setting.map(zone_aware_lb),
        warmup,
    }
}

pub(crate) fn locality_lb(message: api::LocalityLoadBalancerSetting) -> LocalityLb {
    let distribute = message.distribute.into_iter().map(|d| LocalityDistribute {
        from: Locality::parse(&d.from),
        to: d.to.into_iter().map(|(place, weight)| (place.into(), weight)).collect(),
    });
    LocalityLb {
        enabled: message.enabled,
        distribute: distribute.collect(),
        failover: message
            .failover
            .into_iter()
            .map(|f| LocalityFailover { from: f.from.into(), to: f.to.into() })
            .collect(),
        failover_priority: names(message.failover_priority),
    }
}

pub(crate) fn zone_aware_lb(message: api::ZoneAwareLoadBalancerSetting) -> ZoneAwareLb {
    let failover = message.failover.into_iter();
    ZoneAwareLb {
        enabled: message.enabled,
        failover: failover.map(|f| LocalityFailover { from: f.from.into(), to: f.to.into() }).collect(),
        failover_priority: names(message.failover_priority),
        min_cluster_size: message.min_cluster_size,
    }
}

fn consistent_hash(
    message: api::load_balancer_settings::ConsistentHashLb,
    path: &str,
    check: &mut Check<'_>,
) -> ConsistentHash {
    use api::load_balancer_settings::consistent_hash_lb::{HashAlgorithm, HashKey as Api};
    let key = match message.hash_key {
        None => HashKey::None,
        Some(Api::HttpHeaderName(name)) => HashKey::Header(name.into()),
        Some(Api::UseSourceIp(on)) => HashKey::SourceIp(on),
        Some(Api::HttpQueryParameterName(name)) => HashKey::QueryParameter(name.into()),
        Some(Api::HttpCookie(cookie)) => HashKey::Cookie(Cookie {
            name: cookie.name.into(),
            path: cookie.path.into(),
            ttl: check.span(format!("{path}.httpCookie.ttl"), cookie.ttl),
            attributes: cookie.attributes.into_iter().map(|a| (a.name.into(), a.value.into())).collect(),
        }),
    };
    let ring = match message.hash_algorithm {
        None => HashRing::Default { minimum_size: message.minimum_ring_size },
        Some(HashAlgorithm::RingHash(ring)) => HashRing::RingHash { minimum_size: ring.minimum_ring_size },
        Some(HashAlgorithm::Maglev(maglev)) => HashRing::Maglev { table_size: maglev.table_size },
    };
    ConsistentHash { key, ring }
}

pub(crate) fn connection_pool(
    message: api::ConnectionPoolSettings,
    path: &str,
    check: &mut Check<'_>,
) -> ConnectionPool {
    ConnectionPool {
        tcp: message.tcp.map(|tcp| tcp_pool(tcp, &format!("{path}.tcp"), check)),
        http: message.http.map(|http| http_pool(&http, &format!("{path}.http"), check)),
    }
}

fn tcp_pool(
    message: api::connection_pool_settings::TcpSettings,
    path: &str,
    check: &mut Check<'_>,
) -> TcpPool {
    let at = |field: &str| format!("{path}.{field}");
    TcpPool {
        max_connections: check.count(at("maxConnections"), message.max_connections),
        connect_timeout: check.span(at("connectTimeout"), message.connect_timeout),
        keepalive: message.tcp_keepalive.map(|k| keepalive(&k, &at("tcpKeepalive"), check)),
        max_connection_duration: check.span(at("maxConnectionDuration"), message.max_connection_duration),
        idle_timeout: check.span(at("idleTimeout"), message.idle_timeout),
    }
}

pub(crate) fn keepalive(
    message: &api::connection_pool_settings::tcp_settings::TcpKeepalive,
    path: &str,
    check: &mut Check<'_>,
) -> Keepalive {
    Keepalive {
        probes: message.probes,
        time: check.span(format!("{path}.time"), message.time),
        interval: check.span(format!("{path}.interval"), message.interval),
    }
}

fn http_pool(
    message: &api::connection_pool_settings::HttpSettings,
    path: &str,
    check: &mut Check<'_>,
) -> HttpPool {
    use api::connection_pool_settings::http_settings::H2UpgradePolicy as Api;
    let at = |field: &str| format!("{path}.{field}");
    HttpPool {
        max_pending_requests: check.count(at("http1MaxPendingRequests"), message.http1_max_pending_requests),
        max_requests: check.count(at("http2MaxRequests"), message.http2_max_requests),
        max_requests_per_connection: check
            .count(at("maxRequestsPerConnection"), message.max_requests_per_connection),
        max_retries: check.count(at("maxRetries"), message.max_retries),
        idle_timeout: check.span(at("idleTimeout"), message.idle_timeout),
        h2_upgrade: match Api::try_from(message.h2_upgrade_policy).unwrap_or(Api::Default) {
            Api::Default => H2UpgradePolicy::Default,
            Api::DoNotUpgrade => H2UpgradePolicy::DoNotUpgrade,
            Api::Upgrade => H2UpgradePolicy::Upgrade,
        },
        use_client_protocol: message.use_client_protocol,
        max_concurrent_streams: check.count(at("maxConcurrentStreams"), message.max_concurrent_streams),
        http2_keepalive: message.http2_keep_alive.as_ref().map(|k| {
            let interval = check.span(at("http2KeepAlive.interval"), k.interval);
            (interval, check.span(at("http2KeepAlive.timeout"), k.timeout))
        }),
    }
}

pub(crate) fn outlier(
    message: &api::OutlierDetection,
    path: &str,
    check: &mut Check<'_>,
) -> OutlierDetection {
    let at = |field: &str| format!("{path}.{field}");
    let max_ejection_percent = check.count(at("maxEjectionPercent"), message.max_ejection_percent);
    if max_ejection_percent > 100 {
        check.reject(at("maxEjectionPercent"), "must not be more than 100");
    }
    if message.min_health_percent > 100 {
        check.reject(at("minHealthPercent"), "must not be more than 100");
    }
    OutlierDetection {
        consecutive_5xx: message.consecutive_5xx_errors,
        consecutive_gateway_errors: message.consecutive_gateway_errors,
        consecutive_local_failures: message.consecutive_local_origin_failures,
        split_local_errors: message.split_external_local_origin_errors,
        interval: check.span(at("interval"), message.interval),
        base_ejection_time: check.span(at("baseEjectionTime"), message.base_ejection_time),
        max_ejection_percent,
        min_health_percent: message.min_health_percent,
    }
}

pub(crate) fn tls(message: api::ClientTlsSettings) -> Tls {
    use api::client_tls_settings::TlSmode as Api;
    Tls {
        mode: match Api::try_from(message.mode).unwrap_or(Api::Disable) {
            Api::Disable => TlsMode::Disable,
            Api::Simple => TlsMode::Simple,
            Api::Mutual => TlsMode::Mutual,
            Api::IstioMutual => TlsMode::IstioMutual,
        },
        client_certificate: message.client_certificate.into(),
        private_key: message.private_key.into(),
        ca_certificates: message.ca_certificates.into(),
        credential_name: message.credential_name.into(),
        subject_alt_names: (!message.subject_alt_names.is_empty()).then(|| names(message.subject_alt_names)),
        sni: message.sni.into(),
        insecure_skip_verify: message.insecure_skip_verify.unwrap_or(false),
        ca_crl: message.ca_crl.into(),
    }
}
