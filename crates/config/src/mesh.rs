//! The mesh's own settings, and those of a proxy. Neither is an object: both come from a file, a ConfigMap or a proxy.

use pilot_api::mesh as api;
use pilot_base::{Issue, Name, ObjectRef};
use pilot_model::{
    AccessLog, AccessLogEncoding, CertDetails, ExportTo, ForwardClientCert, H2UpgradePolicy, InboundPolicy,
    MeshConfig, OutboundMode, OutboundTrafficPolicy, PathNormalization, ProxyConfig, ProxyHeaders,
    ServerHeader, TracingConfig,
};

use crate::check::{Check, names};
use crate::kinds::destination_rule::{keepalive, locality_lb};
use crate::kinds::virtual_service::retries;
use crate::yaml::{self, Node, Value};
use crate::{de, yaml_issue};

/// Reads a mesh configuration. What is not said has Istio's default. A text that cannot be read changes nothing.
pub fn read_mesh_config(text: &str, file: &str) -> Result<(MeshConfig, Vec<Issue>), Issue> {
    let object = ObjectRef::new("MeshConfig", Name::empty(), file);
    let documents = yaml::parse(text).map_err(|error| yaml_issue(&object, file, &error))?;
    let empty = Node { line: 1, value: Value::Map(Vec::new()) };
    let node = documents.first().unwrap_or(&empty);
    let mut check = Check::new(object.clone(), node, file);
    let typed = de::read::<api::MeshConfig>(node, "").map_err(|error| {
        Issue::error(object, error.path, error.message).at(format!("{file}:{}", error.line))
    })?;
    for unknown in typed.unknown {
        check.warn(unknown.path, "is not a field of the mesh configuration and has no effect");
    }
    let mesh = mesh_config(typed.value, node, &mut check);
    Ok((mesh, check.into_issues()))
}

fn mesh_config(message: api::MeshConfig, node: &Node<'_>, check: &mut Check<'_>) -> MeshConfig {
    let default = MeshConfig::default();
    // A number in a message does not tell whether it was written; the tree does.
    let said = |field: &str| node.get(field).is_some_and(|node| node.value != Value::Null);
    let port = |field: &str, value: i32, default: u16| {
        if said(field) { u16::try_from(value).unwrap_or(default) } else { default }
    };
    let export = |list: &[String], default: &ExportTo| {
        if list.is_empty() { default.clone() } else { ExportTo::parse(list.iter().map(String::as_str)) }
    };
    let text =
        |value: &str, default: &Name| if value.is_empty() { default.clone() } else { Name::new(value) };
    MeshConfig {
        root_namespace: text(&message.root_namespace, &default.root_namespace),
        trust_domain: text(&message.trust_domain, &default.trust_domain),
        proxy_listen_port: port("proxyListenPort", message.proxy_listen_port, default.proxy_listen_port),
        proxy_inbound_listen_port: port(
            "proxyInboundListenPort",
            message.proxy_inbound_listen_port,
            default.proxy_inbound_listen_port,
        ),
        proxy_http_port: port("proxyHttpPort", message.proxy_http_port, 0),
        connect_timeout: check
            .span("connectTimeout", message.connect_timeout)
            .unwrap_or(default.connect_timeout),
        protocol_detection_timeout: match message.protocol_detection_timeout {
            None => default.protocol_detection_timeout,
            timeout => check.span("protocolDetectionTimeout", timeout),
        },
        tcp_keepalive: message.tcp_keepalive.as_ref().map(|k| keepalive(k, "tcpKeepalive", check)),
        outbound: outbound(&message),
        inbound: inbound(&message),
        auto_mtls: message.enable_auto_mtls.unwrap_or(default.auto_mtls),
        tracing: if said("enableTracing") { message.enable_tracing } else { default.tracing },
        access_log: access_log(&message),
        access_log_service: message.enable_envoy_access_log_service,
        listener_access_log: !message.disable_envoy_listener_log,
        metrics: has_metrics(&message),
        h2_upgrade: if message.h2_upgrade_policy == api::mesh_config::H2UpgradePolicy::Upgrade as i32 {
            H2UpgradePolicy::Upgrade
        } else {
            H2UpgradePolicy::Default
        },
        path_normalization: path_normalization(&message),
        service_export_to: export(&message.default_service_export_to, &default.service_export_to),
        virtual_service_export_to: export(
            &message.default_virtual_service_export_to,
            &default.virtual_service_export_to,
        ),
        destination_rule_export_to: export(
            &message.default_destination_rule_export_to,
            &default.destination_rule_export_to,
        ),
        locality: message.locality_lb_setting.map(locality_lb).or(default.locality),
        retries: message.default_http_retry_policy.map(|r| retries(r, "defaultHttpRetryPolicy", check)),
        inbound_cluster_stat_name: message.inbound_cluster_stat_name.into(),
        outbound_cluster_stat_name: message.outbound_cluster_stat_name.into(),
        trust_domain_aliases: names(message.trust_domain_aliases),
        default_config: message.default_config.map(proxy_config).unwrap_or_default(),
    }
}

fn outbound(message: &api::MeshConfig) -> OutboundTrafficPolicy {
    use api::mesh_config::outbound_traffic_policy::Mode;
    let mode = message.outbound_traffic_policy.as_ref().map(|policy| policy.mode);
    let mode = match mode.map(|mode| Mode::try_from(mode).unwrap_or(Mode::RegistryOnly)) {
        None | Some(Mode::AllowAny) => OutboundMode::AllowAny,
        Some(Mode::RegistryOnly) => OutboundMode::RegistryOnly,
        Some(_) => OutboundMode::AllowAnyDynamicDns,
    };
    OutboundTrafficPolicy { mode, egress_proxy: None }
}

fn inbound(message: &api::MeshConfig) -> InboundPolicy {
    use api::mesh_config::inbound_traffic_policy::Mode;
    match message.inbound_traffic_policy.as_ref().map(|policy| policy.mode) {
        Some(mode) if mode == Mode::Localhost as i32 => InboundPolicy::Localhost,
        _ => InboundPolicy::Passthrough,
    }
}

fn access_log(message: &api::MeshConfig) -> Option<AccessLog> {
    let json = message.access_log_encoding == api::mesh_config::AccessLogEncoding::Json as i32;
    (!message.access_log_file.is_empty()).then(|| AccessLog {
        path: Name::new(&message.access_log_file),
        format: Name::new(&message.access_log_format),
        encoding: if json { AccessLogEncoding::Json } else { AccessLogEncoding::Text },
    })
}

/// `prometheus` is a provider that everyone has, unless somebody gave the name to another.
fn has_metrics(message: &api::MeshConfig) -> bool {
    use api::mesh_config::extension_provider::Provider;
    let wanted =
        message.default_providers.as_ref().map(|providers| &providers.metrics[..]).unwrap_or_default();
    wanted.iter().any(|name| match message.extension_providers.iter().find(|p| p.name == *name) {
        Some(provider) => matches!(provider.provider, Some(Provider::Prometheus(_))),
        None => name == "prometheus",
    })
}

fn path_normalization(message: &api::MeshConfig) -> PathNormalization {
    use api::mesh_config::proxy_path_normalization::NormalizationType as Api;
    let kind = message.path_normalization.as_ref().map_or(0, |n| n.normalization);
    match Api::try_from(kind).unwrap_or(Api::Default) {
        Api::Default | Api::Base => PathNormalization::Base,
        Api::None => PathNormalization::None,
        Api::MergeSlashes => PathNormalization::MergeSlashes,
        Api::DecodeAndMergeSlashes => PathNormalization::DecodeAndMergeSlashes,
    }
}

/// Reads the settings that a proxy sends about itself. Fields nobody knows are no reason to refuse a proxy.
pub fn read_proxy_config(text: &str) -> Result<ProxyConfig, String> {
    let documents = yaml::parse(text).map_err(|error| error.message)?;
    let Some(node) = documents.first() else { return Ok(ProxyConfig::default()) };
    let typed = de::read::<api::ProxyConfig>(node, "")
        .map_err(|error| format!("{}: {}", error.path, error.message))?;
    Ok(proxy_config(typed.value))
}

fn proxy_config(message: api::ProxyConfig) -> ProxyConfig {
    ProxyConfig {
        tracing: message.tracing.map(tracing),
        headers: message.proxy_headers.map(|h| proxy_headers(&h)).unwrap_or_default(),
    }
}

fn tracing(message: api::Tracing) -> TracingConfig {
    use api::tracing::custom_tag::Type;
    let literals = message.custom_tags.into_iter().filter_map(|(tag, value)| match value.r#type {
        Some(Type::Literal(literal)) => Some((Name::from(tag), Name::from(literal.value))),
        _ => None,
    });
    TracingConfig {
        sampling: message.sampling,
        max_path_tag_length: message.max_path_tag_length,
        istio_tags: message.enable_istio_tags,
        literal_tags: literals.collect(),
    }
}

fn proxy_headers(message: &api::proxy_config::ProxyHeaders) -> ProxyHeaders {
    use api::ForwardClientCertDetails as Cert;
    use api::proxy_config::proxy_headers::MetadataExchangeMode;
    let on = |flag: Option<bool>| flag.unwrap_or(false);
    let details = message.set_current_client_cert_details.as_ref();
    ProxyHeaders {
        forwarded_client_cert: match Cert::try_from(message.forwarded_client_cert).unwrap_or(Cert::Undefined)
        {
            Cert::Undefined => None,
            Cert::Sanitize => Some(ForwardClientCert::Sanitize),
            Cert::ForwardOnly => Some(ForwardClientCert::ForwardOnly),
            Cert::AppendForward => Some(ForwardClientCert::AppendForward),
            Cert::SanitizeSet => Some(ForwardClientCert::SanitizeSet),
            Cert::AlwaysForwardOnly => Some(ForwardClientCert::AlwaysForwardOnly),
        },
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

#[cfg(test)]
mod tests {
    use super::{read_mesh_config, read_proxy_config};
    use pilot_model::{MeshConfig, OutboundMode};

    #[test]
    fn what_is_not_said_has_istios_default() {
        let (mesh, issues) = read_mesh_config("", "mesh").unwrap();
        assert_eq!(mesh, MeshConfig::default());
        assert!(issues.is_empty());
        let text = "proxyListenPort: 0\nenableTracing: false\noutboundTrafficPolicy: {mode: REGISTRY_ONLY}\nconnectTimeout: 2s\n";
        let (mesh, _) = read_mesh_config(text, "mesh").unwrap();
        assert_eq!((mesh.proxy_listen_port, mesh.tracing), (0, false));
        assert_eq!(mesh.outbound.mode, OutboundMode::RegistryOnly);
        assert_eq!(mesh.connect_timeout.as_secs(), 2);
        assert!(!mesh.metrics);
    }

    #[test]
    fn metrics_come_from_a_prometheus_provider() {
        let metrics = |text: &str| read_mesh_config(text, "mesh").unwrap().0.metrics;
        assert!(metrics("defaultProviders: {metrics: [prometheus]}"));
        assert!(metrics("defaultProviders: {metrics: [p]}\nextensionProviders: [{name: p, prometheus: {}}]"));
        assert!(!metrics("defaultProviders: {metrics: [p]}"));
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let error = read_mesh_config("rootNamespace: x\nconnectTimeout: soon\n", "mesh.yaml").unwrap_err();
        assert_eq!((error.path.as_str(), error.place.as_deref()), ("connectTimeout", Some("mesh.yaml:2")));
        let (_, issues) = read_mesh_config("rootNamespce: x\n", "mesh.yaml").unwrap();
        assert_eq!(issues[0].path, "rootNamespce");
    }

    #[test]
    fn a_proxy_may_send_what_we_do_not_know() {
        let config = read_proxy_config(r#"{"tracing":{"sampling":12.5},"newThing":{"a":1},"proxyHeaders":{"attemptCount":{"disabled":true}}}"#).unwrap();
        assert!(config.headers.no_attempt_count);
        assert!((config.tracing.unwrap().sampling - 12.5).abs() < f64::EPSILON);
        assert!(read_proxy_config("{\"concurrency\": \"many\"}").is_err());
    }
}
