use data_encoding::BASE64;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::UnixSeconds;
use crate::issue::{self, CLOCK_SKEW};

/// What an authority is made of, as the texts that files hold.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Material {
    /// The certificate that the key belongs to; only the first counts.
    pub certificate: String,
    pub key: String,
    /// What stands between a workload's certificate and the root; nothing if the certificate is the root.
    pub chain: String,
    pub root: String,
}

/// Why something cannot certify anybody.
#[derive(thiserror::Error, PartialEq, Eq, Debug)]
pub enum MaterialError {
    #[error("the {0} has no certificate in PEM")]
    NoCertificate(&'static str),
    #[error("the {0} has a certificate that cannot be read: {1}")]
    Unreadable(&'static str, String),
    #[error("the key cannot be used: {0}")]
    Key(String),
    /// Whoever issued it did not mean it for an authority.
    #[error(
        "the CA certificate must not sign others: it needs basicConstraints CA:TRUE and keyUsage keyCertSign"
    )]
    NoAuthority,
    #[error("the key does not belong to the CA certificate")]
    OtherKey,
    #[error("the CA certificate has expired")]
    Expired,
    #[error(
        "certificates that it signs are not good for who trusts the root: {0}; check that the chain leads to the root, \
         and that no part of the CA's name occurs twice"
    )]
    Chain(String),
    #[error("{0}")]
    Generate(#[from] rcgen::Error),
}

impl Material {
    /// A root of its own, good for so many seconds.
    pub fn self_signed(
        organisation: &str,
        lifetime: UnixSeconds,
        now: UnixSeconds,
    ) -> Result<Self, MaterialError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organisation);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(issue::serial()?);
        params.not_before = issue::time(now - CLOCK_SKEW)?;
        params.not_after = issue::time(now.saturating_add(lifetime))?;
        let certificate = params.self_signed(&key)?.pem();
        let key = key.serialize_pem();
        Ok(Self { root: certificate.clone(), certificate, key, chain: String::new() })
    }
}

/// A key in any of the forms that OpenSSL writes.
pub fn read_key(text: &str) -> Result<PrivateKeyDer<'static>, MaterialError> {
    PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|error| MaterialError::Key(error.to_string()))
}

/// The certificates of a text, of which there must be one.
pub fn read_certificates(
    what: &'static str,
    text: &str,
) -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let all = certificates(what, text)?;
    if all.is_empty() { Err(MaterialError::NoCertificate(what)) } else { Ok(all) }
}

/// All certificates of a text; at least one, unless the text is empty.
pub(crate) fn certificates(
    what: &'static str,
    text: &str,
) -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let all = all.map_err(|error| MaterialError::Unreadable(what, error.to_string()))?;
    if all.is_empty() && !text.trim().is_empty() {
        return Err(MaterialError::NoCertificate(what));
    }
    Ok(all)
}

/// A certificate as text, with a line break at its end.
pub(crate) fn pem(certificate: &[u8]) -> String {
    // As PEM has it.
    const COLUMNS: usize = 64;
    let text = BASE64.encode(certificate);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(COLUMNS));
        out.push_str(line);
        out.push('\n');
        rest = after;
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}
