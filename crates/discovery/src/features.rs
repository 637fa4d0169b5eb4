//! Istio's environment variables that shape what proxies are sent.

use std::time::Duration;

use pilot_base::{Cidr, Name};
use pilot_cli::Env;
use pilot_model::{Compliance, Features, JwksFetch};
use pilot_server::{Debounce, DebugOptions, KeyOptions};

const KEY_REFRESH: Duration = Duration::from_secs(20 * 60);
const DEBOUNCE_MAX: Duration = Duration::from_secs(10);

pub(crate) fn features(env: &Env) -> Features {
    let default = Features::default();
    let flag = |name: &str, default: bool| env.flag(name).unwrap_or(default);
    let number = |name: &str, default: u32| env.number(name).unwrap_or(default);
    let text = |name: &str, default: Name| env.get(name).map_or(default, Name::new);
    Features {
        alpn_filter: flag("PILOT_ENABLE_ALPN_FILTER", default.alpn_filter),
        metadata_exchange: flag("PILOT_ENABLE_METADATA_EXCHANGE", default.metadata_exchange),
        disable_metadata_exchange_alpn: flag("PILOT_DISABLE_MX_ALPN", default.disable_metadata_exchange_alpn),
        http10: flag("PILOT_HTTP10", default.http10),
        telemetry_label: flag("PILOT_ENABLE_TELEMETRY_LABEL", default.telemetry_label),
        endpoint_telemetry_label: flag("PILOT_ENDPOINT_TELEMETRY_LABEL", default.endpoint_telemetry_label),
        trace_sampling: env.number("PILOT_TRACE_SAMPLING").unwrap_or(default.trace_sampling),
        use_remote_address: flag("PILOT_SIDECAR_USE_REMOTE_ADDRESS", default.use_remote_address),
        skip_validate_trust_domain: flag(
            "PILOT_SKIP_VALIDATE_TRUST_DOMAIN",
            default.skip_validate_trust_domain,
        ),
        jwks_fetch: JwksFetch::parse(env.get("PILOT_JWT_ENABLE_REMOTE_JWKS").unwrap_or_default()),
        many_authz_providers: flag(
            "PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS",
            default.many_authz_providers,
        ),
        gateways_are_selected: flag(
            "ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY",
            default.gateways_are_selected,
        ),
        persistent_sessions: flag("PILOT_ENABLE_PERSISTENT_SESSION_FILTER", default.persistent_sessions),
        send_unhealthy_endpoints: flag(
            "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS",
            default.send_unhealthy_endpoints,
        ),
        dual_stack: flag("ISTIO_DUAL_STACK", default.dual_stack),
        ip_autoallocate: flag("PILOT_ENABLE_IP_AUTOALLOCATE", default.ip_autoallocate),
        dns_max_queries: env.number("PILOT_DNS_CARES_UDP_MAX_QUERIES").unwrap_or(default.dns_max_queries),
        dns_jitter: env.span("PILOT_DNS_JITTER_DURATION").unwrap_or(default.dns_jitter),
        locality_weighted: flag("ENABLE_LOCALITY_WEIGHTED_LB_CONFIG", default.locality_weighted),
        no_remaining_metrics: flag("DISABLE_TRACK_REMAINING_CB_METRICS", default.no_remaining_metrics),
        force_unhealthy_endpoints: flag("PILOT_SEND_UNHEALTHY_ENDPOINTS", default.force_unhealthy_endpoints),
        eds_for_headless: flag("PILOT_ENABLE_EDS_FOR_HEADLESS_SERVICES", default.eds_for_headless),
        persistent_session_label: text("PILOT_PERSISTENT_SESSION_LABEL", default.persistent_session_label),
        persistent_session_header_label: text(
            "PILOT_PERSISTENT_SESSION_HEADER_LABEL",
            default.persistent_session_header_label,
        ),
        draining_label: text("PILOT_DRAINING_LABEL", default.draining_label),
        canonical_external_services: flag(
            "LABEL_CANONICAL_SERVICES_FOR_MESH_EXTERNAL_SERVICE_ENTRIES",
            default.canonical_external_services,
        ),
        prefer_rule_tls: flag("PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES", default.prefer_rule_tls),
        enhanced_rule_merge: flag("ENABLE_ENHANCED_DESTINATIONRULE_MERGE", default.enhanced_rule_merge),
        redis_filter: flag("PILOT_ENABLE_REDIS_FILTER", default.redis_filter),
        continue_headers: flag("ENABLE_100_CONTINUE_HEADERS", default.continue_headers),
        absolute_fqdn: flag("PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN", default.absolute_fqdn),
        max_connections_per_event: env
            .number("MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP")
            .unwrap_or(default.max_connections_per_event),
        scope_gateway_to_namespace: flag(
            "PILOT_SCOPE_GATEWAY_TO_NAMESPACE",
            default.scope_gateway_to_namespace,
        ),
        route_collapse: flag("PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION", default.route_collapse),
        keep_shadow_host: flag("DISABLE_SHADOW_HOST_SUFFIX", default.keep_shadow_host),
        mongo_filter: flag("PILOT_ENABLE_MONGO_FILTER", default.mongo_filter),
        mysql_filter: flag("PILOT_ENABLE_MYSQL_FILTER", default.mysql_filter),
        merge_ingress: flag("PILOT_ALLOW_SIDECAR_SERVICE_INBOUND_LISTENER_MERGE", default.merge_ingress),
        ipv4_outbound_for_ipv6: flag(
            "ISTIO_ENABLE_IPV4_OUTBOUND_LISTENER_FOR_IPV6_CLUSTERS",
            default.ipv4_outbound_for_ipv6,
        ),
        quic_listeners: flag("PILOT_ENABLE_QUIC_LISTENERS", default.quic_listeners),
        ingress_tls: flag("ENABLE_TLS_ON_SIDECAR_INGRESS", default.ingress_tls),
        compliance: compliance(env),
        dynamic_dns_max_hosts: number("PILOT_ALLOW_ANY_DYNAMIC_DNS_MAX_HOSTS", default.dynamic_dns_max_hosts),
        transport_connect_timeout: env
            .span("PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT")
            .unwrap_or(default.transport_connect_timeout),
        on_demand_clusters: flag("PILOT_ENABLE_ON_DEMAND_CLUSTERS", default.on_demand_clusters),
        ..workload_features(env)
    }
}

/// Who is behind which service, and where.
fn workload_features(env: &Env) -> Features {
    let default = Features::default();
    let flag = |name: &str, default: bool| env.flag(name).unwrap_or(default);
    Features {
        entries_select_pods: flag("PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", default.entries_select_pods),
        services_select_entries: flag(
            "PILOT_ENABLE_K8S_SELECT_WORKLOAD_ENTRIES",
            default.services_select_entries,
        ),
        pods_by_address: flag("ENABLE_PROXY_FIND_POD_BY_IP", default.pods_by_address),
        multicluster_headless: flag("ENABLE_MULTICLUSTER_HEADLESS", default.multicluster_headless),
        resolve_gateways: flag("RESOLVE_HOSTNAME_GATEWAYS", default.resolve_gateways),
        ..default
    }
}

fn compliance(env: &Env) -> Option<Compliance> {
    let text = env.get("COMPLIANCE_POLICY")?;
    let policy = Compliance::parse(text);
    if policy.is_none() {
        tracing::warn!("COMPLIANCE_POLICY {text} has no effect; use fips-140-2, fips-140-3 or pqc");
    }
    policy
}

/// How long changes wait for others. Only who says how long makes them wait, unlike in istiod.
pub(crate) fn debounce(env: &Env) -> Option<Debounce> {
    let after = env.span("PILOT_DEBOUNCE_AFTER").filter(|after| !after.is_zero())?;
    let max = env.span("PILOT_DEBOUNCE_MAX").unwrap_or(DEBOUNCE_MAX);
    Some(Debounce { after, max, endpoints: env.flag("PILOT_ENABLE_EDS_DEBOUNCE").unwrap_or(true) })
}

/// How the keys of token issuers are fetched.
pub(crate) fn key_options(env: &Env) -> KeyOptions {
    let blocked = env.get("BLOCKED_CIDRS_IN_JWKS_URIS").unwrap_or_default();
    let block = |text: &str| {
        let block = Cidr::parse(text);
        if block.is_none() {
            tracing::warn!("BLOCKED_CIDRS_IN_JWKS_URIS: {text} is not a block such as 10.0.0.0/8");
        }
        block
    };
    KeyOptions {
        refresh: env.span("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL").unwrap_or(KEY_REFRESH),
        trust_anybody: env.flag("JWKS_RESOLVER_INSECURE_SKIP_VERIFY").unwrap_or(false),
        blocked: blocked
            .split(',')
            .map(str::trim)
            .filter(|text| !text.is_empty())
            .filter_map(block)
            .collect(),
    }
}

/// Who may look into the server.
pub(crate) fn debug(env: &Env) -> DebugOptions {
    let default = DebugOptions::default();
    let listed = env.get("DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES").unwrap_or_default();
    DebugOptions {
        on_http: env.flag("ENABLE_DEBUG_ON_HTTP").unwrap_or(default.on_http),
        auth: env.flag("ENABLE_DEBUG_ENDPOINT_AUTH").unwrap_or(default.auth),
        namespaces: listed.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Name::new).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{debounce, features};
    use pilot_cli::Env;
    use pilot_model::Features;

    #[test]
    fn switches_are_read_and_bad_ones_change_nothing() {
        assert_eq!(features(&Env::from([])), Features::default());
        assert!(!features(&Env::from([("PILOT_ENABLE_ALPN_FILTER", "false")])).alpn_filter);
        assert_eq!(features(&Env::from([("PILOT_TRACE_SAMPLING", "12.5")])).trace_sampling, 12.5);
        let apart = features(&Env::from([("PILOT_ENABLE_SERVICEENTRY_SELECT_PODS", "false")]));
        assert!(!apart.entries_select_pods && apart.services_select_entries);
        let bad = Env::from([("PILOT_ENABLE_ALPN_FILTER", "maybe"), ("PILOT_HTTP10", "")]);
        assert_eq!(features(&bad), Features::default());
    }

    #[test]
    fn changes_wait_only_if_somebody_says_how_long() {
        let read = |variables: &[(&str, &str)]| {
            let all = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            debounce(&Env::new(all.collect())).map(|d| (d.after.as_millis(), d.max.as_millis(), d.endpoints))
        };
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("PILOT_DEBOUNCE_MAX", "3s")]), None, "nothing waits, so nothing waits too long");
        assert_eq!(read(&[("PILOT_DEBOUNCE_AFTER", "0s")]), None);
        assert_eq!(read(&[("PILOT_DEBOUNCE_AFTER", "soon")]), None);
        assert_eq!(read(&[("PILOT_DEBOUNCE_AFTER", "50ms")]), Some((50, 10_000, true)));
        let all = [
            ("PILOT_DEBOUNCE_AFTER", "1s"),
            ("PILOT_DEBOUNCE_MAX", "2s"),
            ("PILOT_ENABLE_EDS_DEBOUNCE", "false"),
        ];
        assert_eq!(read(&all), Some((1000, 2000, false)));
    }
}
