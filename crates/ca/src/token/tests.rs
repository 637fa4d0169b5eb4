use data_encoding::BASE64URL_NOPAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::{TokenError, TokenRules};
use crate::jwk::{KeyError, KeySet};

const NOW: i64 = 1_800_000_000;

struct Issuer(EcdsaKeyPair);

impl Issuer {
    fn new() -> Self {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &random).unwrap())
    }

    fn keys(&self, id: &str) -> KeySet {
        let point = self.0.public_key().as_ref();
        let half = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
        let key = json!({"kty": "EC", "crv": "P-256", "kid": id, "x": half(&point[1..33]), "y": half(&point[33..])});
        KeySet::parse(&json!({"keys": [{"kty": "oct", "k": "AAAA"}, key]}).to_string()).unwrap()
    }

    fn token(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let message = format!("{}.{}", part(header), part(claims));
        let signature = self.0.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", BASE64URL_NOPAD.encode(signature.as_ref()))
    }
}

fn rules() -> TokenRules {
    TokenRules { issuer: "https://issuer".to_owned(), audiences: vec!["istio-ca".to_owned()] }
}

fn claims() -> Value {
    json!({"iss": "https://issuer", "aud": ["other", "istio-ca"], "exp": NOW + 60, "sub": "system:serviceaccount:shop:cart"})
}

#[test]
fn a_good_token_tells_who_calls() {
    let issuer = Issuer::new();
    let token = issuer.token(&json!({"alg": "ES256", "kid": "one"}), &claims());
    let id = rules().check(&token, &issuer.keys("one"), "cluster.local", NOW).unwrap();
    assert_eq!(id.to_string(), "spiffe://cluster.local/ns/shop/sa/cart");
    let mut one_audience = claims();
    one_audience["aud"] = json!("istio-ca");
    let token = issuer.token(&json!({"alg": "ES256"}), &one_audience);
    assert!(rules().check(&token, &issuer.keys("one"), "cluster.local", NOW).is_ok());
}

#[test]
fn a_claim_that_is_wrong_is_named() {
    let issuer = Issuer::new();
    let keys = issuer.keys("one");
    for (claim, value, why) in [
        ("iss", json!("https://other"), TokenError::Issuer),
        ("aud", json!(["other"]), TokenError::Audience),
        ("aud", Value::Null, TokenError::Audience),
        ("exp", json!(NOW), TokenError::Expired),
        ("exp", json!("never"), TokenError::Malformed),
        ("nbf", json!(NOW + 3600), TokenError::NotYet),
        ("sub", json!("somebody"), TokenError::Subject),
        ("sub", json!("system:serviceaccount:shop"), TokenError::Subject),
        ("sub", json!("system:serviceaccount:shop:cart:more"), TokenError::Subject),
        ("sub", json!("system:serviceaccount:shop/sa/admin:cart"), TokenError::Subject),
    ] {
        let mut claims = claims();
        claims[claim] = value;
        let token = issuer.token(&json!({"alg": "ES256"}), &claims);
        assert_eq!(rules().check(&token, &keys, "cluster.local", NOW), Err(why), "{claims}");
    }
    let mut forever = claims();
    forever.as_object_mut().unwrap().remove("exp");
    let token = issuer.token(&json!({"alg": "ES256"}), &forever);
    assert_eq!(rules().check(&token, &keys, "cluster.local", NOW), Err(TokenError::Expired));
}

#[test]
fn only_the_issuers_signature_counts() {
    let (issuer, thief) = (Issuer::new(), Issuer::new());
    let keys = issuer.keys("one");
    let check = |token: &str| rules().check(token, &keys, "cluster.local", NOW).unwrap_err();
    let header = json!({"alg": "ES256", "kid": "one"});
    assert_eq!(check(&thief.token(&header, &claims())), TokenError::Signature);
    assert_eq!(
        check(&issuer.token(&json!({"alg": "ES256", "kid": "two"}), &claims())),
        TokenError::UnknownKey
    );
    for algorithm in ["none", "HS256", "RS256", "ES384"] {
        assert_eq!(check(&issuer.token(&json!({"alg": algorithm}), &claims())), TokenError::UnknownKey);
    }
    let extended = json!({"alg": "ES256", "crit": ["x"]});
    assert_eq!(check(&issuer.token(&extended, &claims())), TokenError::Malformed);
    for text in ["", "a", "a.b", "a.b.c", "..", &"x".repeat(100_000)] {
        assert_eq!(check(text), TokenError::Malformed, "{}", text.len());
    }
}

#[test]
fn a_set_without_keys_is_refused() {
    let why = |text: &str| KeySet::parse(text).err();
    assert_eq!(why("<html>"), Some(KeyError::NotKeys));
    assert_eq!(why("[]"), Some(KeyError::NotKeys));
    assert_eq!(why(r#"{"keys": []}"#), Some(KeyError::NoneUsable));
    assert_eq!(
        why(r#"{"keys": [{"kty": "RSA", "n": "AQAB"}, {"kty": "oct", "k": "AA"}]}"#),
        Some(KeyError::NoneUsable)
    );
}
