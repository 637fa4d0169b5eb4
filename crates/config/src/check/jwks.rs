//! Sets of keys (RFC 7517), as far as it must be known whether one can be used.

use data_encoding::BASE64URL_NOPAD;
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

/// Would Envoy take this text for a set of keys? It passes over keys that it cannot use, but refuses the whole listener
/// for a set without any other. Points that are not on their curve are not found out here.
pub fn usable_keys(text: &str) -> Result<(), String> {
    let set: Value = serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
    let Some(keys) = set.get("keys").and_then(Value::as_array) else {
        return Err("it has no list of keys".to_owned());
    };
    let mut reason = "its list of keys is empty".to_owned();
    for (i, key) in keys.iter().enumerate() {
        match usable_key(key) {
            Ok(()) => return Ok(()),
            Err(why) => reason = format!("the key at {i} {why}"),
        }
    }
    Err(reason)
}

/// Do both texts have the same keys, in whatever order and with whatever space between them?
pub fn same_keys(one: &str, other: &str) -> bool {
    one == other || sorted(one).is_some_and(|set| Some(set) == sorted(other))
}

fn sorted(text: &str) -> Option<Value> {
    let mut set: Value = serde_json::from_str(text).ok()?;
    set.get_mut("keys")?.as_array_mut()?.sort_by_cached_key(|key| {
        let name = key.get("kid").and_then(Value::as_str).map(str::to_owned);
        // Names are not always there, and not always different.
        (name, key.to_string())
    });
    Some(set)
}

fn usable_key(key: &Value) -> Result<(), &'static str> {
    let field = |name: &str| key.get(name).and_then(Value::as_str).unwrap_or_default();
    // Ends are filled up by some and not by others.
    let plain = |name: &str| BASE64URL_NOPAD.decode(field(name).trim_end_matches('=').as_bytes()).ok();
    let bytes = |name: &str| plain(name).filter(|bytes| !bytes.is_empty());
    let alg = field("alg");
    let is_for = |prefixes: &[&str]| alg.is_empty() || prefixes.iter().any(|prefix| alg.starts_with(prefix));
    match field("kty") {
        "RSA" if !is_for(&["RS", "PS"]) => Err("has an alg that is not for RSA"),
        "RSA" => match (bytes("n"), bytes("e")) {
            (Some(n), Some(_)) if !(512..=16_384).contains(&bits(&n)) => Err("must have 512 to 16384 bits"),
            (Some(_), Some(e)) if bits(&e) < 2 || bits(&e) > 32 || e.last().is_some_and(|b| b % 2 == 0) => {
                Err("has an e that is not possible")
            }
            (Some(_), Some(_)) => Ok(()),
            _ => Err("needs n and e in base 64 for URLs"),
        },
        "EC" => {
            let fits = |curve: &str, of_alg: &str| {
                (field("crv").is_empty() || field("crv") == curve) && (alg.is_empty() || alg == of_alg)
            };
            let curves = [("P-256", "ES256"), ("P-384", "ES384"), ("P-521", "ES512")];
            if !curves.iter().any(|(curve, of_alg)| fits(curve, of_alg)) {
                return Err("has a crv or an alg that Envoy does not know");
            }
            bytes("x").and(bytes("y")).map(drop).ok_or("needs x and y in base 64 for URLs")
        }
        "OKP" if field("crv") != "Ed25519" => Err("has a crv that Envoy does not know"),
        "OKP" if !is_for(&["EdDSA"]) => Err("has an alg that is not for OKP"),
        "OKP" => bytes("x").filter(|x| x.len() == 32).map(drop).ok_or("needs an x of 32 bytes"),
        "oct" if !is_for(&["HS"]) => Err("has an alg that is not for oct"),
        "oct" => bytes("k").map(drop).ok_or("needs a k in base 64 for URLs"),
        _ => Err("has a kty that Envoy does not know"),
    }
}

fn bits(number: &[u8]) -> usize {
    let leading = number.iter().take_while(|byte| **byte == 0).count();
    match number.get(leading) {
        Some(first) => (number.len() - leading) * 8 - first.leading_zeros() as usize,
        None => 0,
    }
}

/// The places of keys that would better be kept secret.
pub(crate) fn private_keys(set: &KeySet) -> impl Iterator<Item = usize> {
    let private = |key: &Value| key.get("d").is_some() || key.get("kty").is_some_and(|kind| kind == "oct");
    set.0.iter().enumerate().filter(move |(_, key)| private(key)).map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::{KeySet, private_keys, same_keys, usable_keys};

    #[test]
    fn one_key_that_can_be_used_is_enough() {
        const N: &str =
            "wQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ";
        let usable = |keys: &str| usable_keys(&format!(r#"{{"keys":[{keys}]}}"#)).is_ok();
        let rsa = |n: &str, e: &str| format!(r#"{{"kty":"RSA","n":"{n}","e":"{e}"}}"#);
        assert!(usable(&rsa(N, "AQAB")));
        assert!(usable(&rsa(&format!("{N}=="), "Aw")), "filled up");
        assert!(usable(&format!("{},{}", rsa("wQEB", "AQAB"), rsa(N, "AQAB"))), "beside a short one");
        assert!(!usable(&rsa("wQEB", "AQAB")), "too short");
        assert!(!usable(&rsa(N, "AQ")), "an e of one");
        assert!(!usable(&rsa(N, "Ag")), "an even e");
        assert!(!usable(&rsa("!!", "AQAB")));
        assert!(!usable(r#"{"kty":"XX"}"#));
        assert!(!usable(""));
        assert!(usable(r#"{"kty":"oct","k":"c2VjcmV0"}"#));
        assert!(!usable(r#"{"kty":"oct","k":"c2VjcmV0","alg":"RS256"}"#));
        assert!(usable(r#"{"kty":"EC","alg":"ES256","x":"AQ","y":"AQ"}"#));
        assert!(!usable(r#"{"kty":"EC","alg":"ES384","crv":"P-256","x":"AQ","y":"AQ"}"#));
        assert!(!usable(r#"{"kty":"EC","crv":"secp256k1","x":"AQ","y":"AQ"}"#));
        assert!(!usable(r#"{"kty":"OKP","crv":"Ed25519","x":"AQ"}"#));
        assert!(usable_keys(&rsa(N, "AQAB")).is_err(), "a key alone is no set");
        assert!(usable_keys("nothing").is_err());
    }

    #[test]
    fn sets_are_the_same_in_any_order_and_form() {
        let one = r#"{"keys":[{"kid":"a","k":"AQ"},{"kid":"b","k":"Ag"},{"k":"Aw"},{"k":"BA"}],"for":"all"}"#;
        let shuffled = r#"{ "for": "all",
            "keys": [{"k": "BA"}, {"k": "Ag", "kid": "b"}, {"k": "Aw"}, {"kid": "a", "k": "AQ"}] }"#;
        assert!(same_keys(one, shuffled));
        assert!(!same_keys(one, &shuffled.replace("Ag", "Ah")), "another key of the same name");
        assert!(!same_keys(one, &shuffled.replace("\"a\"", "\"c\"")), "the same key by another name");
        assert!(!same_keys(one, &shuffled.replace(", {\"k\": \"Aw\"}", "")), "one less");
        assert!(!same_keys(one, &shuffled.replace("all", "some")), "other words beside them");
        let twice = [
            r#"{"keys":[{"kid":"a","k":"AQ"},{"kid":"a","k":"Ag"}]}"#,
            r#"{"keys":[{"kid":"a","k":"Ag"},{"kid":"a","k":"AQ"}]}"#,
        ];
        assert!(same_keys(twice[0], twice[1]), "a name that is given twice");
        assert!(same_keys("nothing", "nothing"));
        assert!(!same_keys("nothing", "nothing "), "what cannot be read is compared as it is");
    }

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
