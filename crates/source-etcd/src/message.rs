//! What etcd answers: numbers are texts, keys and values are base 64.

use data_encoding::BASE64;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

#[derive(Deserialize)]
pub(crate) struct Range {
    pub(crate) header: Header,
    #[serde(default)]
    pub(crate) kvs: Vec<Pair>,
    /// How many there are, of which fewer may have been asked for.
    #[serde(default, deserialize_with = "number")]
    pub(crate) count: i64,
}

#[derive(Deserialize, Default)]
pub(crate) struct Header {
    #[serde(default, deserialize_with = "number")]
    pub(crate) revision: i64,
}

/// Bytes that may be absent, which means that there are none.
#[derive(Deserialize)]
pub(crate) struct Pair {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
    /// When it was written or deleted.
    #[serde(default, deserialize_with = "number")]
    pub(crate) mod_revision: i64,
}

impl Pair {
    pub(crate) fn key(&self) -> Result<String, String> {
        Ok(String::from_utf8_lossy(&decoded(&self.key)?).into_owned())
    }

    pub(crate) fn value(&self) -> Result<Vec<u8>, String> {
        decoded(&self.value)
    }
}

#[derive(Deserialize)]
pub(crate) struct Line {
    pub(crate) result: Option<Watched>,
    #[serde(default)]
    pub(crate) error: Value,
}

#[derive(Deserialize)]
pub(crate) struct Watched {
    #[serde(default)]
    pub(crate) canceled: bool,
    #[serde(default)]
    pub(crate) events: Vec<Happened>,
}

#[derive(Deserialize)]
pub(crate) struct Happened {
    /// Absent for what was written.
    #[serde(default, rename = "type")]
    pub(crate) kind: String,
    pub(crate) kv: Pair,
}

#[derive(Deserialize)]
pub(crate) struct Token {
    pub(crate) token: String,
}

fn decoded(text: &str) -> Result<Vec<u8>, String> {
    BASE64.decode(text.as_bytes()).map_err(|error| error.to_string())
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok());
    number.ok_or_else(|| serde::de::Error::custom("not a number"))
}

/// All keys that begin with a prefix.
pub(crate) fn keys_below(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    // The prefix ends with a slash, behind which there is another character.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    json!({"key": BASE64.encode(prefix.as_bytes()), "range_end": BASE64.encode(&end)})
}

/// The one of them that was written last, and how many there are.
pub(crate) fn newest_below(prefix: &str) -> Value {
    let mut question = keys_below(prefix);
    let only = json!({"limit": "1", "sort_order": "DESCEND", "sort_target": "MOD", "keys_only": true});
    if let (Value::Object(question), Value::Object(only)) = (&mut question, only) {
        question.extend(only);
    }
    question
}

#[cfg(test)]
mod tests {
    use super::{Line, Range, keys_below};

    #[test]
    fn numbers_are_texts_and_keys_are_encoded() {
        let range: Range =
            serde_json::from_str(r#"{"header":{"revision":"7"},"kvs":[{"key":"YS9i","value":"eA=="}]}"#)
                .unwrap();
        assert_eq!((range.header.revision, range.kvs[0].key().unwrap()), (7, "a/b".to_owned()));
        assert_eq!(range.kvs[0].value().unwrap(), b"x");
        assert_eq!(keys_below("a/")["range_end"], "YTA=");
        let line: Line =
            serde_json::from_str(r#"{"result":{"events":[{"type":"DELETE","kv":{"key":"YS9i"}}]}}"#).unwrap();
        assert_eq!(line.result.unwrap().events[0].kind, "DELETE");
    }
}
