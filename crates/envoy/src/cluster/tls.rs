//! TLS towards endpoints.

use std::borrow::Cow;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::cluster::v3 as api;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::transport_sockets::proxy_protocol::v3::ProxyProtocolUpstreamTransport;
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3 as tls;
use pilot_envoy_api::to_any;
use pilot_model::{CertificateFiles, ProxyProtocol, ProxyType, Registry, Tls, TlsMode, TrafficPolicy};

use super::Draft;
use crate::compliance::enforce;
use crate::convert::exact_matcher;
use crate::metadata::{fields_of, text};
use crate::settings::{SecretServer, Settings};
use crate::tls_context::{CA_SUFFIX, TLS_SOCKET, credential_secret, file_secret, raw_buffer, sds_secret};

/// What TLS needs to know about the other side, and about who connects to it.
#[derive(Clone, Copy)]
pub(super) struct Upstream<'a> {
    /// Is it outside the mesh?
    pub(super) external: bool,
    pub(super) registry: Registry,
    pub(super) accounts: &'a [Name],
    pub(super) sni: &'a Name,
    pub(super) kind: ProxyType,
    /// Certificates of the proxy's own, which count instead of Istio's.
    pub(super) certs: &'a CertificateFiles,
    pub(super) credentials: SecretServer,
    /// May mutual TLS be used where nobody asked for it?
    pub(super) mutual: bool,
    /// Is the rule for some workloads only, and may so name their secrets?
    pub(super) is_selective: bool,
}

/// Ordinary TLS, which ends at something that is no sidecar.
pub(super) fn is_plain_tls(policy: Option<&TrafficPolicy>) -> bool {
    let mode = policy.and_then(|policy| policy.tls.as_ref()).map(|tls| tls.mode);
    matches!(mode, Some(TlsMode::Simple | TlsMode::Mutual))
}

pub(super) fn apply(draft: &mut Draft, rule: Option<&Tls>, upstream: &Upstream<'_>, settings: Settings<'_>) {
    let external = upstream.external;
    let certs = Some(upstream.certs).filter(|certs| !certs.chain.is_empty());
    match rule {
        Some(rule) => {
            let prefers_rule = settings.options.features.prefer_rule_tls && external;
            // With certificates of its own a proxy takes the rule for others' services as it is written.
            let as_written = certs.is_some() && prefers_rule;
            let name = Name::new(&draft.cluster.name);
            let bare = Upstream { accounts: &[], sni: &name, ..*upstream };
            let istio = if as_written { &bare } else { upstream };
            let certs = certs.filter(|_| !prefers_rule);
            let mutual = matches!(rule.mode, TlsMode::Mutual | TlsMode::IstioMutual);
            let rule = match certs {
                Some(certs) if mutual => {
                    let names = rule.subject_alt_names.clone().unwrap_or_default();
                    let unverified = rule.insecure_skip_verify;
                    Cow::Owned(Tls { insecure_skip_verify: unverified, ..own_certs(certs, names, &rule.sni) })
                }
                _ => Cow::Borrowed(rule),
            };
            draft.cluster.transport_socket = match rule.mode {
                TlsMode::Disable => None,
                TlsMode::IstioMutual => Some(istio_mutual(draft, Some(&rule), istio, settings)),
                TlsMode::Simple | TlsMode::Mutual => plain(draft, &rule, upstream, settings),
            };
        }
        None if !settings.mesh.auto_mtls || external || !upstream.mutual => (),
        None => match certs {
            Some(certs) => {
                let rule = own_certs(certs, upstream.accounts.to_vec(), upstream.sni);
                draft.cluster.transport_socket = plain(draft, &rule, upstream, settings);
            }
            None => {
                let socket = istio_mutual(draft, None, upstream, settings);
                set_detected(draft, socket);
            }
        },
    }
}

/// Mutual TLS with every endpoint that can, plain text with the others.
fn set_detected(draft: &mut Draft, socket: core::TransportSocket) {
    // Traffic that goes where it was going finds no endpoint to look at.
    if draft.is_original_dst() {
        draft.cluster.transport_socket = Some(socket);
        return;
    }
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

fn own_certs(certs: &CertificateFiles, names: Vec<Name>, sni: &Name) -> Tls {
    Tls {
        mode: TlsMode::Mutual,
        client_certificate: certs.chain.clone(),
        private_key: certs.key.clone(),
        ca_certificates: certs.root.clone(),
        subject_alt_names: (!names.is_empty()).then_some(names),
        sni: sni.clone(),
        ..Tls::default()
    }
}

fn istio_mutual(
    draft: &mut Draft,
    rule: Option<&Tls>,
    upstream: &Upstream<'_>,
    settings: Settings<'_>,
) -> core::TransportSocket {
    let names = rule.and_then(|rule| rule.subject_alt_names.as_deref()).unwrap_or(upstream.accounts);
    let default_sni = if draft.is_dynamic { &Name::empty() } else { upstream.sni };
    let sni = rule.map(|rule| &rule.sni).filter(|sni| !sni.is_empty()).unwrap_or(default_sni);
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
        validation_context_type: Some(combined(names, sds_secret("ROOTCA"), "")),
        ..common_context()
    };
    if let Some(rule) = rule.filter(|_| draft.is_dynamic) {
        verify_host(draft, rule);
    }
    socket(common, sni, settings)
}

/// TLS or mutual TLS with certificates of the rule's choosing. A sidecar's agent reads them from files; a gateway asks for
/// secrets by their names.
fn plain(
    draft: &mut Draft,
    rule: &Tls,
    upstream: &Upstream<'_>,
    settings: Settings<'_>,
) -> Option<core::TransportSocket> {
    let by_name = !rule.credential_name.is_empty();
    let sidecar = upstream.kind == ProxyType::Sidecar;
    if by_name && sidecar && !upstream.is_selective && !rule.credential_name.starts_with("configmap://") {
        // A sidecar that waited for a secret it may not have would never start.
        return None;
    }
    verify_host(draft, rule);
    let names = match &rule.subject_alt_names {
        None if upstream.registry == Registry::External => upstream.accounts,
        names => names.as_deref().unwrap_or_default(),
    };
    let mut common = common_context();
    if by_name {
        let secret = |name: &str| credential_secret(name, upstream.credentials);
        if rule.mode == TlsMode::Mutual {
            common.tls_certificate_sds_secret_configs = vec![secret(&rule.credential_name)];
        }
        if !rule.insecure_skip_verify {
            let roots = secret(&format!("{}{CA_SUFFIX}", rule.credential_name));
            common.validation_context_type = Some(combined(names, roots, ""));
        }
    } else {
        let file = |name: &str| file_secret(name, upstream.certs);
        if rule.mode == TlsMode::Mutual {
            if rule.client_certificate.is_empty() || rule.private_key.is_empty() {
                return None;
            }
            let secret = format!("file-cert:{}~{}", rule.client_certificate, rule.private_key);
            common.tls_certificate_sds_secret_configs = vec![file(&secret)];
        }
        common.validation_context_type = Some(if rule.insecure_skip_verify {
            tls::common_tls_context::ValidationContextType::ValidationContext(
                tls::CertificateValidationContext::default(),
            )
        } else {
            let root = if rule.ca_certificates.is_empty() { "system" } else { rule.ca_certificates.as_str() };
            combined(names, file(&format!("file-root:{root}")), &rule.ca_crl)
        });
    }
    let defaults = &settings.mesh.tls_defaults;
    if let Some(params) = &mut common.tls_params {
        params.ecdh_curves = defaults.ecdh_curves.iter().map(ToString::to_string).collect();
        params.cipher_suites = defaults.cipher_suites.iter().map(ToString::to_string).collect();
    }
    if draft.is_http2() {
        common.alpn_protocols = vec!["h2".to_owned()];
    }
    Some(socket(common, &rule.sni, settings))
}

/// Where the rule names no server, the request does.
fn verify_host(draft: &mut Draft, rule: &Tls) {
    let auto_sni = rule.sni.is_empty();
    let by_host = draft.is_dynamic || (auto_sni && rule.subject_alt_names.is_none());
    let auto_san = by_host && !rule.insecure_skip_verify;
    if draft.is_dynamic && (rule.insecure_skip_verify || !auto_sni || !auto_san) {
        draft.allow_unchecked_hosts();
    }
    if !auto_sni && !auto_san {
        return;
    }
    let options = draft.http_mut().upstream_http_protocol_options.get_or_insert_default();
    options.auto_sni = auto_sni;
    options.auto_san_validation = auto_san;
}

/// Tells the other side, before anything else, who has called.
pub(super) fn wrap_in_proxy_protocol(cluster: &mut api::Cluster, version: ProxyProtocol) {
    let wrap = |socket: core::TransportSocket| {
        use core::transport_socket::ConfigType;
        let version = match version {
            ProxyProtocol::V1 => core::proxy_protocol_config::Version::V1,
            ProxyProtocol::V2 => core::proxy_protocol_config::Version::V2,
        };
        let config = ProxyProtocolUpstreamTransport {
            config: Some(core::ProxyProtocolConfig {
                version: version as i32,
                ..core::ProxyProtocolConfig::default()
            }),
            transport_socket: Some(socket),
            ..ProxyProtocolUpstreamTransport::default()
        };
        core::TransportSocket {
            name: "envoy.transport_sockets.upstream_proxy_protocol".to_owned(),
            config_type: Some(ConfigType::TypedConfig(to_any(&config))),
        }
    };
    if cluster.transport_socket_matches.is_empty() {
        // Istio calls this one by a shorter name.
        let raw = || core::TransportSocket { name: "raw_buffer".to_owned(), ..raw_buffer() };
        cluster.transport_socket = Some(wrap(cluster.transport_socket.take().unwrap_or_else(raw)));
    } else {
        cluster.transport_socket = cluster.transport_socket.take().map(wrap);
    }
    for matching in &mut cluster.transport_socket_matches {
        matching.transport_socket = matching.transport_socket.take().map(wrap);
    }
}

fn combined(
    names: &[Name],
    roots: tls::SdsSecretConfig,
    revoked: &str,
) -> tls::common_tls_context::ValidationContextType {
    use tls::common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};
    #[allow(deprecated, reason = "Istio's proxies of all supported versions read this field")]
    let default = tls::CertificateValidationContext {
        match_subject_alt_names: names.iter().map(exact_matcher).collect(),
        crl: (!revoked.is_empty()).then(|| core::DataSource {
            specifier: Some(core::data_source::Specifier::Filename(revoked.to_owned())),
            ..core::DataSource::default()
        }),
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

fn socket(mut common: tls::CommonTlsContext, sni: &Name, settings: Settings<'_>) -> core::TransportSocket {
    use core::transport_socket::ConfigType;
    enforce(&mut common, settings.options.features.compliance);
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
