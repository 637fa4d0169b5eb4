use pilot_base::Name;

use crate::wire::{field_len, put_bytes};
use crate::{Parts, Protocol, TypeUrl};

const VERSION_INFO: u32 = 1;
const TYPE_URL: u32 = 4;
const NONCE: u32 = 5;
const REMOVED_RESOURCES: u32 = 6;

/// What a client is sent.
#[derive(Clone, Debug)]
pub struct Response {
    pub type_url: TypeUrl,
    pub version: String,
    pub nonce: String,
    pub resources: Parts,
    /// Names that are gone. Only delta can say so; for whole-state types the other protocol leaves them out.
    pub removed: Vec<Name>,
}

impl Response {
    /// Length of the encoded message.
    pub fn len(&self, protocol: Protocol) -> usize {
        self.resources.bytes(protocol) + self.tail_len(protocol)
    }

    pub fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.removed.is_empty()
    }

    /// The fields that belong to this stream alone: `DiscoveryResponse` and `DeltaDiscoveryResponse` number them alike.
    pub fn tail(&self, protocol: Protocol) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.tail_len(protocol));
        put_bytes(&mut out, VERSION_INFO, self.version.as_bytes());
        put_bytes(&mut out, TYPE_URL, self.type_url.as_str().as_bytes());
        put_bytes(&mut out, NONCE, self.nonce.as_bytes());
        if protocol == Protocol::Delta {
            for name in &self.removed {
                put_bytes(&mut out, REMOVED_RESOURCES, name.as_bytes());
            }
        }
        out
    }

    fn tail_len(&self, protocol: Protocol) -> usize {
        let removed: usize = match protocol {
            Protocol::Delta => self.removed.iter().map(|name| field_len(REMOVED_RESOURCES, name.len())).sum(),
            Protocol::StateOfTheWorld => 0,
        };
        field_len(VERSION_INFO, self.version.len())
            + field_len(TYPE_URL, self.type_url.as_str().len())
            + field_len(NONCE, self.nonce.len())
            + removed
    }
}
