//! What goes into every certificate that is issued.

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyUsagePurpose,
    PublicKeyData, SanType, SerialNumber,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use time::OffsetDateTime;

use crate::UnixSeconds;
use crate::key::CaKey;

/// Clocks of others may be behind ours by so much.
pub(crate) const CLOCK_SKEW: UnixSeconds = 120;
/// The most that X.509 allows.
const MAX_COMMON_NAME: usize = 64;

/// Whom a certificate is for, and how long it is good.
pub(crate) struct Leaf<'a> {
    pub(crate) names: &'a [String],
    /// Old servers read names only from the subject: then the first is there too.
    pub(crate) dual_use: DualUse,
    pub(crate) now: UnixSeconds,
    pub(crate) not_after: UnixSeconds,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DualUse {
    No,
    Yes,
}

pub(crate) fn issue(
    issuer: &Issuer<'_, CaKey>,
    key: &impl PublicKeyData,
    leaf: &Leaf<'_>,
) -> Result<rcgen::Certificate, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if let (DualUse::Yes, Some(first)) = (leaf.dual_use, leaf.names.first())
        && first.len() <= MAX_COMMON_NAME
    {
        params.distinguished_name.push(DnType::CommonName, first.as_str());
    }
    params.subject_alt_names = leaf.names.iter().map(|name| san(name)).collect::<Result<_, _>>()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.is_ca = rcgen::IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(serial()?);
    params.not_before = time(leaf.now - CLOCK_SKEW)?;
    params.not_after = time(leaf.not_after)?;
    params.signed_by(key, issuer)
}

fn san(name: &str) -> Result<SanType, rcgen::Error> {
    if name.contains("://") {
        return Ok(SanType::URI(name.try_into()?));
    }
    match name.parse() {
        Ok(ip) => Ok(SanType::IpAddress(ip)),
        Err(_) => Ok(SanType::DnsName(name.try_into()?)),
    }
}

/// Nobody can guess it, and no two are equal.
pub(crate) fn serial() -> Result<SerialNumber, rcgen::Error> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| rcgen::Error::RingUnspecified)?;
    // Neither negative nor with a zero in front.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

pub(crate) fn time(seconds: UnixSeconds) -> Result<OffsetDateTime, rcgen::Error> {
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| rcgen::Error::Time)
}
