//! What TLS in both directions is made of.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3 as tls;
use pilot_envoy_api::envoy::r#type::matcher::v3 as matcher;
use pilot_envoy_api::to_any;
use pilot_mesh::trust_domains;
use pilot_model::{CertificateFiles, TlsVersion};

use crate::compliance::enforce;
use crate::convert::{ads_source, seconds};
use crate::settings::{SecretServer, Settings};

/// What the certificates of authorities are called, behind the name of the secret they belong to.
pub(crate) const CA_SUFFIX: &str = "-cacert";
const BUILTIN: &str = "builtin://";
const EXTERNAL: &str = "sds://";
/// The cluster of a program beside the proxy that serves secrets.
pub(crate) const EXTERNAL_SECRETS: &str = "sds-external";
pub(crate) const TLS_SOCKET: &str = "envoy.transport_sockets.tls";

/// Secrets that every proxy has: who it is, and whom it believes.
pub(crate) const DEFAULT: &str = "default";
pub(crate) const ROOT: &str = "ROOTCA";
/// Ciphers that sidecars accept from each other.
const CIPHERS: [&str; 6] = [
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-GCM-SHA256",
];

pub(crate) fn raw_buffer() -> core::TransportSocket {
    use core::transport_socket::ConfigType;
    core::TransportSocket {
        name: "envoy.transport_sockets.raw_buffer".to_owned(),
        config_type: Some(ConfigType::TypedConfig(to_any(&RawBuffer {}))),
    }
}

/// A secret that the proxy's own agent serves.
pub(crate) fn sds_secret(name: &str) -> tls::SdsSecretConfig {
    secret_of(name, "sds-grpc")
}

/// A secret in files, which the agent reads, or somebody else if he is there.
pub(crate) fn file_secret(name: &str, files: &CertificateFiles) -> tls::SdsSecretConfig {
    secret_of(name, if files.served_apart { "sds-files-grpc" } else { "sds-grpc" })
}

/// A secret that comes over the stream this came over. It may never come: what needs it must not wait for ever.
fn secret_over_stream(name: &str) -> tls::SdsSecretConfig {
    let source = core::ConfigSource { initial_fetch_timeout: None, ..ads_source() };
    tls::SdsSecretConfig { name: name.to_owned(), sds_config: Some(source) }
}

fn secret_of(name: &str, cluster: &str) -> tls::SdsSecretConfig {
    use core::api_config_source::ApiType;
    use core::config_source::ConfigSourceSpecifier;
    use core::grpc_service::{EnvoyGrpc, TargetSpecifier};
    let grpc = EnvoyGrpc { cluster_name: cluster.to_owned(), ..EnvoyGrpc::default() };
    let service = core::GrpcService {
        target_specifier: Some(TargetSpecifier::EnvoyGrpc(grpc)),
        ..core::GrpcService::default()
    };
    let api = core::ApiConfigSource {
        api_type: ApiType::Grpc as i32,
        transport_api_version: core::ApiVersion::V3 as i32,
        grpc_services: vec![service],
        set_node_on_first_message_only: true,
        ..core::ApiConfigSource::default()
    };
    tls::SdsSecretConfig {
        name: name.to_owned(),
        sds_config: Some(core::ConfigSource {
            config_source_specifier: Some(ConfigSourceSpecifier::ApiConfigSource(api)),
            // Without its own identity a proxy is of no use, so it waits; other secrets may never come.
            initial_fetch_timeout: [DEFAULT, ROOT].contains(&name).then(|| seconds(0)),
            resource_api_version: core::ApiVersion::V3 as i32,
            ..core::ConfigSource::default()
        }),
    }
}

/// The secret that a `credentialName` means, which this server, or one beside the proxy, is asked for.
pub(crate) fn credential_secret(name: &str, server: SecretServer) -> tls::SdsSecretConfig {
    if name == BUILTIN {
        return sds_secret(DEFAULT);
    }
    if name.strip_prefix(BUILTIN) == Some(CA_SUFFIX) {
        return sds_secret(ROOT);
    }
    match name.strip_prefix(EXTERNAL) {
        // Who serves them there knows them by their whole name.
        Some(_) if server == SecretServer::Beside => secret_of(name, EXTERNAL_SECRETS),
        Some(resource) => secret_over_stream(&resource_name(resource)),
        None => secret_over_stream(&resource_name(name)),
    }
}

/// A name that says where a secret is kept; in Kubernetes, if the user does not say.
fn resource_name(name: &str) -> String {
    const PLACES: [&str; 3] = ["configmap://", "kubernetes://", "kubernetes-gateway://"];
    const INVALID: &str = "invalid://";
    if name.starts_with(BUILTIN) {
        return "default".to_owned();
    }
    if name.starts_with(INVALID) {
        return INVALID.to_owned();
    }
    if PLACES.iter().any(|place| name.starts_with(place)) {
        return name.to_owned();
    }
    format!("kubernetes://{name}")
}
/// What a sidecar asks of whoever calls it with mutual TLS.
pub(crate) fn downstream_mutual(
    alpn: &[&str],
    files: &CertificateFiles,
    settings: Settings<'_>,
) -> core::TransportSocket {
    use core::transport_socket::ConfigType;
    use tls::common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};
    use tls::tls_parameters::TlsProtocol;
    #[allow(deprecated, reason = "Istio's proxies of all supported versions read this field")]
    let default = tls::CertificateValidationContext {
        match_subject_alt_names: trusted(settings),
        ..tls::CertificateValidationContext::default()
    };
    let limits = &settings.mesh.mesh_mtls;
    let oldest = match limits.min_version {
        Some(TlsVersion::V1_3) => TlsProtocol::TlSv13,
        Some(TlsVersion::V1_2) | None => TlsProtocol::TlSv12,
    };
    let ciphers = if limits.cipher_suites.is_empty() {
        CIPHERS.iter().map(|cipher| (*cipher).to_owned()).collect()
    } else {
        limits.cipher_suites.iter().map(Name::to_string).collect()
    };
    let mut common = tls::CommonTlsContext {
        alpn_protocols: alpn.iter().map(|p| (*p).to_owned()).collect(),
        tls_params: Some(tls::TlsParameters {
            tls_minimum_protocol_version: oldest as i32,
            tls_maximum_protocol_version: TlsProtocol::TlSv13 as i32,
            cipher_suites: ciphers,
            ..tls::TlsParameters::default()
        }),
        tls_certificate_sds_secret_configs: vec![identity(files)],
        validation_context_type: Some(ValidationContextType::CombinedValidationContext(
            CombinedCertificateValidationContext {
                default_validation_context: Some(default),
                validation_context_sds_secret_config: Some(roots(files)),
                ..CombinedCertificateValidationContext::default()
            },
        )),
        ..tls::CommonTlsContext::default()
    };
    enforce(&mut common, settings.options.features.compliance);
    let context = tls::DownstreamTlsContext {
        common_tls_context: Some(common),
        require_client_certificate: Some(true),
        ..tls::DownstreamTlsContext::default()
    };
    core::TransportSocket {
        name: TLS_SOCKET.to_owned(),
        config_type: Some(ConfigType::TypedConfig(to_any(&context))),
    }
}

/// The certificate of a proxy, from files if it has some.
pub(crate) fn identity(files: &CertificateFiles) -> tls::SdsSecretConfig {
    if files.chain.is_empty() || files.key.is_empty() {
        return sds_secret(DEFAULT);
    }
    file_secret(&format!("file-cert:{}~{}", files.chain, files.key), files)
}

/// Who may have signed the other side's certificate.
pub(crate) fn roots(files: &CertificateFiles) -> tls::SdsSecretConfig {
    if files.root.is_empty() {
        return sds_secret(ROOT);
    }
    file_secret(&format!("file-root:{}", files.root), files)
}

/// The trust domains whose members may call, each once.
fn trusted(settings: Settings<'_>) -> Vec<matcher::StringMatcher> {
    if settings.options.features.skip_validate_trust_domain {
        return Vec::new();
    }
    let mut domains: Vec<&Name> = Vec::new();
    for domain in trust_domains(settings.mesh).chain(&settings.mesh.ca_trust_domains) {
        if !domain.is_empty() && !domains.contains(&domain) {
            domains.push(domain);
        }
    }
    domains.into_iter().map(of_trust_domain).collect()
}

fn of_trust_domain(domain: &Name) -> matcher::StringMatcher {
    use matcher::string_matcher::MatchPattern;
    let prefix = MatchPattern::Prefix(format!("spiffe://{domain}/"));
    matcher::StringMatcher { match_pattern: Some(prefix), ignore_case: false }
}

#[cfg(test)]
mod tests {
    use super::resource_name;

    #[test]
    fn secrets_are_looked_for_in_kubernetes_unless_said_otherwise() {
        assert_eq!(resource_name("cert"), "kubernetes://cert");
        assert_eq!(resource_name("kubernetes://ns/cert"), "kubernetes://ns/cert");
        assert_eq!(resource_name("kubernetes-gateway://ns/cert"), "kubernetes-gateway://ns/cert");
        assert_eq!(resource_name("configmap://ns/ca"), "configmap://ns/ca");
        assert_eq!(resource_name("builtin://"), "default");
    }
}
