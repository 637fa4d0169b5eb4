//! Istio's environment variables that shape what proxies are sent.

use pilot_base::Name;
use pilot_cli::Env;
use pilot_model::{Features, JwksFetch};

pub(crate) fn features(env: &Env) -> Features {
    let default = Features::default();
    let text = |name: &str, default: Name| env.get(name).map_or(default, Name::new);
    Features {
        alpn_filter: env.flag("PILOT_ENABLE_ALPN_FILTER").unwrap_or(default.alpn_filter),
        metadata_exchange: env.flag("PILOT_ENABLE_METADATA_EXCHANGE").unwrap_or(default.metadata_exchange),
        disable_metadata_exchange_alpn: env
            .flag("PILOT_DISABLE_MX_ALPN")
            .unwrap_or(default.disable_metadata_exchange_alpn),
        http10: env.flag("PILOT_HTTP10").unwrap_or(default.http10),
        telemetry_label: env.flag("PILOT_ENABLE_TELEMETRY_LABEL").unwrap_or(default.telemetry_label),
        endpoint_telemetry_label: env
            .flag("PILOT_ENDPOINT_TELEMETRY_LABEL")
            .unwrap_or(default.endpoint_telemetry_label),
        trace_sampling: env.number("PILOT_TRACE_SAMPLING").unwrap_or(default.trace_sampling),
        use_remote_address: env
            .flag("PILOT_SIDECAR_USE_REMOTE_ADDRESS")
            .unwrap_or(default.use_remote_address),
        skip_validate_trust_domain: env
            .flag("PILOT_SKIP_VALIDATE_TRUST_DOMAIN")
            .unwrap_or(default.skip_validate_trust_domain),
        jwks_fetch: JwksFetch::parse(env.get("PILOT_JWT_ENABLE_REMOTE_JWKS").unwrap_or_default()),
        many_authz_providers: env
            .flag("PILOT_ENABLE_MULTIPLE_CUSTOM_AUTHZ_PROVIDERS")
            .unwrap_or(default.many_authz_providers),
        gateways_are_selected: env
            .flag("ENABLE_SELECTOR_BASED_K8S_GATEWAY_POLICY")
            .unwrap_or(default.gateways_are_selected),
        send_unhealthy_endpoints: env
            .flag("PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS")
            .unwrap_or(default.send_unhealthy_endpoints),
        dual_stack: env.flag("ISTIO_DUAL_STACK").unwrap_or(default.dual_stack),
        ip_autoallocate: env.flag("PILOT_ENABLE_IP_AUTOALLOCATE").unwrap_or(default.ip_autoallocate),
        dns_max_queries: env.number("PILOT_DNS_CARES_UDP_MAX_QUERIES").unwrap_or(default.dns_max_queries),
        dns_jitter: env.span("PILOT_DNS_JITTER_DURATION").unwrap_or(default.dns_jitter),
        locality_weighted: env
            .flag("ENABLE_LOCALITY_WEIGHTED_LB_CONFIG")
            .unwrap_or(default.locality_weighted),
        no_remaining_metrics: env
            .flag("DISABLE_TRACK_REMAINING_CB_METRICS")
            .unwrap_or(default.no_remaining_metrics),
        force_unhealthy_endpoints: env
            .flag("PILOT_SEND_UNHEALTHY_ENDPOINTS")
            .unwrap_or(default.force_unhealthy_endpoints),
        eds_for_headless: env
            .flag("PILOT_ENABLE_EDS_FOR_HEADLESS_SERVICES")
            .unwrap_or(default.eds_for_headless),
        persistent_session_label: text("PILOT_PERSISTENT_SESSION_LABEL", default.persistent_session_label),
        persistent_session_header_label: text(
            "PILOT_PERSISTENT_SESSION_HEADER_LABEL",
            default.persistent_session_header_label,
        ),
        draining_label: text("PILOT_DRAINING_LABEL", default.draining_label),
        canonical_external_services: env
            .flag("LABEL_CANONICAL_SERVICES_FOR_MESH_EXTERNAL_SERVICE_ENTRIES")
            .unwrap_or(default.canonical_external_services),
        prefer_rule_tls: env
            .flag("PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES")
            .unwrap_or(default.prefer_rule_tls),
        enhanced_rule_merge: env
            .flag("ENABLE_ENHANCED_DESTINATIONRULE_MERGE")
            .unwrap_or(default.enhanced_rule_merge),
        redis_filter: env.flag("PILOT_ENABLE_REDIS_FILTER").unwrap_or(default.redis_filter),
        continue_headers: env.flag("ENABLE_100_CONTINUE_HEADERS").unwrap_or(default.continue_headers),
        absolute_fqdn: env.flag("PILOT_ENABLE_ABSOLUTE_FQDN_VHOST_DOMAIN").unwrap_or(default.absolute_fqdn),
        max_connections_per_event: env
            .number("MAX_CONNECTIONS_PER_SOCKET_EVENT_LOOP")
            .unwrap_or(default.max_connections_per_event),
        scope_gateway_to_namespace: env
            .flag("PILOT_SCOPE_GATEWAY_TO_NAMESPACE")
            .unwrap_or(default.scope_gateway_to_namespace),
        route_collapse: env
            .flag("PILOT_ENABLE_ROUTE_COLLAPSE_OPTIMIZATION")
            .unwrap_or(default.route_collapse),
        quic_listeners: env.flag("PILOT_ENABLE_QUIC_LISTENERS").unwrap_or(default.quic_listeners),
        transport_connect_timeout: env
            .span("PILOT_GATEWAY_TRANSPORT_SOCKET_CONNECT_TIMEOUT")
            .unwrap_or(default.transport_connect_timeout),
    }
}

#[cfg(test)]
mod tests {
    use super::features;
    use pilot_cli::Env;
    use pilot_model::Features;

    #[test]
    fn switches_are_read_and_bad_ones_change_nothing() {
        assert_eq!(features(&Env::from([])), Features::default());
        assert!(!features(&Env::from([("PILOT_ENABLE_ALPN_FILTER", "false")])).alpn_filter);
        assert_eq!(features(&Env::from([("PILOT_TRACE_SAMPLING", "12.5")])).trace_sampling, 12.5);
        let bad = Env::from([("PILOT_ENABLE_ALPN_FILTER", "maybe"), ("PILOT_HTTP10", "")]);
        assert_eq!(features(&bad), Features::default());
    }
}
