//! The other side of an authority: who wants a certificate.

use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{MaterialError, SpiffeId, UnixSeconds, read_certificates, read_key};

/// The curve of a new key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Curve {
    #[default]
    P256,
    P384,
}

/// A new key, and a request for a certificate about it. Both are PEM, the key as PKCS #8.
pub struct SigningRequest {
    pub csr: String,
    pub key: String,
}

impl SigningRequest {
    pub fn new(id: &SpiffeId, curve: Curve) -> Result<Self, rcgen::Error> {
        let algorithm = match curve {
            Curve::P256 => &PKCS_ECDSA_P256_SHA256,
            Curve::P384 => &PKCS_ECDSA_P384_SHA384,
        };
        let key = KeyPair::generate_for(algorithm)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = vec![SanType::URI(id.to_string().as_str().try_into()?)];
        Ok(Self { csr: params.serialize_request(&key)?.pem()?, key: key.serialize_pem() })
    }
}

/// When the first certificate of a text ends.
pub fn expiry(chain: &str) -> Result<UnixSeconds, MaterialError> {
    let all = read_certificates("certificate", chain)?;
    let unreadable = |reason: String| MaterialError::Unreadable("certificate", reason);
    let first = all.first().ok_or(MaterialError::NoCertificate("certificate"))?;
    let (_, certificate) = X509Certificate::from_der(first).map_err(|error| unreadable(error.to_string()))?;
    Ok(certificate.validity().not_after.timestamp())
}

/// Does the key belong to the first certificate of the chain? A key of a kind that we do not know is not judged.
pub fn check_pair(chain: &str, key: &str) -> Result<(), MaterialError> {
    let chain: Vec<CertificateDer<'static>> = read_certificates("certificate", chain)?;
    let key: PrivateKeyDer<'static> = read_key(key)?;
    let provider = rustls::crypto::ring::default_provider();
    match CertifiedKey::from_der(chain, key, &provider) {
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(MaterialError::Key("it does not belong to the certificate".to_owned()))
        }
        Err(rustls::Error::InvalidCertificate(error)) => {
            Err(MaterialError::Unreadable("certificate", error.to_string()))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Those certificates of a text that can be read, each as it will be written, without repetitions. Texts of others have parts
/// that nobody can read.
pub fn readable_roots(texts: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for text in texts {
        for certificate in CertificateDer::pem_slice_iter(text.as_bytes()).flatten() {
            let pem = crate::material::pem(&certificate);
            if X509Certificate::from_der(&certificate).is_ok() && !found.contains(&pem) {
                found.push(pem);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Curve, SigningRequest, check_pair, expiry, readable_roots};
    use crate::{Authority, Limits, Material, Order, SpiffeId};

    const NOW: i64 = 1_800_000_000;

    fn certified(request: &SigningRequest) -> (Vec<String>, String) {
        let material = Material::self_signed("tests", 1_000_000, NOW).unwrap();
        let authority = Authority::new(&material, NOW).unwrap();
        let names = ["spiffe://cluster.local/ns/a/sa/b".to_owned()];
        let order = Order { csr: &request.csr, names: &names, ttl: 3_600, now: NOW };
        let limits = Limits { default_ttl: 3_600, max_ttl: 10_000 };
        (authority.sign(&order, limits).unwrap(), material.root)
    }

    #[test]
    fn an_authority_signs_what_is_requested() {
        let id = SpiffeId::parse("spiffe://cluster.local/ns/a/sa/b").unwrap();
        for curve in [Curve::P256, Curve::P384] {
            let request = SigningRequest::new(&id, curve).unwrap();
            let (texts, root) = certified(&request);
            assert_eq!(expiry(&texts[0]).unwrap(), NOW + 3_600);
            check_pair(&texts[0], &request.key).unwrap();
            let other = SigningRequest::new(&id, curve).unwrap();
            let error = check_pair(&texts[0], &other.key).unwrap_err().to_string();
            assert!(error.contains("does not belong"), "{error}");
            assert_eq!(readable_roots(&[&root, "nonsense", &root]), [root]);
        }
    }

    #[test]
    fn what_is_no_certificate_is_told() {
        assert!(expiry("").is_err() && expiry("hello").is_err());
        assert!(check_pair("hello", "hello").is_err());
    }
}
