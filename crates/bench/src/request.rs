//! What proxies say.

use bytes::Bytes;

use crate::resource::Kind;
use crate::wire::{framed, put_bytes, put_text};

/// `DeltaDiscoveryRequest`
#[derive(Default)]
pub(crate) struct Delta<'a> {
    pub(crate) node: Option<&'a [u8]>,
    pub(crate) subscribe: Vec<Bytes>,
    pub(crate) unsubscribe: Vec<Bytes>,
    /// Names and versions of what is held already.
    pub(crate) held: Vec<(Bytes, Bytes)>,
    pub(crate) nonce: &'a [u8],
}

impl Delta<'_> {
    pub(crate) fn encode(&self, kind: Kind) -> Bytes {
        let mut out = Vec::new();
        if let Some(node) = self.node {
            put_bytes(&mut out, 1, node);
        }
        put_bytes(&mut out, 2, kind.type_url().as_bytes());
        self.subscribe.iter().for_each(|name| put_bytes(&mut out, 3, name));
        self.unsubscribe.iter().for_each(|name| put_bytes(&mut out, 4, name));
        let mut entry = Vec::new();
        for (name, version) in &self.held {
            entry.clear();
            put_text(&mut entry, 1, name);
            put_text(&mut entry, 2, version);
            put_bytes(&mut out, 5, &entry);
        }
        put_text(&mut out, 6, self.nonce);
        framed(&out).into()
    }
}

/// `DiscoveryRequest`
#[derive(Default)]
pub(crate) struct Sotw<'a> {
    pub(crate) node: Option<&'a [u8]>,
    pub(crate) version: &'a [u8],
    /// Already encoded, because there are thousands in each request.
    pub(crate) names: &'a [u8],
    pub(crate) nonce: &'a [u8],
}

impl Sotw<'_> {
    pub(crate) fn encode(&self, kind: Kind) -> Bytes {
        let mut out = Vec::new();
        put_text(&mut out, 1, self.version);
        if let Some(node) = self.node {
            put_bytes(&mut out, 2, node);
        }
        out.extend_from_slice(self.names);
        put_bytes(&mut out, 4, kind.type_url().as_bytes());
        put_text(&mut out, 5, self.nonce);
        framed(&out).into()
    }
}
