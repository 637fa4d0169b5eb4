//! How a server that ends TLS of clients outside the mesh proves who it is, and what it asks of them: a gateway, or a
//! sidecar with settings of its own.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::transport_sockets::quic::v3::QuicDownstreamTransport;
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3 as tls;
use pilot_envoy_api::to_any;
use pilot_model::{Protocol, ServerTls, ServerTlsMode, ServerTlsVersion, TlsVersion};
use tls::common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};

use crate::compliance::enforce;
use crate::convert::exact_matcher;
use crate::settings::{ListenerTraits, SecretServer, Settings};
use crate::tls_context::{
    CA_SUFFIX, DEFAULT, ROOT, TLS_SOCKET, credential_secret, file_secret, identity, roots, sds_secret,
};

/// HTTP/3, as servers tell that they speak it.
pub(crate) const HTTP3_ALPN: &str = "h3";
const HTTP_ALPN: [&str; 2] = ["h2", "http/1.1"];
/// Sidecars tell each other who they are even if they do not speak HTTP.
const MESH_TCP_ALPN: [&str; 3] = ["istio-peer-exchange", "h2", "http/1.1"];

/// How connections come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Transport {
    Tcp,
    /// Over UDP, at the same port.
    Quic,
}

pub(crate) struct ServerSide<'a> {
    pub(crate) protocol: Protocol,
    pub(crate) tls: &'a ServerTls,
    pub(crate) traits: &'a ListenerTraits,
    pub(crate) settings: Settings<'a>,
    pub(crate) transport: Transport,
}

impl ServerSide<'_> {
    pub(crate) fn socket(&self) -> core::TransportSocket {
        use core::transport_socket::ConfigType;
        let context = self.context(&self.alpn());
        let (name, config) = match self.transport {
            Transport::Tcp => (TLS_SOCKET, to_any(&context)),
            Transport::Quic => {
                let downstream_tls_context = Some(context);
                let quic =
                    QuicDownstreamTransport { downstream_tls_context, ..QuicDownstreamTransport::default() };
                ("envoy.transport_sockets.quic", to_any(&quic))
            }
        };
        core::TransportSocket { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
    }

    fn alpn(&self) -> Vec<String> {
        if self.transport == Transport::Quic {
            return vec![HTTP3_ALPN.to_owned()];
        }
        let in_mesh = self.tls.mode == ServerTlsMode::IstioMutual && self.protocol != Protocol::Https;
        let exchange = in_mesh && !self.settings.options.features.disable_metadata_exchange_alpn;
        let alpn: &[&str] = if exchange { &MESH_TCP_ALPN } else { &HTTP_ALPN };
        alpn.iter().map(|protocol| (*protocol).to_owned()).collect()
    }

    fn context(&self, alpn: &[String]) -> tls::DownstreamTlsContext {
        let required = self.requires_certificate();
        let mut common =
            tls::CommonTlsContext { alpn_protocols: alpn.to_vec(), ..tls::CommonTlsContext::default() };
        if self.tls.mode == ServerTlsMode::IstioMutual {
            let files = &self.traits.server_files;
            common.tls_certificate_sds_secret_configs.push(identity(files));
            if required {
                common.validation_context_type = Some(combined(self.listed_validation(), roots(files)));
            }
        } else if self.tls.credentials.is_empty() {
            self.set_files(&mut common);
        } else {
            self.set_credentials(&mut common);
        }
        if matches!(
            self.tls.mode,
            ServerTlsMode::Simple | ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual
        ) {
            common.tls_params = self.parameters();
        }
        enforce(&mut common, self.settings.options.features.compliance);
        tls::DownstreamTlsContext {
            common_tls_context: Some(common),
            require_client_certificate: Some(required),
            ..tls::DownstreamTlsContext::default()
        }
    }

    fn is_mutual(&self) -> bool {
        matches!(self.tls.mode, ServerTlsMode::Mutual | ServerTlsMode::IstioMutual)
    }

    /// Envoy cannot ask for one over QUIC.
    fn requires_certificate(&self) -> bool {
        self.is_mutual() && self.transport == Transport::Tcp
    }

    fn validates_clients(&self) -> bool {
        self.requires_certificate() || self.tls.mode == ServerTlsMode::OptionalMutual
    }

    /// Files in the proxy's file system, which its agent reads and serves.
    fn set_files(&self, common: &mut tls::CommonTlsContext) {
        let file = |name: String| file_secret(&name, &self.traits.server_files);
        common.tls_certificate_sds_secret_configs = self
            .tls
            .certificates
            .iter()
            .map(|files| file(format!("file-cert:{}~{}", files.certificate, files.private_key)))
            .collect();
        if common.tls_certificate_sds_secret_configs.is_empty() {
            common.tls_certificate_sds_secret_configs.push(sds_secret(DEFAULT));
        }
        if !self.validates_clients() {
            return;
        }
        let authority = match self.tls.ca_certificates.as_str() {
            "" => sds_secret(ROOT),
            path => file(format!("file-root:{path}")),
        };
        common.validation_context_type = Some(combined(self.listed_validation(), authority));
    }

    /// Secrets that are fetched by name.
    fn set_credentials(&self, common: &mut tls::CommonTlsContext) {
        let credentials = &self.tls.credentials;
        common.tls_certificate_sds_secret_configs =
            credentials.iter().map(|name| self.credential(name)).collect();
        if self.is_mutual() || self.tls.mode == ServerTlsMode::OptionalMutual {
            let authority = match (self.tls.ca_credential.as_str(), credentials.first()) {
                ("", Some(first)) => format!("{first}{CA_SUFFIX}"),
                (name, _) => name.to_owned(),
            };
            let mut validation = self.validation();
            validation.verify_certificate_spki = texts(&self.tls.verify_spki);
            validation.verify_certificate_hash = texts(&self.tls.verify_hash);
            common.validation_context_type = Some(combined(validation, self.credential(&authority)));
        }
    }

    /// The secret that a `credentialName` means.
    fn credential(&self, name: &str) -> tls::SdsSecretConfig {
        credential_secret(name, SecretServer::of(self.traits.external_secrets))
    }

    /// With the list of certificates that are no longer good, which can only be a file.
    fn listed_validation(&self) -> tls::CertificateValidationContext {
        let mut validation = self.validation();
        let crl = Some(&self.tls.ca_crl).filter(|path| !path.is_empty());
        validation.crl = crl.map(|path| core::DataSource {
            specifier: Some(core::data_source::Specifier::Filename(path.to_string())),
            ..core::DataSource::default()
        });
        validation
    }

    fn validation(&self) -> tls::CertificateValidationContext {
        use tls::certificate_validation_context::TrustChainVerification;
        let mut validation = self.names();
        if self.tls.skip_verify {
            validation.trust_chain_verification = TrustChainVerification::AcceptUntrusted as i32;
        }
        validation
    }

    #[allow(deprecated, reason = "Istio's proxies of all supported versions read this field")]
    fn names(&self) -> tls::CertificateValidationContext {
        tls::CertificateValidationContext {
            match_subject_alt_names: self.tls.subject_alt_names.iter().map(exact_matcher).collect(),
            ..tls::CertificateValidationContext::default()
        }
    }

    fn parameters(&self) -> Option<tls::TlsParameters> {
        let default = &self.settings.mesh.tls_defaults;
        let default_min = default.min_version.map(|version| match version {
            TlsVersion::V1_2 => ServerTlsVersion::V1_2,
            TlsVersion::V1_3 => ServerTlsVersion::V1_3,
        });
        let min = self.tls.min_version.or(default_min);
        let own = Some(&self.tls.cipher_suites).filter(|suites| !suites.is_empty());
        let parameters = tls::TlsParameters {
            tls_minimum_protocol_version: min.map_or(0, version),
            tls_maximum_protocol_version: self.tls.max_version.map_or(0, version),
            cipher_suites: texts(own.unwrap_or(&default.cipher_suites)),
            ecdh_curves: texts(&default.ecdh_curves),
            ..tls::TlsParameters::default()
        };
        (parameters != tls::TlsParameters::default()).then_some(parameters)
    }
}

fn combined(
    default: tls::CertificateValidationContext,
    authority: tls::SdsSecretConfig,
) -> ValidationContextType {
    ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
        default_validation_context: Some(default),
        validation_context_sds_secret_config: Some(authority),
        ..CombinedCertificateValidationContext::default()
    })
}

fn version(version: ServerTlsVersion) -> i32 {
    use tls::tls_parameters::TlsProtocol;
    let version = match version {
        ServerTlsVersion::V1_0 => TlsProtocol::TlSv10,
        ServerTlsVersion::V1_1 => TlsProtocol::TlSv11,
        ServerTlsVersion::V1_2 => TlsProtocol::TlSv12,
        ServerTlsVersion::V1_3 => TlsProtocol::TlSv13,
    };
    version as i32
}

fn texts(names: &[Name]) -> Vec<String> {
    names.iter().map(Name::to_string).collect()
}
