use std::sync::Arc;

use rcgen::{Issuer, KeyPair, PublicKeyData as _, SubjectPublicKeyInfo};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::UnixSeconds;
use crate::issue::{DualUse, Leaf, issue};
use crate::key::CaKey;
use crate::material::{Material, MaterialError, certificates, pem, read_certificates, read_key};

/// Whoever signs. It was seen to work when it was made.
pub struct Authority {
    issuer: Issuer<'static, CaKey>,
    not_after: UnixSeconds,
    chain: Vec<CertificateDer<'static>>,
    roots: Vec<CertificateDer<'static>>,
    root_text: String,
    root_not_after: UnixSeconds,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// How long certificates are good.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// `DEFAULT_WORKLOAD_CERT_TTL`
    pub default_ttl: UnixSeconds,
    /// `MAX_WORKLOAD_CERT_TTL`
    pub max_ttl: UnixSeconds,
}

/// A certificate that somebody asks for.
pub struct Order<'a> {
    /// PEM.
    pub csr: &'a str,
    /// Who the caller is, whatever the request says.
    pub names: &'a [String],
    /// Nothing or less for the default.
    pub ttl: UnixSeconds,
    pub now: UnixSeconds,
}

/// A certificate for ourselves.
pub struct ServerCertificate {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub not_after: UnixSeconds,
}

/// Why nothing is signed. Agents try again if it is not their fault.
#[derive(thiserror::Error, PartialEq, Eq, Debug)]
pub enum CaError {
    #[error("the CA certificate has expired: put a new one in its place")]
    NotReady,
    #[error("{0}")]
    Csr(String),
    #[error("requested TTL {requested}s is greater than the max allowed TTL {max}s")]
    Ttl { requested: UnixSeconds, max: UnixSeconds },
    #[error("{0}")]
    CertGen(String),
}

impl CaError {
    /// Istio's word for it, in metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NotReady => "CA_NOT_READY",
            Self::Csr(_) => "CSR_ERROR",
            Self::Ttl { .. } => "TTL_ERROR",
            Self::CertGen(_) => "CERT_GEN_ERROR",
        }
    }
}

impl Authority {
    /// Checks that what it will sign is good for who trusts the root.
    pub fn new(material: &Material, now: UnixSeconds) -> Result<Self, MaterialError> {
        let all = read_certificates("CA certificate", &material.certificate)?;
        let own = &all[0];
        let chain = certificates("certificate chain", &material.chain)?;
        let roots = read_certificates("root certificate", &material.root)?;
        let key = CaKey::new(&read_key(&material.key)?).map_err(MaterialError::Key)?;
        let not_after = check_authority(own, &key, now)?;
        let root_not_after = parsed("root certificate", &roots[0])?.validity().not_after.timestamp();
        let issuer = Issuer::from_ca_cert_der(own, key)?;
        let verifier = verifier_of(&roots)?;
        let root_text = material.root.clone();
        let authority = Self { issuer, not_after, chain, roots, root_text, root_not_after, verifier };
        authority.prove(now)?;
        Ok(authority)
    }

    /// Signs something, and looks at it as a peer would.
    fn prove(&self, now: UnixSeconds) -> Result<(), MaterialError> {
        let proof = self.server_certificate(&["spiffe://proof/ns/a/sa/b".to_owned()], 60, now)?;
        let (leaf, chain) =
            proof.chain.split_first().ok_or(MaterialError::NoCertificate("CA certificate"))?;
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now.unsigned_abs()));
        match self.verifier.verify_client_cert(leaf, chain, at) {
            Ok(_) => Ok(()),
            Err(error) => Err(MaterialError::Chain(error.to_string())),
        }
    }

    /// The certificate, everything between it and the root, and at the end the roots in one text.
    pub fn sign(&self, order: &Order<'_>, limits: Limits) -> Result<Vec<String>, CaError> {
        let Order { csr, names, ttl, now } = *order;
        let request = CertificateSigningRequestDer::from_pem_slice(csr.as_bytes())
            .map_err(|error| CaError::Csr(format!("the request for a certificate is not PEM: {error}")))?;
        let (_, request) = X509CertificationRequest::from_der(&request).map_err(|error| {
            CaError::Csr(format!("the request for a certificate cannot be read: {error}"))
        })?;
        request.verify_signature().map_err(|_| {
            CaError::Csr("the request for a certificate is not signed by the key that is in it".to_owned())
        })?;
        let info = &request.certification_request_info;
        let key = SubjectPublicKeyInfo::from_der(info.subject_pki.raw).map_err(|_| {
            CaError::Csr("the key must be RSA, ECDSA with P-256 or P-384, or Ed25519".to_owned())
        })?;
        let has_common_name = info.subject.iter_common_name().next().is_some();
        let not_after = self.not_after(ttl, limits, now)?;
        let dual_use = if has_common_name { DualUse::Yes } else { DualUse::No };
        let leaf = Leaf { names, dual_use, now, not_after };
        let leaf = issue(&self.issuer, &key, &leaf).map_err(|error| CaError::CertGen(error.to_string()))?;
        let mut texts = vec![pem(leaf.der())];
        texts.extend(self.chain.iter().map(|certificate| pem(certificate)));
        texts.push(self.root_text.clone());
        Ok(texts)
    }

    fn not_after(&self, ttl: UnixSeconds, limits: Limits, now: UnixSeconds) -> Result<UnixSeconds, CaError> {
        if ttl > limits.max_ttl {
            return Err(CaError::Ttl { requested: ttl, max: limits.max_ttl });
        }
        if now >= self.not_after {
            return Err(CaError::NotReady);
        }
        let ttl = if ttl > 0 { ttl } else { limits.default_ttl };
        Ok(now.saturating_add(ttl).min(self.not_after))
    }

    /// A new key, and a certificate for it.
    pub fn server_certificate(
        &self,
        names: &[String],
        ttl: UnixSeconds,
        now: UnixSeconds,
    ) -> Result<ServerCertificate, rcgen::Error> {
        let key = KeyPair::generate()?;
        let not_after = now.saturating_add(ttl).min(self.not_after);
        let leaf = issue(&self.issuer, &key, &Leaf { names, dual_use: DualUse::No, now, not_after })?;
        let mut chain = vec![leaf.der().clone()];
        chain.extend(self.chain.iter().cloned());
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Ok(ServerCertificate { chain, key, not_after })
    }

    /// PEM of all roots.
    pub fn root(&self) -> &str {
        &self.root_text
    }

    /// Does it trust everybody whom another trusts?
    pub fn includes_roots_of(&self, other: &Self) -> bool {
        other.roots.iter().all(|root| self.roots.contains(root))
    }

    pub fn root_not_after(&self) -> UnixSeconds {
        self.root_not_after
    }

    /// Nothing if the root itself signs.
    pub fn chain_not_after(&self) -> Option<UnixSeconds> {
        (!self.chain.is_empty()).then_some(self.not_after)
    }
}

fn parsed<'a>(what: &'static str, der: &'a [u8]) -> Result<X509Certificate<'a>, MaterialError> {
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|error| MaterialError::Unreadable(what, error.to_string()))?;
    Ok(certificate)
}

/// Tells until when it may sign.
fn check_authority(own: &[u8], key: &CaKey, now: UnixSeconds) -> Result<UnixSeconds, MaterialError> {
    let own = parsed("CA certificate", own)?;
    let may_sign = own.key_usage().ok().flatten().is_none_or(|usage| usage.value.key_cert_sign());
    if !own.is_ca() || !may_sign {
        return Err(MaterialError::NoAuthority);
    }
    if own.public_key().subject_public_key.data.as_ref() != key.der_bytes() {
        return Err(MaterialError::OtherKey);
    }
    let not_after = own.validity().not_after.timestamp();
    if not_after <= now {
        return Err(MaterialError::Expired);
    }
    Ok(not_after)
}

/// Who tells whether a client's certificate comes from one of the roots in some texts.
pub fn client_verifier(texts: &[&str]) -> Result<Arc<dyn ClientCertVerifier>, MaterialError> {
    let mut roots = Vec::new();
    for text in texts {
        roots.extend(certificates("root certificate", text)?);
    }
    verifier_of(&roots)
}

/// Certificates are optional: many callers come with a token.
fn verifier_of(roots: &[CertificateDer<'static>]) -> Result<Arc<dyn ClientCertVerifier>, MaterialError> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store
            .add(root.clone())
            .map_err(|error| MaterialError::Unreadable("root certificate", error.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider)
        .allow_unauthenticated()
        .build()
        .map_err(|error| MaterialError::Chain(error.to_string()))
}

#[cfg(test)]
mod tests;
