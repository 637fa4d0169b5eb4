//! Envoy's v3 messages, generated at build time.
//!
//! The .proto files come with the crate `envoy-types`; its generated types are not used, because their maps are hash maps
//! and would encode differently in every process. Here map fields are ordered, so one message has one encoding.
//!
//! [`DESCRIPTORS`] holds the same definitions as data, and those of all extensions, for what users write in Envoy's own
//! words; [`reflect`] reads and merges such messages.

pub mod reflect;

use prost::Name;
use prost_types::Any;

#[allow(clippy::all, clippy::pedantic, rustdoc::all, unreachable_pub, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/mod.rs"));
}

pub use generated::{envoy, google, istio, opentelemetry, stats, udpa, xds};

/// The encoded `FileDescriptorSet` of all messages of Envoy's that configuration can be made of.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The encoded `FileDescriptorSet` of the discovery service and what it needs, for reflection.
pub const ADS_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/ads.bin"));

/// Wraps a message with its type.
pub fn to_any<M: prost::Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

/// Unwraps a message if it is of this type.
pub fn from_any<M: prost::Message + Name + Default>(any: &Any) -> Option<M> {
    if any.type_url != M::type_url() {
        return None;
    }
    M::decode(any.value.as_slice()).ok()
}

#[cfg(test)]
mod tests {
    use super::envoy::config::core::v3::Metadata;
    use super::{from_any, to_any};
    use prost::Message as _;

    #[test]
    fn one_message_has_one_encoding() {
        let mut keys: Vec<String> = (0..50).map(|i| format!("key-{i}")).collect();
        let build = |keys: &[String]| {
            let fields = keys.iter().map(|k| (k.clone(), prost_types::Struct::default())).collect();
            Metadata { filter_metadata: fields, ..Metadata::default() }.encode_to_vec()
        };
        let forward = build(&keys);
        keys.reverse();
        assert_eq!(forward, build(&keys));
    }

    #[test]
    fn a_message_keeps_its_type_in_an_any() {
        let any = to_any(&Metadata::default());
        assert_eq!(any.type_url, "type.googleapis.com/envoy.config.core.v3.Metadata");
        assert_eq!(from_any::<Metadata>(&any), Some(Metadata::default()));
        assert_eq!(from_any::<super::udpa::r#type::v1::TypedStruct>(&any), None);
    }
}
