//! TLS towards a service.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3 as api;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3 as tls;
use pilot_envoy_api::to_any;
use pilot_model::{ProxyType, Registry, Service, Tls, TlsMode, TrafficPolicy};

use super::Draft;
use crate::convert::exact_matcher;
use crate::metadata::{fields_of, text};
use crate::settings::Settings;
use crate::tls_context::{TLS_SOCKET, raw_buffer, sds_secret};

/// What TLS needs to know about the other side.
pub(super) struct Upstream<'a> {
    pub(super) service: &'a Service,
    pub(super) accounts: &'a [Name],
    pub(super) sni: &'a Name,
    pub(super) kind: ProxyType,
}

/// Ordinary TLS, which ends at something that is no sidecar.
pub(super) fn is_plain_tls(policy: Option<&TrafficPolicy>) -> bool {
    let mode = policy.and_then(|policy| policy.tls.as_ref()).map(|tls| tls.mode);
    matches!(mode, Some(TlsMode::Simple | TlsMode::Mutual))
}

pub(super) fn apply(
    draft: &mut Draft,
    policy: Option<&TrafficPolicy>,
    upstream: &Upstream<'_>,
    settings: Settings<'_>,
) {
    match policy.and_then(|policy| policy.tls.as_ref()) {
        Some(rule) => {
            draft.cluster.transport_socket = match rule.mode {
                TlsMode::Disable => None,
                TlsMode::IstioMutual => Some(istio_mutual(draft, Some(rule), upstream, settings)),
                TlsMode::Simple | TlsMode::Mutual => plain(draft, rule, upstream),
            };
        }
        // Nobody said: mutual TLS with every endpoint that can, plain text with the others.
        None if settings.mesh.auto_mtls && !upstream.service.mesh_external && !draft.is_original_dst() => {
            let socket = istio_mutual(draft, None, upstream, settings);
            draft.cluster.transport_socket_matches = vec![
                api::cluster::TransportSocketMatch {
                    name: "tlsMode-istio".to_owned(),
                    r#match: Some(fields_of([("tlsMode", text("istio"))])),
                    transport_socket: Some(socket),
                },
                api::cluster::TransportSocketMatch {
                    name: "tlsMode-disabled".to_owned(),
                    r#match: Some(prost_types::Struct::default()),
                    transport_socket: Some(raw_buffer()),
                },
            ];
        }
        None => (),
    }
}

fn istio_mutual(
    draft: &Draft,
    rule: Option<&Tls>,
    upstream: &Upstream<'_>,
    settings: Settings<'_>,
) -> core::TransportSocket {
    let names = rule.and_then(|rule| rule.subject_alt_names.as_deref()).unwrap_or(upstream.accounts);
    let sni = rule.map(|rule| &rule.sni).filter(|sni| !sni.is_empty()).unwrap_or(upstream.sni);
    let features = &settings.options.features;
    let mut alpn: Vec<&str> = Vec::new();
    if features.metadata_exchange && !features.disable_metadata_exchange_alpn {
        alpn.push("istio-peer-exchange");
    }
    alpn.push("istio");
    if draft.is_http2() {
        alpn.push("h2");
    }
    let common = tls::CommonTlsContext {
        alpn_protocols: alpn.into_iter().map(str::to_owned).collect(),
        tls_certificate_sds_secret_configs: vec![sds_secret("default")],
        validation_context_type: Some(combined(names, sds_secret("ROOTCA"))),
        ..common_context()
    };
    socket(common, sni)
}

/// TLS or mutual TLS with certificates of the rule's choosing, which a sidecar's agent reads from files.
fn plain(draft: &mut Draft, rule: &Tls, upstream: &Upstream<'_>) -> Option<core::TransportSocket> {
    if !rule.credential_name.is_empty() && upstream.kind == ProxyType::Sidecar {
        // Secrets are for gateways; a sidecar that waited for one would never start.
        return None;
    }
    verify_host(draft, rule);
    let names = match &rule.subject_alt_names {
        None if upstream.service.registry == Registry::External => upstream.accounts,
        names => names.as_deref().unwrap_or_default(),
    };
    let mut common = common_context();
    if rule.mode == TlsMode::Mutual {
        let secret = format!("file-cert:{}~{}", rule.client_certificate, rule.private_key);
        common.tls_certificate_sds_secret_configs = vec![sds_secret(&secret)];
    }
    common.validation_context_type = Some(if rule.insecure_skip_verify {
        tls::common_tls_context::ValidationContextType::ValidationContext(
            tls::CertificateValidationContext::default(),
        )
    } else {
        let root = if rule.ca_certificates.is_empty() { "system" } else { rule.ca_certificates.as_str() };
        combined(names, sds_secret(&format!("file-root:{root}")))
    });
    if draft.is_http2() {
        common.alpn_protocols = vec!["h2".to_owned()];
    }
    Some(socket(common, &rule.sni))
}

/// Where the rule names no server, the request does.
fn verify_host(draft: &mut Draft, rule: &Tls) {
    if !rule.sni.is_empty() {
        return;
    }
    let options = draft.http_mut().upstream_http_protocol_options.get_or_insert_default();
    options.auto_sni = true;
    options.auto_san_validation = rule.subject_alt_names.is_none() && !rule.insecure_skip_verify;
}

fn combined(names: &[Name], roots: tls::SdsSecretConfig) -> tls::common_tls_context::ValidationContextType {
    use tls::common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};
    #[allow(deprecated, reason = "Istio's proxies of all supported versions read this field")]
    let default = tls::CertificateValidationContext {
        match_subject_alt_names: names.iter().map(exact_matcher).collect(),
        ..tls::CertificateValidationContext::default()
    };
    ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
        default_validation_context: Some(default),
        validation_context_sds_secret_config: Some(roots),
        ..CombinedCertificateValidationContext::default()
    })
}

fn common_context() -> tls::CommonTlsContext {
    use tls::tls_parameters::TlsProtocol;
    tls::CommonTlsContext {
        tls_params: Some(tls::TlsParameters {
            tls_minimum_protocol_version: TlsProtocol::TlSv12 as i32,
            tls_maximum_protocol_version: TlsProtocol::TlSv13 as i32,
            ..tls::TlsParameters::default()
        }),
        ..tls::CommonTlsContext::default()
    }
}

fn socket(common: tls::CommonTlsContext, sni: &Name) -> core::TransportSocket {
    use core::transport_socket::ConfigType;
    let context = tls::UpstreamTlsContext {
        common_tls_context: Some(common),
        sni: sni.to_string(),
        ..tls::UpstreamTlsContext::default()
    };
    core::TransportSocket {
        name: TLS_SOCKET.to_owned(),
        config_type: Some(ConfigType::TypedConfig(to_any(&context))),
    }
}
