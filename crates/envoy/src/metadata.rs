//! The metadata by which filters, dashboards and istioctl find out what a resource belongs to.

use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3::Metadata;
use pilot_model::{ConfigId, Json, Kind, Service};
use prost_types::value::Kind as ValueKind;
use prost_types::{ListValue, Struct, Value};

/// Fields under the key `istio`, in the making.
#[derive(Default)]
pub(crate) struct IstioMetadata(BTreeMap<String, Value>);

impl IstioMetadata {
    /// The services a cluster belongs to.
    pub(crate) fn services<'a>(&mut self, services: impl Iterator<Item = &'a Service>) {
        let values = services.map(|service| {
            structure([
                ("host", text(service.host.as_str())),
                ("name", text(&service.name)),
                ("namespace", text(&service.namespace)),
            ])
        });
        let list = ListValue { values: values.collect() };
        self.0.insert("services".to_owned(), Value { kind: Some(ValueKind::ListValue(list)) });
    }

    /// The object that shaped it.
    pub(crate) fn config(&mut self, kind: Kind, id: &ConfigId) {
        self.0.insert("config".to_owned(), text(&config_path(kind, id)));
    }

    pub(crate) fn subset(&mut self, name: &Name) {
        self.0.insert("subset".to_owned(), text(name));
    }

    pub(crate) fn external(&mut self) {
        self.0.insert("external".to_owned(), Value { kind: Some(ValueKind::BoolValue(true)) });
    }

    /// Tells Istio's ALPN filter to leave the protocol alone.
    pub(crate) fn no_alpn_override(&mut self) {
        self.0.insert("alpn_override".to_owned(), text("false"));
    }

    pub(crate) fn build(self) -> Option<Metadata> {
        (!self.0.is_empty()).then(|| metadata([("istio", Struct { fields: self.0 })]))
    }
}

/// `/apis/networking.istio.io/v1/namespaces/default/virtual-service/reviews`
fn config_path(kind: Kind, id: &ConfigId) -> String {
    format!("/apis/networking.istio.io/v1/namespaces/{}/{}/{}", id.namespace, kebab(kind.name()), id.name)
}

fn kebab(kind: &str) -> String {
    let mut out = String::new();
    for (at, c) in kind.chars().enumerate() {
        if c.is_ascii_uppercase() && at > 0 {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// Metadata that only says which object something came from.
pub(crate) fn of_config(kind: Kind, id: &ConfigId) -> Option<Metadata> {
    let mut metadata = IstioMetadata::default();
    metadata.config(kind, id);
    metadata.build()
}

pub(crate) fn metadata<const N: usize>(parts: [(&str, Struct); N]) -> Metadata {
    let filter_metadata = parts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Metadata { filter_metadata, ..Metadata::default() }
}

pub(crate) fn text(value: &str) -> Value {
    Value { kind: Some(ValueKind::StringValue(value.to_owned())) }
}

pub(crate) fn yes() -> Value {
    Value { kind: Some(ValueKind::BoolValue(true)) }
}

pub(crate) fn list(values: Vec<Value>) -> Value {
    Value { kind: Some(ValueKind::ListValue(ListValue { values })) }
}

pub(crate) fn structure<const N: usize>(fields: [(&str, Value); N]) -> Value {
    Value { kind: Some(ValueKind::StructValue(fields_of(fields))) }
}

pub(crate) fn fields_of<const N: usize>(fields: [(&str, Value); N]) -> Struct {
    Struct { fields: fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect() }
}

/// A value of the user's, as it is.
pub(crate) fn json_value(value: &Json) -> Value {
    let kind = match value {
        Json::Null => ValueKind::NullValue(0),
        Json::Bool(value) => ValueKind::BoolValue(*value),
        Json::Number(number) => ValueKind::NumberValue(number.0),
        Json::Text(text) => ValueKind::StringValue(text.to_string()),
        Json::List(values) => {
            ValueKind::ListValue(ListValue { values: values.iter().map(json_value).collect() })
        }
        Json::Map(fields) => ValueKind::StructValue(json_struct(fields)),
    };
    Value { kind: Some(kind) }
}

pub(crate) fn json_struct(fields: &BTreeMap<Name, Json>) -> Struct {
    Struct { fields: fields.iter().map(|(key, value)| (key.to_string(), json_value(value))).collect() }
}
