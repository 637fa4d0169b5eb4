//! The mesh's own settings, and those of a proxy. Neither is an object: both come from a file, a ConfigMap or a proxy.

mod layers;
mod providers;
mod proxy;

use pilot_api::mesh as api;
use pilot_base::{Host, Issue, Labels, Name, ObjectRef};
use pilot_model::{
    AccessLog, DefaultProviders, DefaultTrafficPolicy, EntryVisibility, ExportTo, H2UpgradePolicy,
    InboundPolicy, IngressMode, IngressSettings, LabelExpression, LabelOperator, LabelSelector, LogFormat,
    MeshConfig, OutboundMode, OutboundTrafficPolicy, PathNormalization, ProxyConfig, ServiceEntryVisibility,
    ServiceSettings, Span, TlsConfig, TlsVersion,
};

use crate::check::{Check, is_trust_domain, is_wildcard_host, names};
use crate::kinds::destination_rule::{connection_pool, keepalive, locality_lb, outlier, tls, zone_aware_lb};
use crate::kinds::virtual_service::retries;
use crate::yaml::{self, Node, Value};
use crate::{de, yaml_issue};

/// A connection that is given less time, or more, is a mistake.
const CONNECT_TIMEOUT: std::ops::RangeInclusive<Span> = Span::from_millis(1)..=Span::from_secs(30);

/// Reads a mesh configuration. What is not said has Istio's default. One with a mistake is not used at all, so that
/// whoever has an older one keeps it.
pub fn read_mesh_config(text: &str, file: &str) -> Result<(MeshConfig, Vec<Issue>), Vec<Issue>> {
    let node = parse_layer(text, file)?;
    read_node(&node, file)
}

/// Reads a mesh configuration from several texts, each with its name. Later ones count more; one with a mistake is left
/// out. Fails only if the last one cannot be used.
pub fn read_mesh_layers(layers: &[(&str, &str)]) -> Result<(MeshConfig, Vec<Issue>), Vec<Issue>> {
    let mut below = Node { line: 1, value: Value::Map(Vec::new()) };
    let mut mesh = MeshConfig::default();
    let mut issues = Vec::new();
    for (i, (text, file)) in layers.iter().enumerate() {
        let read = parse_layer(text, file).and_then(|layer| {
            let node = layers::merge(below.clone(), layer);
            read_node(&node, file).map(|read| (node, read))
        });
        match read {
            Ok((node, (merged, more))) => {
                (below, mesh) = (node, merged);
                issues.extend(more);
            }
            Err(more) if i + 1 == layers.len() => {
                issues.extend(more);
                return Err(issues);
            }
            Err(more) => issues.extend(more),
        }
    }
    // What is wrong with the lowest layer is found again in each that stands upon it.
    issues.sort();
    issues.dedup_by(|a, b| (&a.path, &a.message) == (&b.path, &b.message));
    Ok((mesh, issues))
}

fn parse_layer<'a>(text: &'a str, file: &str) -> Result<Node<'a>, Vec<Issue>> {
    let object = ObjectRef::new("MeshConfig", Name::empty(), file);
    let documents = yaml::parse(text).map_err(|error| vec![yaml_issue(&object, file, &error)])?;
    Ok(documents.into_iter().next().unwrap_or(Node { line: 1, value: Value::Map(Vec::new()) }))
}

fn read_node(node: &Node<'_>, file: &str) -> Result<(MeshConfig, Vec<Issue>), Vec<Issue>> {
    let object = ObjectRef::new("MeshConfig", Name::empty(), file);
    let mut check = Check::new(object.clone(), node, file);
    let typed = de::read::<api::MeshConfig>(node, "").map_err(|error| {
        vec![Issue::error(object, error.path, error.message).at(format!("{file}:{}", error.line))]
    })?;
    for unknown in typed.unknown {
        check.warn(unknown.path, "is not a field of the mesh configuration and has no effect");
    }
    tell_what_has_no_effect(node, &mut check);
    let mesh = mesh_config(typed.value, node, &mut check);
    if check.is_rejected() { Err(check.into_issues()) } else { Ok((mesh, check.into_issues())) }
}

fn mesh_config(message: api::MeshConfig, node: &Node<'_>, check: &mut Check<'_>) -> MeshConfig {
    let default = MeshConfig::default();
    let ports = ports(&message, node, check);
    let ingress = ingress(&message, node);
    let said = |field: &str| said(node, field);
    if !message.trust_domain.is_empty() && !is_trust_domain(&message.trust_domain) {
        check.reject("trustDomain", format!("{:?} is not a trust domain", message.trust_domain));
    }
    let export = |list: &[String], default: &ExportTo| {
        if list.is_empty() { default.clone() } else { ExportTo::parse(list.iter().map(String::as_str)) }
    };
    let text =
        |value: &str, default: &Name| if value.is_empty() { default.clone() } else { Name::new(value) };
    MeshConfig {
        root_namespace: text(&message.root_namespace, &default.root_namespace),
        trust_domain: text(&message.trust_domain, &default.trust_domain),
        proxy_listen_port: ports[0],
        proxy_inbound_listen_port: ports[1],
        proxy_http_port: ports[2],
        connect_timeout: connect_timeout(message.connect_timeout, check).unwrap_or(default.connect_timeout),
        protocol_detection_timeout: match message.protocol_detection_timeout {
            None => default.protocol_detection_timeout,
            timeout => check.span("protocolDetectionTimeout", timeout),
        },
        tcp_keepalive: message.tcp_keepalive.as_ref().map(|k| keepalive(k, "tcpKeepalive", check)),
        outbound: outbound(&message),
        outbound_tls: message.outbound_traffic_policy.clone().and_then(|policy| policy.tls).map(tls),
        inbound: inbound(&message),
        auto_mtls: message.enable_auto_mtls.unwrap_or(default.auto_mtls),
        tracing: if said("enableTracing") { message.enable_tracing } else { default.tracing },
        access_log: access_log(&message, check),
        access_log_service: message.enable_envoy_access_log_service,
        listener_access_log: !message.disable_envoy_listener_log,
        h2_upgrade: if message.h2_upgrade_policy == api::mesh_config::H2UpgradePolicy::Upgrade as i32 {
            H2UpgradePolicy::Upgrade
        } else {
            H2UpgradePolicy::Default
        },
        path_normalization: path_normalization(&message),
        extension_providers: providers::providers(message.extension_providers, check),
        default_providers: default_providers(message.default_providers.unwrap_or_default()),
        mesh_mtls: mesh_mtls(message.mesh_m_tls.unwrap_or_default(), check),
        tls_defaults: tls_config(message.tls_defaults.unwrap_or_default()),
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
        zone_aware: message.zone_aware_lb_setting.map(zone_aware_lb),
        retries: message.default_http_retry_policy.map(|r| retries(r, "defaultHttpRetryPolicy", check)),
        inbound_cluster_stat_name: message.inbound_cluster_stat_name.into(),
        outbound_cluster_stat_name: message.outbound_cluster_stat_name.into(),
        trust_domain_aliases: aliases(message.trust_domain_aliases, check),
        ca_trust_domains: message
            .ca_certificates
            .into_iter()
            .flat_map(|ca| names(ca.trust_domains))
            .collect(),
        dns_refresh_rate: check
            .span("dnsRefreshRate", message.dns_refresh_rate)
            .unwrap_or(default.dns_refresh_rate),
        hbone_idle_timeout: check.span("hboneIdleTimeout", message.hbone_idle_timeout),
        discovery_host: discovery_host(message.default_config.as_ref()).unwrap_or(default.discovery_host),
        default_traffic_policy: message
            .default_traffic_policy
            .map(|policy| default_traffic_policy(policy, check))
            .unwrap_or_default(),
        service_settings: service_settings(message.service_settings, check),
        discovery_selectors: selectors(message.discovery_selectors, "discoverySelectors", check),
        service_entry_visibility: message
            .service_entry_visibility
            .map(|visibility| entry_visibility(visibility, check)),
        ingress,
        default_config: default_config(message.default_config, check),
    }
}

fn default_config(message: Option<api::ProxyConfig>, check: &mut Check<'_>) -> ProxyConfig {
    message.map(|config| proxy::proxy_config(config, "defaultConfig", check)).unwrap_or_default()
}

/// An empty text is a setting as well: no service stands in front of the gateway.
fn ingress(message: &api::MeshConfig, node: &Node<'_>) -> IngressSettings {
    use api::mesh_config::IngressControllerMode as Mode;
    let default = IngressSettings::default();
    let text = |field: &str, value: &str, default: Name| {
        if said(node, field) { Name::new(value) } else { default }
    };
    IngressSettings {
        mode: match Mode::try_from(message.ingress_controller_mode).unwrap_or(Mode::Unspecified) {
            Mode::Off => IngressMode::Off,
            Mode::Default => IngressMode::Default,
            Mode::Unspecified | Mode::Strict => IngressMode::Strict,
        },
        class: text("ingressClass", &message.ingress_class, default.class),
        service: text("ingressService", &message.ingress_service, default.service),
        selector: text("ingressSelector", &message.ingress_selector, default.selector),
    }
}

/// Settings that are read and checked, but that nothing is made of so far. Whoever writes one must not believe it counts.
const NOT_YET: [&str; 6] = [
    "ca",
    "certificates",
    "configSources",
    "hboneIdleTimeout",
    "serviceScopeConfigs",
    "verifyCertificateAtClient",
];

fn tell_what_has_no_effect(node: &Node<'_>, check: &mut Check<'_>) {
    for field in NOT_YET.into_iter().filter(|field| said(node, field)) {
        check.warn(field, "is not supported yet and has no effect");
    }
}

/// A number in a message does not tell whether it was written; the tree does.
fn said(node: &Node<'_>, field: &str) -> bool {
    node.get(field).is_some_and(|node| node.value != Value::Null)
}

/// For outbound traffic, for inbound traffic, and for those who call the proxy themselves.
fn ports(message: &api::MeshConfig, node: &Node<'_>, check: &mut Check<'_>) -> [u16; 3] {
    let default = MeshConfig::default();
    let fields = [
        ("proxyListenPort", message.proxy_listen_port, default.proxy_listen_port),
        ("proxyInboundListenPort", message.proxy_inbound_listen_port, default.proxy_inbound_listen_port),
        ("proxyHttpPort", message.proxy_http_port, default.proxy_http_port),
    ];
    fields.map(|(field, value, default)| match u16::try_from(value) {
        _ if !said(node, field) => default,
        Ok(port) if port > 0 || field == "proxyHttpPort" => port,
        _ => {
            check.reject(field, format!("{value} is not a port: it must be between 1 and 65535"));
            default
        }
    })
}

fn connect_timeout(timeout: Option<pilot_api::Duration>, check: &mut Check<'_>) -> Option<Span> {
    let span = check.span("connectTimeout", timeout)?;
    if !CONNECT_TIMEOUT.contains(&span) {
        check.reject("connectTimeout", "must be between 1ms and 30s");
    }
    Some(span)
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

fn access_log(message: &api::MeshConfig, check: &mut Check<'_>) -> AccessLog {
    let json = message.access_log_encoding == api::mesh_config::AccessLogEncoding::Json as i32;
    let text = &message.access_log_format;
    let format = match (json, text.as_str()) {
        (false, _) => LogFormat::Text(Name::new(text)),
        (true, "") => LogFormat::Labels(std::collections::BTreeMap::new()),
        (true, _) => {
            let labels = serde_json::from_str::<pilot_api::well_known::Struct>(text);
            if let Err(error) = &labels {
                check.warn("accessLogFormat", format!("is not JSON, so Istio's own is used: {error}"));
            }
            let fields = labels.unwrap_or_default().fields;
            LogFormat::Labels(
                fields.into_iter().map(|(key, value)| (key.into(), crate::value::json(value))).collect(),
            )
        }
    };
    AccessLog { path: Name::new(&message.access_log_file), format }
}

fn default_providers(message: api::mesh_config::DefaultProviders) -> DefaultProviders {
    DefaultProviders {
        tracing: names(message.tracing),
        metrics: names(message.metrics),
        access_logging: names(message.access_logging),
    }
}

fn mesh_mtls(message: api::mesh_config::TlsConfig, check: &mut Check<'_>) -> TlsConfig {
    if !message.ecdh_curves.is_empty() {
        check.reject("meshMTLS.ecdhCurves", "cannot be set for TLS between workloads");
    }
    tls_config(message)
}

fn tls_config(message: api::mesh_config::TlsConfig) -> TlsConfig {
    use api::mesh_config::tls_config::TlsProtocol;
    TlsConfig {
        min_version: match TlsProtocol::try_from(message.min_protocol_version) {
            Ok(TlsProtocol::Tlsv12) => Some(TlsVersion::V1_2),
            Ok(TlsProtocol::Tlsv13) => Some(TlsVersion::V1_3),
            _ => None,
        },
        cipher_suites: names(message.cipher_suites),
        ecdh_curves: names(message.ecdh_curves),
    }
}

fn aliases(texts: Vec<String>, check: &mut Check<'_>) -> Vec<Name> {
    for (i, text) in texts.iter().enumerate().filter(|(_, text)| !is_trust_domain(text)) {
        check.reject(format!("trustDomainAliases[{i}]"), format!("{text:?} is not a trust domain"));
    }
    let mut out = names(texts);
    out.sort();
    out.dedup();
    out
}

fn discovery_host(message: Option<&api::ProxyConfig>) -> Option<Name> {
    let (host, _port) = message?.discovery_address.rsplit_once(':')?;
    Some(Name::new(host))
}

fn default_traffic_policy(
    message: api::mesh_config::DefaultTrafficPolicy,
    check: &mut Check<'_>,
) -> DefaultTrafficPolicy {
    let path = "defaultTrafficPolicy";
    DefaultTrafficPolicy {
        connection_pool: message
            .connection_pool
            .map(|pool| connection_pool(pool, &format!("{path}.connectionPool"), check)),
        outlier_detection: message
            .outlier_detection
            .map(|detection| outlier(&detection, &format!("{path}.outlierDetection"), check)),
    }
}

fn service_settings(
    messages: Vec<api::mesh_config::ServiceSettings>,
    check: &mut Check<'_>,
) -> Vec<ServiceSettings> {
    let mut out = Vec::new();
    for (i, message) in messages.into_iter().enumerate() {
        for (j, host) in message.hosts.iter().enumerate().filter(|(_, host)| !is_wildcard_host(host)) {
            check.reject(format!("serviceSettings[{i}].hosts[{j}]"), format!("{host:?} is not a host"));
        }
        out.push(ServiceSettings {
            cluster_local: message.settings.is_some_and(|settings| settings.cluster_local),
            hosts: message.hosts.iter().map(|host| Host::new(host)).collect(),
        });
    }
    out
}

fn selectors(messages: Vec<api::LabelSelector>, path: &str, check: &mut Check<'_>) -> Vec<LabelSelector> {
    let messages = messages.into_iter().enumerate();
    messages.map(|(i, message)| selector(message, &format!("{path}[{i}]"), check)).collect()
}

fn selector(message: api::LabelSelector, path: &str, check: &mut Check<'_>) -> LabelSelector {
    let mut expressions = Vec::new();
    for (i, expression) in message.match_expressions.into_iter().enumerate() {
        let path = format!("{path}.matchExpressions[{i}]");
        let operator = match expression.operator.as_str() {
            "In" => LabelOperator::In,
            "NotIn" => LabelOperator::NotIn,
            "Exists" => LabelOperator::Exists,
            "DoesNotExist" => LabelOperator::DoesNotExist,
            other => {
                let message = format!("{other:?} is not one of In, NotIn, Exists and DoesNotExist");
                check.reject(format!("{path}.operator"), message);
                continue;
            }
        };
        let wants_values = matches!(operator, LabelOperator::In | LabelOperator::NotIn);
        if wants_values == expression.values.is_empty() {
            let message = if wants_values { "is missing" } else { "must be empty for this operator" };
            check.reject(format!("{path}.values"), message);
        }
        expressions.push(LabelExpression {
            key: expression.key.into(),
            operator,
            values: names(expression.values),
        });
    }
    LabelSelector { labels: Labels::new(message.match_labels), expressions }
}

fn entry_visibility(message: api::ServiceEntryVisibility, check: &mut Check<'_>) -> ServiceEntryVisibility {
    use api::service_entry_visibility::Visibility;
    use api::service_entry_visibility::match_rule::Matcher;
    let visibility = |value: i32| match Visibility::try_from(value) {
        Ok(Visibility::Namespace) => EntryVisibility::Namespace,
        Ok(Visibility::None) => EntryVisibility::None,
        _ => EntryVisibility::Public,
    };
    let mut policies = Vec::new();
    for (i, policy) in message.policies.into_iter().enumerate() {
        let mut rules = Vec::new();
        for (j, rule) in policy.matching_rules.into_iter().enumerate() {
            let path = format!("serviceEntryVisibility.policies[{i}].matchingRules[{j}]");
            match rule.matcher {
                Some(Matcher::NamespaceSelector(labels)) => {
                    rules.push(selector(labels, &format!("{path}.namespaceSelector"), check));
                }
                None => check.reject(path, "says nothing to match by: it needs a namespaceSelector"),
            }
        }
        policies.push((visibility(policy.visibility), rules));
    }
    ServiceEntryVisibility {
        default: visibility(message.default_visibility),
        apply_to_sidecars: message.apply_to_sidecars,
        policies,
    }
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
    let mut check = Check::new(ObjectRef::new("ProxyConfig", Name::empty(), Name::empty()), node, "");
    Ok(proxy::proxy_config(typed.value, "", &mut check))
}

#[cfg(test)]
mod tests {
    use super::{read_mesh_config, read_mesh_layers, read_proxy_config};
    use pilot_model::{MeshConfig, OutboundMode, ProviderKind};

    #[test]
    fn what_is_not_said_has_istios_default() {
        let (mesh, issues) = read_mesh_config("", "mesh").unwrap();
        assert_eq!(mesh, MeshConfig::default());
        assert!(issues.is_empty());
        let text = "enableTracing: false\noutboundTrafficPolicy: {mode: REGISTRY_ONLY}\nconnectTimeout: 2s\n";
        let (mesh, _) = read_mesh_config(text, "mesh").unwrap();
        assert_eq!((mesh.proxy_listen_port, mesh.tracing), (15001, false));
        assert_eq!(mesh.outbound.mode, OutboundMode::RegistryOnly);
        assert_eq!(mesh.connect_timeout.as_secs(), 2);
    }

    #[test]
    fn headers_of_proxies_add_up_over_layers() {
        let below =
            "defaultConfig: {proxyHeaders: {attemptCount: {disabled: true}, preserveHttp1HeaderCase: true}}";
        let above = "defaultConfig: {proxyHeaders: {requestId: {disabled: true}}}";
        let headers = |layers: &[(&str, &str)]| read_mesh_layers(layers).unwrap().0.default_config.headers;
        let of_below = headers(&[(below, "below")]);
        assert!(of_below.no_attempt_count && of_below.preserve_case);
        let both = headers(&[(below, "below"), (above, "above")]);
        assert!(both.no_attempt_count && !both.preserve_case, "only five headers are kept: {both:?}");
        assert_ne!(both, headers(&[(above, "above")]));
    }

    #[test]
    fn what_has_no_effect_is_told() {
        let (_, issues) =
            read_mesh_config("configSources: [{address: 'k8s://'}]\nca: {address: x}\n", "mesh").unwrap();
        let paths: Vec<&str> = issues.iter().map(|issue| issue.path.as_str()).collect();
        assert_eq!(paths, ["ca", "configSources"]);
    }

    #[test]
    fn a_users_provider_takes_the_place_of_a_built_in_one() {
        let text = "extensionProviders: [{name: envoy, envoyFileAccessLog: {path: /tmp/log}}, {name: p, prometheus: {}}]";
        let (mesh, issues) = read_mesh_config(text, "mesh").unwrap();
        let names: Vec<&str> = mesh.extension_providers.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["prometheus", "stackdriver", "envoy", "p"]);
        assert!(issues.is_empty(), "{issues:?}");
        let path = match &mesh.provider("ENVOY").unwrap().kind {
            ProviderKind::FileLog(log) => log.path.as_str(),
            other => panic!("{other:?}"),
        };
        assert_eq!(path, "/tmp/log");
    }

    #[test]
    fn a_wrong_provider_is_left_out_alone() {
        let text = "extensionProviders:\n- name: a\n  envoyExtAuthzHttp: {service: x.y, port: 0}\n- name: b\n  envoyExtAuthzGrpc: {service: foo/x.y, port: 80, statusOnError: '777'}\n- name: c\n  zipkin: {service: x.y, port: 80}\n";
        let (mesh, issues) = read_mesh_config(text, "mesh").unwrap();
        assert!(mesh.provider("a").is_none() && mesh.provider("b").is_none() && mesh.provider("c").is_some());
        let paths: Vec<&str> = issues.iter().map(|issue| issue.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "extensionProviders[0].envoyExtAuthzHttp.port",
                "extensionProviders[1].envoyExtAuthzGrpc.statusOnError"
            ]
        );
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let error =
            &read_mesh_config("rootNamespace: x\nconnectTimeout: soon\n", "mesh.yaml").unwrap_err()[0];
        assert_eq!((error.path.as_str(), error.place.as_deref()), ("connectTimeout", Some("mesh.yaml:2")));
        let (_, issues) = read_mesh_config("rootNamespce: x\n", "mesh.yaml").unwrap();
        assert_eq!(issues[0].path, "rootNamespce");
    }

    #[test]
    fn a_proxy_may_send_what_we_do_not_know() {
        let config = read_proxy_config(r#"{"tracing":{"sampling":12.5},"newThing":{"a":1},"proxyHeaders":{"attemptCount":{"disabled":true}}}"#).unwrap();
        assert!(config.headers.no_attempt_count);
        assert_eq!(config.tracing.sampling, Some(pilot_model::Number(12.5)));
        assert!(read_proxy_config("{\"concurrency\": \"many\"}").is_err());
    }

    #[test]
    fn settings_without_effect_are_told() {
        let text = "discoverySelectors: [{matchLabels: {mesh: yes-please}}]\nhboneIdleTimeout: 5s\n";
        let (_, issues) = read_mesh_config(text, "mesh.yaml").unwrap();
        let told: Vec<&str> = issues.iter().map(|issue| issue.path.as_str()).collect();
        assert_eq!(told, ["hboneIdleTimeout"]);
        assert!(read_mesh_config("rootNamespace: x\n", "mesh.yaml").unwrap().1.is_empty());
    }
}
