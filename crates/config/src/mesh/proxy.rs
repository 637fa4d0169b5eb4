//! The settings of a proxy: those the mesh has for all, and those one sends about itself.

use pilot_api::mesh as api;
use pilot_base::Name;
use pilot_model::{
    CertDetails, ConnectionSettings, EscapedSlashes, ForwardClientCert, GatewayTopology, Number,
    PrivateKeyKind, PrivateKeyProvider, ProxyConfig, ProxyHeaders, ProxyTracing, ServerHeader, TraceTag,
    Underscores,
};

use crate::check::Check;

pub(super) fn proxy_config(message: api::ProxyConfig, path: &str, check: &mut Check<'_>) -> ProxyConfig {
    addresses(&message, path, check);
    if message.proxy_metadata.contains_key("ISTIO_META_DNS_AUTO_ALLOCATE") {
        check.warn(
            format!("{path}.proxyMetadata"),
            "ISTIO_META_DNS_AUTO_ALLOCATE is deprecated: addresses are allocated by the server now",
        );
    }
    let topology = message.gateway_topology.as_ref();
    ProxyConfig {
        tracing: message.tracing.map(|t| tracing(t, &format!("{path}.tracing"), check)).unwrap_or_default(),
        headers: message.proxy_headers.map(|h| proxy_headers(&h)).unwrap_or_default(),
        connection_settings: message
            .connection_settings
            .map(|c| connection_settings(&c, &format!("{path}.connectionSettings"), check)),
        topology: topology.map_or_else(GatewayTopology::default, |t| GatewayTopology {
            num_trusted_proxies: t.num_trusted_proxies,
            forward_client_cert: forward_client_cert(t.forward_client_cert_details),
            proxy_protocol: t.proxy_protocol.is_some(),
        }),
        metadata: message.proxy_metadata.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
        private_key_provider: message
            .private_key_provider
            .and_then(|p| private_key_provider(&p, &format!("{path}.privateKeyProvider"), check)),
        readiness_probe: message.readiness_probe.is_some(),
    }
}

/// Places that the proxy itself will call.
fn addresses(message: &api::ProxyConfig, path: &str, check: &mut Check<'_>) {
    let mut address = |field: &str, text: &str| {
        if !text.is_empty() && !is_address(text) {
            check.reject(format!("{path}.{field}"), format!("{text:?} is not of the form host:port"));
        }
    };
    address("discoveryAddress", &message.discovery_address);
    address("statsdUdpAddress", &message.statsd_udp_address);
    address("envoyMetricsServiceAddress", &message.envoy_metrics_service_address);
    let service = |service: &Option<api::RemoteService>| {
        service.as_ref().map(|service| service.address.clone()).unwrap_or_default()
    };
    address("envoyMetricsService.address", &service(&message.envoy_metrics_service));
    address("envoyAccessLogService.address", &service(&message.envoy_access_log_service));
    let tracer = message.tracing.as_ref().and_then(|tracing| tracing.tracer.as_ref());
    match tracer {
        Some(api::tracing::Tracer::Zipkin(zipkin)) => address("tracing.zipkin.address", &zipkin.address),
        Some(api::tracing::Tracer::Datadog(datadog)) => address("tracing.datadog.address", &datadog.address),
        Some(api::tracing::Tracer::Lightstep(lightstep)) => {
            address("tracing.lightstep.address", &lightstep.address);
        }
        _ => (),
    }
    let ports = [("proxyAdminPort", message.proxy_admin_port), ("statusPort", message.status_port)];
    for (field, port) in ports {
        if !(0..=65535).contains(&port) {
            check.reject(format!("{path}.{field}"), format!("{port} is not a port"));
        }
    }
}

fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let known_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    known_port && (crate::check::is_host_name(host) || host.parse::<std::net::IpAddr>().is_ok())
}

fn tracing(message: api::Tracing, path: &str, check: &mut Check<'_>) -> ProxyTracing {
    use api::tracing::custom_tag::Type;
    let mut tags = std::collections::BTreeMap::new();
    for (name, tag) in message.custom_tags {
        let value = match tag.r#type {
            Some(Type::Literal(literal)) => TraceTag::Literal(literal.value.into()),
            Some(Type::Environment(variable)) => {
                TraceTag::Environment { name: variable.name.into(), default: variable.default_value.into() }
            }
            Some(Type::Header(header)) => {
                TraceTag::Header { name: header.name.into(), default: header.default_value.into() }
            }
            None => {
                check.leave_out(
                    format!("{path}.customTags.{name}"),
                    "has no value: it needs one of literal, environment and header",
                );
                continue;
            }
        };
        tags.insert(Name::from(name), value);
    }
    ProxyTracing {
        // More than all is a mistake that has always been read as one percent.
        sampling: (message.sampling != 0.0).then_some(Number(if message.sampling > 100.0 {
            1.0
        } else {
            message.sampling
        })),
        max_path_tag_length: message.max_path_tag_length,
        istio_tags: message.enable_istio_tags,
        custom_tags: tags,
    }
}

fn private_key_provider(
    message: &api::PrivateKeyProvider,
    path: &str,
    check: &mut Check<'_>,
) -> Option<PrivateKeyProvider> {
    use api::private_key_provider::Provider;
    let (kind, field, delay, fallback) = match message.provider.as_ref() {
        Some(Provider::Cryptomb(c)) => (PrivateKeyKind::CryptoMb, "cryptomb", c.poll_delay, c.fallback),
        Some(Provider::Qat(q)) => (PrivateKeyKind::Qat, "qat", q.poll_delay, q.fallback),
        None => {
            check.reject(path, "needs one of cryptomb and qat");
            return None;
        }
    };
    let path = format!("{path}.{field}.pollDelay");
    match check.span(&path, delay) {
        Some(poll_delay) if !poll_delay.is_zero() => Some(PrivateKeyProvider { kind, poll_delay, fallback }),
        _ => {
            check.reject(path, "is needed, and must be more than nothing");
            None
        }
    }
}

fn connection_settings(
    message: &api::proxy_config::ConnectionSettings,
    path: &str,
    check: &mut Check<'_>,
) -> ConnectionSettings {
    use api::proxy_config::connection_settings::{
        HeadersWithUnderscoresAction as Headers, PathWithEscapedSlashesAction as Paths, Profile,
    };
    let mut number = |field: &str, value: Option<i32>, least: i32| {
        let value = value?;
        if value < least {
            check.reject(format!("{path}.{field}"), format!("must be at least {least}"));
        }
        u32::try_from(value).ok()
    };
    // A window is at least what the protocol begins with.
    let listener_buffer_limit = number(
        "listenerPerConnectionBufferLimitBytes",
        message.listener_per_connection_buffer_limit_bytes,
        0,
    );
    let cluster_buffer_limit =
        number("clusterPerConnectionBufferLimitBytes", message.cluster_per_connection_buffer_limit_bytes, 0);
    let max_concurrent_streams = number("httpMaxConcurrentStreams", message.http_max_concurrent_streams, 1);
    let stream_window =
        number("http2InitialStreamWindowSize", message.http2_initial_stream_window_size, 65535);
    let connection_window =
        number("http2InitialConnectionWindowSize", message.http2_initial_connection_window_size, 65535);
    number("listenerConnectionLimit", message.listener_connection_limit, 1);
    number("globalDownstreamConnectionLimit", message.global_downstream_connection_limit, 1);
    let mut span = |field: &str, value| check.span(format!("{path}.{field}"), value);
    ConnectionSettings {
        edge: message.profile == Profile::Edge as i32,
        listener_buffer_limit,
        cluster_buffer_limit,
        idle_timeout: span("httpIdleTimeout", message.http_idle_timeout),
        max_connection_duration: span("httpMaxConnectionDuration", message.http_max_connection_duration),
        drain_timeout: span("httpDrainTimeout", message.http_drain_timeout),
        request_timeout: span("httpRequestTimeout", message.http_request_timeout),
        request_headers_timeout: span("httpRequestHeadersTimeout", message.http_request_headers_timeout),
        stream_idle_timeout: span("httpStreamIdleTimeout", message.http_stream_idle_timeout),
        max_stream_duration: span("httpMaxStreamDuration", message.http_max_stream_duration),
        max_concurrent_streams,
        stream_window,
        connection_window,
        underscores: match Headers::try_from(message.http_headers_with_underscores_action) {
            Ok(Headers::HeadersWithUnderscoresAllow) => Some(Underscores::Allow),
            Ok(Headers::HeadersWithUnderscoresRejectRequest) => Some(Underscores::RejectRequest),
            Ok(Headers::HeadersWithUnderscoresDropHeader) => Some(Underscores::DropHeader),
            _ => None,
        },
        merge_slashes: message.http_merge_slashes,
        escaped_slashes: match Paths::try_from(message.http_path_with_escaped_slashes_action) {
            Ok(Paths::KeepUnchanged) => Some(EscapedSlashes::KeepUnchanged),
            Ok(Paths::RejectRequest) => Some(EscapedSlashes::RejectRequest),
            Ok(Paths::UnescapeAndRedirect) => Some(EscapedSlashes::UnescapeAndRedirect),
            Ok(Paths::UnescapeAndForward) => Some(EscapedSlashes::UnescapeAndForward),
            _ => None,
        },
    }
}

fn forward_client_cert(details: i32) -> Option<ForwardClientCert> {
    use api::ForwardClientCertDetails as Cert;
    match Cert::try_from(details).unwrap_or(Cert::Undefined) {
        Cert::Undefined => None,
        Cert::Sanitize => Some(ForwardClientCert::Sanitize),
        Cert::ForwardOnly => Some(ForwardClientCert::ForwardOnly),
        Cert::AppendForward => Some(ForwardClientCert::AppendForward),
        Cert::SanitizeSet => Some(ForwardClientCert::SanitizeSet),
        Cert::AlwaysForwardOnly => Some(ForwardClientCert::AlwaysForwardOnly),
    }
}

fn proxy_headers(message: &api::proxy_config::ProxyHeaders) -> ProxyHeaders {
    use api::proxy_config::proxy_headers::MetadataExchangeMode;
    let on = |flag: Option<bool>| flag.unwrap_or(false);
    let details = message.set_current_client_cert_details.as_ref();
    ProxyHeaders {
        forwarded_client_cert: forward_client_cert(message.forwarded_client_cert),
        cert_details: details.map_or_else(CertDetails::default, |d| CertDetails {
            subject: d.subject,
            cert: d.cert,
            chain: d.chain,
            dns: d.dns,
            uri: d.uri,
        }),
        server: match &message.server {
            Some(server) if on(server.disabled) => ServerHeader::Untouched,
            Some(server) if !server.value.is_empty() => ServerHeader::Value(Name::new(&server.value)),
            _ => ServerHeader::Default,
        },
        no_request_id: message.request_id.as_ref().is_some_and(|h| on(h.disabled)),
        no_attempt_count: message.attempt_count.as_ref().is_some_and(|h| on(h.disabled)),
        no_envoy_debug_headers: message.envoy_debug_headers.as_ref().is_some_and(|h| on(h.disabled)),
        no_metadata_headers: message
            .metadata_exchange_headers
            .as_ref()
            .is_some_and(|h| h.mode == MetadataExchangeMode::InMesh as i32),
        preserve_case: on(message.preserve_http1_header_case),
        x_forwarded_host: message.x_forwarded_host.as_ref().is_some_and(|h| on(h.enabled)),
        x_forwarded_port: message.x_forwarded_port.as_ref().is_some_and(|h| on(h.enabled)),
    }
}
