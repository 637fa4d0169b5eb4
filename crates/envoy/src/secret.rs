//! Certificates and keys that are kept for gateways.

use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3 as tls;
use pilot_model::{Authority, ConfigId, Content, KeyPair};
use pilot_xds::{Encoded, TypeUrl};
use prost::Message as _;

/// What the name of a secret ends with that tells only whom to trust.
pub const CA_SUFFIX: &str = "-cacert";

/// The names by which proxies ask for a Secret of their own namespace.
pub fn secret_names(id: &ConfigId, suffix: &str) -> [Name; 2] {
    let (namespace, name) = (&id.namespace, &id.name);
    [format!("kubernetes://{name}{suffix}"), format!("kubernetes://{namespace}/{name}{suffix}")]
        .map(Name::from)
}

/// A certificate with its key, under a name.
pub fn key_pair_secret(name: Name, pair: &KeyPair) -> Arc<Encoded> {
    let certificate = tls::TlsCertificate {
        certificate_chain: Some(inline(&pair.chain)),
        private_key: Some(inline(&pair.key)),
        ocsp_staple: pair.staple.as_ref().map(inline),
        ..tls::TlsCertificate::default()
    };
    encoded(name, tls::secret::Type::TlsCertificate(certificate))
}

/// Whom to trust, under a name.
pub fn authority_secret(name: Name, authority: &Authority) -> Arc<Encoded> {
    let context = tls::CertificateValidationContext {
        trusted_ca: Some(inline(&authority.roots)),
        crl: authority.revoked.as_ref().map(inline),
        ..tls::CertificateValidationContext::default()
    };
    encoded(name, tls::secret::Type::ValidationContext(context))
}

fn encoded(name: Name, kept: tls::secret::Type) -> Arc<Encoded> {
    let secret = tls::Secret { name: name.to_string(), r#type: Some(kept) };
    Arc::new(Encoded::new(TypeUrl::Secret, name, &secret.encode_to_vec()))
}

fn inline(content: &Content) -> core::DataSource {
    let specifier = core::data_source::Specifier::InlineBytes(content.bytes().to_vec());
    core::DataSource { specifier: Some(specifier), ..core::DataSource::default() }
}
