//! The keys of a token issuer (RFC 7517), and whether one of them made a signature (RFC 7518).

use data_encoding::BASE64URL_NOPAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde_json::Value;

/// Why a text is no set of keys.
#[derive(thiserror::Error, PartialEq, Eq, Debug)]
pub enum KeyError {
    #[error("it is not a JSON object with a list of keys")]
    NotKeys,
    #[error("none of its keys is RSA, EC or Ed25519 with all its parts")]
    NoneUsable,
}

/// Public keys that tokens are checked with.
pub struct KeySet(Vec<Key>);

struct Key {
    id: Option<String>,
    public: Public,
}

enum Public {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// What came of a look at a signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Good,
    Bad,
    /// No key has the name, or fits the algorithm; the issuer may have a new one.
    NoKey,
}

impl KeySet {
    /// Keys of kinds that nobody knows are passed over; so are secrets, which no issuer gives away.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let value: Value = serde_json::from_str(text).map_err(|_| KeyError::NotKeys)?;
        let list = value.get("keys").and_then(Value::as_array).ok_or(KeyError::NotKeys)?;
        let keys: Vec<Key> = list.iter().filter_map(Key::read).collect();
        if keys.is_empty() { Err(KeyError::NoneUsable) } else { Ok(Self(keys)) }
    }

    /// A token without the name of a key is tried with all that fit.
    pub(crate) fn verify(
        &self,
        algorithm: &str,
        id: Option<&str>,
        message: &[u8],
        signature: &[u8],
    ) -> Verdict {
        let named = self.0.iter().filter(|key| id.is_none() || key.id.is_none() || key.id.as_deref() == id);
        let mut verdict = Verdict::NoKey;
        for key in named {
            match key.public.verify(algorithm, message, signature) {
                Some(true) => return Verdict::Good,
                Some(false) => verdict = Verdict::Bad,
                None => {}
            }
        }
        verdict
    }
}

impl Key {
    fn read(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name).and_then(Value::as_str);
        let bytes = |name: &str| BASE64URL_NOPAD.decode(text(name)?.trim_end_matches('=').as_bytes()).ok();
        let point = || {
            // Both halves, uncompressed.
            let (x, y) = (bytes("x")?, bytes("y")?);
            Some([&[4], x.as_slice(), y.as_slice()].concat())
        };
        let public = match (text("kty")?, text("crv")) {
            ("RSA", _) => Public::Rsa { n: bytes("n")?, e: bytes("e")? },
            ("EC", Some("P-256")) => Public::P256(point()?),
            ("EC", Some("P-384")) => Public::P384(point()?),
            ("OKP", Some("Ed25519")) => Public::Ed25519(bytes("x")?),
            _ => return None,
        };
        Some(Self { id: text("kid").map(str::to_owned), public })
    }
}

impl Public {
    /// Nothing if the key is of another kind than the algorithm: what a token says must not choose that.
    fn verify(&self, algorithm: &str, message: &[u8], signature: &[u8]) -> Option<bool> {
        let rsa = match algorithm {
            "RS256" => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
            "RS384" => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
            "RS512" => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
            "PS256" => Some(&signature::RSA_PSS_2048_8192_SHA256),
            "PS384" => Some(&signature::RSA_PSS_2048_8192_SHA384),
            "PS512" => Some(&signature::RSA_PSS_2048_8192_SHA512),
            _ => None,
        };
        let other: (&'static dyn VerificationAlgorithm, &[u8]) = match (self, algorithm) {
            (Self::Rsa { n, e }, _) => {
                return Some(RsaPublicKeyComponents { n, e }.verify(rsa?, message, signature).is_ok());
            }
            (Self::P256(point), "ES256") => (&signature::ECDSA_P256_SHA256_FIXED, point),
            (Self::P384(point), "ES384") => (&signature::ECDSA_P384_SHA384_FIXED, point),
            (Self::Ed25519(point), "EdDSA") => (&signature::ED25519, point),
            _ => return None,
        };
        let (algorithm, point) = other;
        Some(UnparsedPublicKey::new(algorithm, point).verify(message, signature).is_ok())
    }
}
