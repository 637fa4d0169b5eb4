use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};

use pilot_base::{parse_bool, parse_span};

/// A field that cannot be what was written.
#[derive(Debug)]
pub(super) struct WrongField {
    pub(super) path: String,
    pub(super) message: String,
}

/// Reads fields as protobuf's JSON would: numbers and booleans may stand in quotes, null is as if nothing were written.
pub(super) struct Fields<'a> {
    path: String,
    map: Option<&'a Map<String, Value>>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(map: &'a Map<String, Value>) -> Self {
        Self { path: String::new(), map: Some(map) }
    }

    pub(super) fn is_absent(&self) -> bool {
        self.map.is_none()
    }

    /// protobuf allows `status_port` for `statusPort`.
    fn get(&self, field: &str) -> Option<&'a Value> {
        let map = self.map?;
        map.get(field).or_else(|| map.get(&snake_case(field))).filter(|value| !value.is_null())
    }

    pub(super) fn read<T>(
        &self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WrongField> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let wrong = || WrongField {
            path: format!("{}{field}", self.path),
            message: format!("{value} is not {expected}"),
        };
        read(value).map(Some).ok_or_else(wrong)
    }

    /// An empty text is as if nothing were written.
    pub(super) fn text(&self, field: &str) -> Result<Option<String>, WrongField> {
        let text = self.read(field, "a text", |value| value.as_str().map(str::to_owned))?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    pub(super) fn number<T: FromStr>(&self, field: &str) -> Result<Option<T>, WrongField> {
        self.read(field, "a number in range", |value| plain(value)?.parse().ok())
    }

    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, WrongField> {
        self.read(field, "a boolean", |value| parse_bool(&plain(value)?).ok())
    }

    pub(super) fn span(&self, field: &str) -> Result<Option<Duration>, WrongField> {
        self.read(field, "a duration such as 5s", |value| parse_span(value.as_str()?).ok())
    }

    pub(super) fn map(&self, field: &str) -> Result<Fields<'a>, WrongField> {
        let map = self.read(field, "a map", Value::as_object)?;
        Ok(Fields { path: format!("{}{field}.", self.path), map })
    }

    pub(super) fn texts(&self, field: &str) -> Result<Vec<String>, WrongField> {
        let texts = self.read(field, "a list of texts", |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        })?;
        Ok(texts.unwrap_or_default())
    }

    /// Users forget the quotes around `"true"` and `"5"`; what they mean is plain.
    pub(super) fn texts_by_key(&self, field: &str) -> Result<BTreeMap<String, String>, WrongField> {
        let texts = self.read(field, "a map of texts", |value| {
            value.as_object()?.iter().map(|(key, value)| Some((key.clone(), plain(value)?))).collect()
        })?;
        Ok(texts.unwrap_or_default())
    }
}

/// A scalar without its quotes.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn snake_case(field: &str) -> String {
    let mut name = String::with_capacity(field.len() + 4);
    for letter in field.chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}
