//! Messages that are only known by their description: what users write in Envoy's own words.

use std::sync::LazyLock;

use prost::Message as _;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MapKey, ReflectMessage as _, Value};
use serde::de::{DeserializeSeed, Deserializer, Error as _};
use serde::{Serialize as _, Serializer};

use crate::DESCRIPTORS;

const ANY: &str = "google.protobuf.Any";
const DURATION: &str = "google.protobuf.Duration";

/// Built when it is first needed: a mesh without EnvoyFilters never pays for it.
static POOL: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(DESCRIPTORS).expect("the build script wrote valid descriptors"));

/// What is done with fields that a message does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unknown {
    Skip,
    Refuse,
}

/// Reads a message from proto3 JSON, through any serde format.
#[derive(Clone, Copy, Debug)]
pub struct Json<'a> {
    /// The full name of the message.
    pub message: &'a str,
    pub unknown: Unknown,
}

impl<'de> DeserializeSeed<'de> for Json<'_> {
    type Value = Dynamic;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Dynamic, D::Error> {
        let message = POOL
            .get_message_by_name(self.message)
            .ok_or_else(|| D::Error::custom(format!("message '{}' not found", self.message)))?;
        let options = DeserializeOptions::new().deny_unknown_fields(self.unknown == Unknown::Refuse);
        DynamicMessage::deserialize_with_options(message, deserializer, &options).map(Dynamic)
    }
}

/// A message of a kind that is only known at run time.
#[derive(Clone, PartialEq, Debug)]
pub struct Dynamic(DynamicMessage);

/// What becomes of a list when messages are merged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lists {
    Append,
    Replace,
}

impl Dynamic {
    /// Nothing for a type that is not known, or bytes that are not of this type.
    pub fn decode(type_name: &str, bytes: &[u8]) -> Option<Self> {
        let message = POOL.get_message_by_name(type_name)?;
        DynamicMessage::decode(message, bytes).ok().map(Self)
    }

    /// The same for one message always: its fields in order of their numbers, its maps in order of their keys.
    pub fn encode(&self) -> Vec<u8> {
        encode(&self.0)
    }

    /// Writes it as proto3 JSON, in any serde format. An error if something inside is of a type that is not known.
    pub fn to_json<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }

    /// Puts another message of the same type over this one: what it sets counts, messages are merged field by field, maps
    /// entry by entry. A duration is one value, not two fields.
    pub fn merge(&mut self, over: &Self, lists: Lists) {
        merge(&mut self.0, &over.0, lists);
    }

    /// Names of extensions that are asked for by name only, which Envoy is about to give up.
    pub fn without_typed_config(&self) -> Vec<String> {
        let mut out = Vec::new();
        find_without_typed_config(&self.0, &mut out);
        out
    }
}

/// The name of the message that a type URL stands for.
pub fn type_name(url: &str) -> &str {
    url.rsplit_once('/').map_or(url, |(_, name)| name)
}

/// Merges typed messages through their descriptions.
pub fn merge_typed<M: prost::Message + prost::Name + Default>(
    message: &mut M,
    over: &[u8],
    lists: Lists,
) -> bool {
    let name = M::full_name();
    let (Some(mut whole), Some(over)) =
        (Dynamic::decode(&name, &message.encode_to_vec()), Dynamic::decode(&name, over))
    else {
        return false;
    };
    whole.merge(&over, lists);
    match M::decode(whole.encode().as_slice()) {
        Ok(merged) => {
            *message = merged;
            true
        }
        Err(_) => false,
    }
}

/// Merges what two `Any`s hold. Nothing, if they hold different or unknown types.
pub fn merge_any(base: &prost_types::Any, over: &prost_types::Any) -> Option<prost_types::Any> {
    let name = type_name(&base.type_url);
    if name != type_name(&over.type_url) {
        return None;
    }
    let mut whole = Dynamic::decode(name, &base.value)?;
    whole.merge(&Dynamic::decode(name, &over.value)?, Lists::Append);
    Some(prost_types::Any { type_url: base.type_url.clone(), value: whole.encode() })
}

fn merge(base: &mut DynamicMessage, over: &DynamicMessage, lists: Lists) {
    for (field, value) in over.fields() {
        match value {
            Value::List(items) if lists == Lists::Append => {
                if let Some(list) = base.get_field_mut(&field).as_list_mut() {
                    list.extend(items.iter().cloned());
                }
            }
            Value::Map(entries) => {
                if let Some(map) = base.get_field_mut(&field).as_map_mut() {
                    map.extend(entries.iter().map(|(key, value)| (key.clone(), value.clone())));
                }
            }
            Value::Message(inner) if inner.descriptor().full_name() != DURATION => {
                if let Some(message) = base.get_field_mut(&field).as_message_mut() {
                    merge(message, inner, lists);
                }
            }
            value => base.set_field(&field, value.clone()),
        }
    }
}

fn encode(message: &DynamicMessage) -> Vec<u8> {
    let mut out = Vec::new();
    let is_any = message.descriptor().full_name() == ANY;
    if is_any && let Some(whole) = encode_any(message) {
        return whole;
    }
    for (field, value) in message.fields() {
        let number = field.number();
        match value {
            Value::Message(inner) => put(&mut out, number, &encode(inner)),
            Value::List(items) if field.kind().as_message().is_some() => {
                for inner in items.iter().filter_map(Value::as_message) {
                    put(&mut out, number, &encode(inner));
                }
            }
            Value::Map(entries) => {
                let Some(kind) = field.kind().as_message().cloned() else { continue };
                let mut entries: Vec<_> = entries.iter().collect();
                entries.sort_by(|(a, _), (b, _)| compare(a, b));
                for (key, value) in entries {
                    let mut entry = DynamicMessage::new(kind.clone());
                    entry.set_field(&kind.map_entry_key_field(), key.clone().into());
                    entry.set_field(&kind.map_entry_value_field(), value.clone());
                    put(&mut out, number, &encode(&entry));
                }
            }
            value => {
                let mut alone = DynamicMessage::new(message.descriptor());
                alone.set_field(&field, value.clone());
                out.extend(alone.encode_to_vec());
            }
        }
    }
    if message.unknown_fields().next().is_some() {
        let mut unknown = message.clone();
        unknown.take_fields().for_each(drop);
        out.extend(unknown.encode_to_vec());
    }
    out
}

/// What an `Any` holds is bytes already, which may have been written in another order.
fn encode_any(any: &DynamicMessage) -> Option<Vec<u8>> {
    let mut held: prost_types::Any = any.transcode_to().ok()?;
    held.value = Dynamic::decode(type_name(&held.type_url), &held.value)?.encode();
    Some(held.encode_to_vec())
}

fn put(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    use prost::encoding::{WireType, encode_key, encode_varint};
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn compare(a: &MapKey, b: &MapKey) -> std::cmp::Ordering {
    match (a, b) {
        (MapKey::String(a), MapKey::String(b)) => a.cmp(b),
        (MapKey::Bool(a), MapKey::Bool(b)) => a.cmp(b),
        (MapKey::I32(a), MapKey::I32(b)) => a.cmp(b),
        (MapKey::I64(a), MapKey::I64(b)) => a.cmp(b),
        (MapKey::U32(a), MapKey::U32(b)) => a.cmp(b),
        (MapKey::U64(a), MapKey::U64(b)) => a.cmp(b),
        // The keys of one map are of one type.
        _ => std::cmp::Ordering::Equal,
    }
}

fn find_without_typed_config(message: &DynamicMessage, out: &mut Vec<String>) {
    let kind = message.descriptor();
    for (_, value) in message.fields() {
        if let Some(inner) = value.as_message().filter(|inner| inner.descriptor().full_name() != ANY) {
            find_without_typed_config(inner, out);
        }
    }
    let is_extension = kind.get_field_by_name("typed_config").is_some();
    let is_set = |name: &str| message.has_field_by_name(name);
    if is_extension && !is_set("typed_config") && !is_set("config_discovery") {
        let name = message.get_field_by_name("name");
        out.push(name.as_ref().and_then(|name| name.as_str()).unwrap_or_default().to_owned());
    }
}

#[cfg(test)]
mod tests;
