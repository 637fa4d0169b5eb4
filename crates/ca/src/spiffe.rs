use std::fmt;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Who a workload is: `spiffe://<trust domain>/ns/<namespace>/sa/<service account>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SpiffeId {
    pub trust_domain: String,
    pub namespace: String,
    pub service_account: String,
}

impl SpiffeId {
    /// Nothing if a part is missing or could be taken for something else.
    pub fn new(trust_domain: &str, namespace: &str, service_account: &str) -> Option<Self> {
        // Cloud accounts have an @ in their trust domain, which a URI cannot have there.
        let trust_domain = trust_domain.replace('@', ".");
        let parts = [trust_domain.as_str(), namespace, service_account];
        if !parts.iter().all(|part| is_plain(part)) {
            return None;
        }
        let [namespace, service_account] = [namespace, service_account].map(str::to_owned);
        Some(Self { trust_domain, namespace, service_account })
    }

    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("spiffe://")?;
        let parts: Vec<&str> = rest.split('/').collect();
        match parts[..] {
            [trust_domain, "ns", namespace, "sa", account] => Self::new(trust_domain, namespace, account),
            _ => None,
        }
    }
}

/// Nothing that could end a part of a URI, or a list of names, early.
fn is_plain(part: &str) -> bool {
    !part.is_empty()
        && part.len() <= 253
        && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~:".contains(&b))
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trust_domain, namespace, service_account } = self;
        write!(f, "spiffe://{trust_domain}/ns/{namespace}/sa/{service_account}")
    }
}

/// Whom a certificate, which was verified before, belongs to. Other names in it say nothing about workloads.
pub fn identities(certificate: &[u8]) -> Vec<SpiffeId> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => SpiffeId::parse(uri),
        _ => None,
    });
    uris.collect()
}

#[cfg(test)]
mod tests {
    use super::SpiffeId;

    #[test]
    fn identities_are_read_and_written() {
        let text = "spiffe://cluster.local/ns/shop/sa/cart";
        let id = SpiffeId::parse(text).unwrap();
        assert_eq!((id.namespace.as_str(), id.service_account.as_str()), ("shop", "cart"));
        assert_eq!(id.to_string(), text);
        assert_eq!(SpiffeId::new("me@cloud", "a", "b").unwrap().to_string(), "spiffe://me.cloud/ns/a/sa/b");
    }

    #[test]
    fn what_could_be_taken_for_another_is_none() {
        for text in [
            "",
            "cluster.local/ns/a/sa/b",
            "spiffe://cluster.local/ns/a/sa/",
            "spiffe:///ns/a/sa/b",
            "spiffe://cluster.local/ns/a/sa/b/c",
            "spiffe://cluster.local/sa/b/ns/a",
            "spiffe://cluster.local/ns/a,b/sa/b",
            "spiffe://cluster.local/ns/a/sa/b?c",
        ] {
            assert_eq!(SpiffeId::parse(text), None, "{text}");
        }
        assert_eq!(SpiffeId::new("cluster.local", "a/sa/b", "c"), None);
    }
}
