use std::sync::Arc;

use rcgen::{PublicKeyData, SigningKey, SubjectPublicKeyInfo};
use rustls::SignatureScheme;
use rustls::pki_types::PrivateKeyDer;

/// The authority's key in any of the forms that OpenSSL and Istio write: PKCS #8, PKCS #1 and SEC 1.
pub(crate) struct CaKey {
    key: Arc<dyn rustls::sign::SigningKey>,
    public: SubjectPublicKeyInfo,
    scheme: SignatureScheme,
}

impl CaKey {
    pub(crate) fn new(key: &PrivateKeyDer<'_>) -> Result<Self, String> {
        let key = rustls::crypto::ring::sign::any_supported_type(key).map_err(|error| error.to_string())?;
        let public = key.public_key().ok_or("its public half is not known")?;
        let public = SubjectPublicKeyInfo::from_der(&public)
            .map_err(|error| format!("it is of a kind that is not supported: {error}"))?;
        let algorithm = public.algorithm();
        let scheme = if algorithm == &rcgen::PKCS_RSA_SHA256 {
            SignatureScheme::RSA_PKCS1_SHA256
        } else if algorithm == &rcgen::PKCS_ECDSA_P256_SHA256 {
            SignatureScheme::ECDSA_NISTP256_SHA256
        } else if algorithm == &rcgen::PKCS_ECDSA_P384_SHA384 {
            SignatureScheme::ECDSA_NISTP384_SHA384
        } else if algorithm == &rcgen::PKCS_ED25519 {
            SignatureScheme::ED25519
        } else {
            return Err("use RSA, ECDSA with P-256 or P-384, or Ed25519".to_owned());
        };
        Ok(Self { key, public, scheme })
    }
}

impl PublicKeyData for CaKey {
    fn der_bytes(&self) -> &[u8] {
        self.public.der_bytes()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        self.public.algorithm()
    }
}

impl SigningKey for CaKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signer = self.key.choose_scheme(&[self.scheme]).ok_or(rcgen::Error::RemoteKeyError)?;
        signer.sign(message).map_err(|_| rcgen::Error::RemoteKeyError)
    }
}
