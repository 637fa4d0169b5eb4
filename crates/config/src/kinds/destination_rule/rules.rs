//! What must hold in a DestinationRule, whatever becomes of it.

use std::collections::BTreeSet;

use pilot_api::Duration;
use pilot_api::networking as api;

use super::locality;
use crate::check::{Check, Exported, is_host_name, is_label, is_wildcard_host};

pub(super) fn check(rule: &api::DestinationRule, check: &mut Check<'_>) {
    if rule.host.is_empty() {
        check.reject("spec.host", "is missing: say which host the rule is for");
    } else if !is_wildcard_host(&rule.host) {
        check.reject("spec.host", format!("{:?} is not a host name", rule.host));
    }
    if let Some(policy) = &rule.traffic_policy {
        traffic_policy(policy, "spec.trafficPolicy", check);
    }
    let mut seen = BTreeSet::new();
    for (i, subset) in rule.subsets.iter().enumerate() {
        let path = format!("spec.subsets[{i}]");
        if subset.name.is_empty() {
            check.reject(format!("{path}.name"), "is missing");
        } else if !is_label(&subset.name) {
            check.reject(format!("{path}.name"), format!("{:?} cannot be a name", subset.name));
        } else if !seen.insert(&subset.name) {
            check.reject(format!("{path}.name"), format!("{:?} is given twice", subset.name));
        }
        check.label_map(&format!("{path}.labels"), &subset.labels);
        if let Some(policy) = &subset.traffic_policy {
            traffic_policy(policy, &format!("{path}.trafficPolicy"), check);
        }
    }
    let selector = rule.workload_selector.as_ref();
    let what = if selector.is_some() { Exported::SelectiveRule } else { Exported::Rule };
    check.export_to(&rule.export_to, what);
    if let Some(selector) = selector {
        check.selector_map("spec.workloadSelector.matchLabels", &selector.match_labels);
        if selector.match_labels.is_empty() {
            check.warn("spec.workloadSelector", "has no labels and selects every workload");
        }
    }
}

fn traffic_policy(policy: &api::TrafficPolicy, path: &str, check: &mut Check<'_>) {
    let at = |field: &str| format!("{path}.{field}");
    let said = policy.outlier_detection.is_some()
        || policy.connection_pool.is_some()
        || policy.load_balancer.is_some()
        || policy.tls.is_some()
        || !policy.port_level_settings.is_empty()
        || policy.tunnel.is_some()
        || policy.proxy_protocol.is_some()
        || policy.retry_budget.is_some();
    if !said {
        check.reject(path, "says nothing: leave it out or give it a field");
    }
    if policy.tunnel.is_some() && policy.proxy_protocol.is_some() {
        check.reject(path, "tunnel and proxyProtocol exclude each other");
    }
    common(&Parts::of(policy), path, check);
    for (i, port) in policy.port_level_settings.iter().enumerate() {
        let path = format!("{path}.portLevelSettings[{i}]");
        if port.port.is_none() {
            check.reject(format!("{path}.port"), "is missing: say which port this is for");
        }
        let parts = Parts {
            load_balancer: port.load_balancer.as_ref(),
            connection_pool: port.connection_pool.as_ref(),
            outlier_detection: port.outlier_detection.as_ref(),
            tls: port.tls.as_ref(),
        };
        if parts.is_empty() {
            check.reject(&path, "says nothing about the port: leave it out or give it a field");
        }
        common(&parts, &path, check);
    }
    if let Some(tunnel) = &policy.tunnel {
        if !matches!(tunnel.protocol.as_str(), "" | "CONNECT" | "POST") {
            check.reject(at("tunnel.protocol"), "is neither CONNECT nor POST");
        }
        if !is_host_name(&tunnel.target_host) && tunnel.target_host.parse::<std::net::IpAddr>().is_err() {
            check.reject(at("tunnel.targetHost"), "is neither a host name nor an IP address");
        }
    }
    if let Some(percent) = policy.retry_budget.as_ref().and_then(|budget| budget.percent)
        && !(0.0..=100.0).contains(&percent)
    {
        check.reject(at("retryBudget.percent"), "is not between 0 and 100");
    }
}

/// What can be said for all ports and for one.
struct Parts<'a> {
    load_balancer: Option<&'a api::LoadBalancerSettings>,
    connection_pool: Option<&'a api::ConnectionPoolSettings>,
    outlier_detection: Option<&'a api::OutlierDetection>,
    tls: Option<&'a api::ClientTlsSettings>,
}

impl<'a> Parts<'a> {
    fn of(policy: &'a api::TrafficPolicy) -> Self {
        Self {
            load_balancer: policy.load_balancer.as_ref(),
            connection_pool: policy.connection_pool.as_ref(),
            outlier_detection: policy.outlier_detection.as_ref(),
            tls: policy.tls.as_ref(),
        }
    }

    fn is_empty(&self) -> bool {
        self.load_balancer.is_none()
            && self.connection_pool.is_none()
            && self.outlier_detection.is_none()
            && self.tls.is_none()
    }
}

fn common(parts: &Parts<'_>, path: &str, check: &mut Check<'_>) {
    let at = |field: &str| format!("{path}.{field}");
    if let Some(outlier) = parts.outlier_detection {
        outlier_detection(outlier, &at("outlierDetection"), check);
    }
    if let Some(pool) = parts.connection_pool {
        connection_pool(pool, &at("connectionPool"), check);
    }
    if let Some(lb) = parts.load_balancer {
        load_balancer(lb, parts.outlier_detection, &at("loadBalancer"), check);
    }
    if let Some(settings) = parts.tls {
        tls(settings, &at("tls"), check);
    }
}

fn outlier_detection(outlier: &api::OutlierDetection, path: &str, check: &mut Check<'_>) {
    let at = |field: &str| format!("{path}.{field}");
    check.whole_millis(at("baseEjectionTime"), outlier.base_ejection_time);
    check.whole_millis(at("interval"), outlier.interval);
    if outlier.consecutive_errors != 0 {
        check.warn(
            at("consecutiveErrors"),
            "is deprecated and has no effect: use consecutiveGatewayErrors or consecutive5xxErrors",
        );
    }
    let local = outlier.consecutive_local_origin_failures.unwrap_or(0) > 0;
    if local && !outlier.split_external_local_origin_errors {
        check.reject(
            at("consecutiveLocalOriginFailures"),
            "counts only with splitExternalLocalOriginErrors: true",
        );
    }
}

fn connection_pool(pool: &api::ConnectionPoolSettings, path: &str, check: &mut Check<'_>) {
    use api::connection_pool_settings::http_settings::H2UpgradePolicy;
    let at = |field: &str| format!("{path}.{field}");
    if pool.http.is_none() && pool.tcp.is_none() {
        check.reject(path, "says nothing: leave it out or give it a field");
    }
    if let Some(http) = &pool.http {
        check.whole_millis(at("http.idleTimeout"), http.idle_timeout);
        let upgrades = http.h2_upgrade_policy == H2UpgradePolicy::Upgrade as i32;
        if upgrades && http.use_client_protocol {
            check.reject(at("http.useClientProtocol"), "cannot be true where h2UpgradePolicy is UPGRADE");
        }
        if let Some(keepalive) = &http.http2_keep_alive {
            for (field, span) in [("interval", keepalive.interval), ("timeout", keepalive.timeout)] {
                let path = at(&format!("http.http2KeepAlive.{field}"));
                if span.is_none() {
                    check.reject(&path, "is missing");
                }
                check.whole_millis(path, span);
            }
        }
    }
    if let Some(tcp) = &pool.tcp {
        check.whole_millis(at("tcp.connectTimeout"), tcp.connect_timeout);
        check.whole_millis(at("tcp.maxConnectionDuration"), tcp.max_connection_duration);
        // Zero switches it off.
        let is_zero = |span: &Duration| span.seconds == 0 && span.nanos.abs() < 1_000_000;
        check.whole_millis(at("tcp.idleTimeout"), tcp.idle_timeout.filter(|span| !is_zero(span)));
        if let Some(keepalive) = &tcp.tcp_keepalive {
            check.whole_millis(at("tcp.tcpKeepalive.time"), keepalive.time);
            check.whole_millis(at("tcp.tcpKeepalive.interval"), keepalive.interval);
        }
    }
}

fn load_balancer(
    lb: &api::LoadBalancerSettings,
    outlier: Option<&api::OutlierDetection>,
    path: &str,
    check: &mut Check<'_>,
) {
    use api::load_balancer_settings::LbPolicy;
    let at = |field: &str| format!("{path}.{field}");
    if let Some(LbPolicy::ConsistentHash(hash)) = &lb.lb_policy {
        consistent_hash(hash, &at("consistentHash"), check);
    }
    if lb.locality_lb_setting.is_some() && lb.zone_aware_lb_setting.is_some() {
        check.reject(path, "localityLbSetting and zoneAwareLbSetting exclude each other");
    }
    if let Some(setting) = &lb.locality_lb_setting {
        locality::check(setting, outlier, &at("localityLbSetting"), check);
    }
    if let Some(setting) = &lb.zone_aware_lb_setting {
        locality::check_zone_aware(setting, outlier, &at("zoneAwareLbSetting"), check);
    }
    if let Some(warmup) = &lb.warmup {
        if warmup.duration.is_none() {
            check.reject(at("warmup.duration"), "is missing");
        }
        check.whole_millis(at("warmup.duration"), warmup.duration);
        if warmup.minimum_percent.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
            check.reject(at("warmup.minimumPercent"), "is not between 0 and 100");
        }
        if warmup.aggression.is_some_and(|aggression| aggression <= 0.0) {
            check.reject(at("warmup.aggression"), "must be more than 0");
        }
    }
}

fn consistent_hash(hash: &api::load_balancer_settings::ConsistentHashLb, path: &str, check: &mut Check<'_>) {
    use api::load_balancer_settings::consistent_hash_lb::{HashAlgorithm, HashKey};
    let at = |field: &str| format!("{path}.{field}");
    if let Some(HashKey::HttpCookie(cookie)) = &hash.hash_key {
        if cookie.name.is_empty() {
            check.reject(at("httpCookie.name"), "is missing");
        }
        let mut seen = BTreeSet::new();
        for (i, attribute) in cookie.attributes.iter().enumerate() {
            let path = at(&format!("httpCookie.attributes[{i}].name"));
            if attribute.name.is_empty() {
                check.reject(path, "is missing");
            } else if !seen.insert(&attribute.name) {
                check.reject(path, format!("{:?} is given twice", attribute.name));
            }
        }
    }
    if hash.minimum_ring_size != 0 {
        check.warn(at("minimumRingSize"), "is deprecated: use ringHash.minimumRingSize");
        if hash.hash_algorithm.is_some() {
            check.reject(at("minimumRingSize"), "cannot be given beside ringHash or maglev");
        }
    }
    if let Some(HashAlgorithm::Maglev(maglev)) = &hash.hash_algorithm {
        let path = at("maglev.tableSize");
        match maglev.table_size {
            0 => check.reject(path, "is missing"),
            size if size >= 5_000_011 => check.reject(path, "must be less than 5000011"),
            size if !is_prime(size) => check.reject(path, format!("{size} is not a prime number")),
            _ => (),
        }
    }
}

fn is_prime(number: u64) -> bool {
    number > 1
        && (2..).take_while(|factor| factor * factor <= number).all(|factor| !number.is_multiple_of(factor))
}

fn tls(settings: &api::ClientTlsSettings, path: &str, check: &mut Check<'_>) {
    use api::client_tls_settings::TlSmode as Mode;
    let at = |field: &str| format!("{path}.{field}");
    let mode = Mode::try_from(settings.mode).unwrap_or(Mode::Disable);
    let by_name = !settings.credential_name.is_empty();
    if let Some(rest) = settings.credential_name.strip_prefix("configmap://") {
        let own = check.object().namespace.to_string();
        let namespace = rest.split_once('/').map_or(own.as_str(), |(namespace, _)| namespace);
        if namespace != own || own.is_empty() {
            check.reject(at("credentialName"), format!("a ConfigMap must be of the namespace {own:?}"));
        }
    }
    let names = !settings.subject_alt_names.is_empty();
    let authority = !settings.ca_certificates.is_empty();
    if settings.insecure_skip_verify.unwrap_or(false) {
        let useless = match mode {
            Mode::Simple => authority || by_name || names,
            Mode::Mutual => authority || names,
            Mode::Disable | Mode::IstioMutual => false,
        };
        if useless {
            check.reject(
                at("insecureSkipVerify"),
                "verifies nobody: caCertificates, subjectAltNames and, with SIMPLE, credentialName cannot be given",
            );
        }
    }
    if by_name && matches!(mode, Mode::Simple | Mode::Mutual) {
        let files = [
            &settings.client_certificate,
            &settings.ca_certificates,
            &settings.private_key,
            &settings.ca_crl,
        ];
        if files.iter().any(|file| !file.is_empty()) {
            check.reject(
                at("credentialName"),
                "names a secret with everything: files cannot be given beside it",
            );
        }
        return;
    }
    if mode == Mode::Mutual {
        for (field, file) in
            [("clientCertificate", &settings.client_certificate), ("privateKey", &settings.private_key)]
        {
            if file.is_empty() {
                check.reject(at(field), "is missing: mutual TLS needs it");
            }
        }
    }
}
