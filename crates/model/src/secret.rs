use std::fmt;
use std::sync::Arc;

/// What a Secret keeps for gateways: a certificate with its key, and whom to trust.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Secret {
    pub pair: Option<KeyPair>,
    pub authority: Option<Authority>,
}

/// A certificate with its key, as PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyPair {
    pub chain: Content,
    pub key: Content,
    /// What its authority says of its not being revoked.
    pub staple: Option<Content>,
}

/// Those whose certificates are believed, and those of theirs that are not, as PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Authority {
    pub roots: Content,
    pub revoked: Option<Content>,
}

/// Bytes that stand in no log and on no page.
#[derive(Clone, PartialEq, Eq)]
pub struct Content(Arc<[u8]>);

impl Content {
    /// Nothing if there are no bytes.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (!bytes.is_empty()).then(|| Self(bytes.into()))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::Content;

    #[test]
    fn what_is_kept_is_not_told() {
        let content = Content::new(b"key".to_vec()).unwrap();
        assert_eq!(format!("{content:?}"), "(3 bytes)");
        assert_eq!(content.bytes(), b"key");
        assert_eq!(Content::new(Vec::new()), None);
    }
}
