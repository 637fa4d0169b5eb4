//! Sets of keys (RFC 7517), as far as it must be known whether one can be used.

use serde_json::Value;

pub(crate) struct KeySet(Vec<Value>);

/// What each type of key must have.
const TYPES: [(&str, &[&str]); 4] =
    [("RSA", &["n", "e"]), ("EC", &["crv", "x", "y"]), ("OKP", &["crv", "x"]), ("oct", &["k"])];

impl KeySet {
    /// A set, or a single key in place of one.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let keys = match value.get("keys") {
            Some(Value::Array(keys)) => keys.clone(),
            Some(_) => return Err("keys is not a list".to_owned()),
            None => vec![value],
        };
        for (i, key) in keys.iter().enumerate() {
            check_key(key).map_err(|why| format!("the key at {i} {why}"))?;
        }
        Ok(Self(keys))
    }
}

fn check_key(key: &Value) -> Result<(), String> {
    let text = |field: &str| key.get(field).and_then(Value::as_str).unwrap_or_default();
    let kind = text("kty");
    let Some((_, fields)) = TYPES.iter().find(|(name, _)| *name == kind) else {
        return Err(format!("has kty {kind:?}: it must be RSA, EC, OKP or oct"));
    };
    for field in fields.iter().filter(|field| **field != "crv") {
        let digit = |c: char| c.is_ascii_alphanumeric() || "-_+/=".contains(c);
        if text(field).is_empty() || !text(field).chars().all(digit) {
            return Err(format!("has no {field} in base 64"));
        }
    }
    if fields.contains(&"crv") && text("crv").is_empty() {
        return Err("has no crv".to_owned());
    }
    Ok(())
}

/// The places of keys that would better be kept secret.
pub(crate) fn private_keys(set: &KeySet) -> impl Iterator<Item = usize> {
    let private = |key: &Value| key.get("d").is_some() || key.get("kty").is_some_and(|kind| kind == "oct");
    set.0.iter().enumerate().filter(move |(_, key)| private(key)).map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::{KeySet, private_keys};

    #[test]
    fn keys_need_what_their_type_needs() {
        let parse = |text: &str| KeySet::parse(text).map(|set| private_keys(&set).collect::<Vec<_>>());
        assert_eq!(parse(r#"{"keys":[]}"#), Ok(vec![]));
        assert_eq!(parse(r#"{"keys":[{"kty":"RSA","n":"0xOb","e":"AQAB"}]}"#), Ok(vec![]));
        assert_eq!(parse(r#"{"kty":"RSA","n":"0xOb","e":"AQAB","d":"x"}"#), Ok(vec![0]));
        assert!(parse(r#"{"keys":[{"kty":"RSA","e":"AQAB"}]}"#).is_err());
        assert!(parse(r#"{"keys":[{"kty":"rsa","n":"a","e":"AQAB"}]}"#).is_err());
        assert!(parse("nothing").is_err());
    }
}
