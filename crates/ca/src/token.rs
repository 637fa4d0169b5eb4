use data_encoding::BASE64URL_NOPAD;
use serde_json::Value;

use crate::UnixSeconds;
use crate::jwk::{KeySet, Verdict};
use crate::spiffe::SpiffeId;

/// Tokens of service accounts have a thousand bytes or two.
const MAX_TOKEN: usize = 32 << 10;
/// How Kubernetes names a service account, and everybody who issues tokens for workloads after it.
const SUBJECT: &str = "system:serviceaccount:";

/// Which tokens are believed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TokenRules {
    pub issuer: String,
    /// One of them must be named in the token.
    pub audiences: Vec<String>,
}

/// Why a token is not believed. It never has the token in it.
#[derive(thiserror::Error, PartialEq, Eq, Debug)]
pub enum TokenError {
    #[error("the token is not a signed JWT")]
    Malformed,
    /// The issuer may have a new key.
    #[error("none of the issuer's keys fits the token")]
    UnknownKey,
    #[error("the token's signature is wrong")]
    Signature,
    #[error("the token is of another issuer")]
    Issuer,
    #[error("the token is for another audience")]
    Audience,
    #[error("the token has expired, or does not tell when it will")]
    Expired,
    #[error("the token is not good yet")]
    NotYet,
    #[error("the token's subject is not system:serviceaccount:<namespace>:<account>")]
    Subject,
}

impl TokenRules {
    /// Whose token it is.
    pub fn check(
        &self,
        token: &str,
        keys: &KeySet,
        trust_domain: &str,
        now: UnixSeconds,
    ) -> Result<SpiffeId, TokenError> {
        let claims = verified(token, keys)?;
        if claims.get("iss").and_then(Value::as_str) != Some(self.issuer.as_str()) {
            return Err(TokenError::Issuer);
        }
        let time = |name: &str| match claims.get(name) {
            None => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or(TokenError::Malformed),
        };
        #[allow(clippy::cast_precision_loss, reason = "seconds since 1970 are far below 2^52")]
        let now = now as f64;
        // Clocks of issuers may be ahead of ours.
        const AHEAD: f64 = 300.0;
        match (time("exp")?, time("nbf")?) {
            (Some(end), _) if end <= now => return Err(TokenError::Expired),
            (None, _) => return Err(TokenError::Expired),
            (_, Some(begin)) if begin > now + AHEAD => return Err(TokenError::NotYet),
            _ => {}
        }
        if !self.is_for_us(claims.get("aud")) {
            return Err(TokenError::Audience);
        }
        let subject = claims.get("sub").and_then(Value::as_str).and_then(|sub| sub.strip_prefix(SUBJECT));
        let parts: Vec<&str> = subject.ok_or(TokenError::Subject)?.split(':').collect();
        let [namespace, account] = parts[..] else { return Err(TokenError::Subject) };
        SpiffeId::new(trust_domain, namespace, account).ok_or(TokenError::Subject)
    }

    fn is_for_us(&self, said: Option<&Value>) -> bool {
        let known = |value: &Value| value.as_str().is_some_and(|aud| self.audiences.iter().any(|a| a == aud));
        match said {
            Some(Value::Array(list)) => list.iter().any(known),
            Some(value) => known(value),
            None => false,
        }
    }
}

/// What a token says, once its signature was seen to be the issuer's.
fn verified(token: &str, keys: &KeySet) -> Result<Value, TokenError> {
    if token.len() > MAX_TOKEN {
        return Err(TokenError::Malformed);
    }
    let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
    let (header, claims) = message.split_once('.').ok_or(TokenError::Malformed)?;
    let decode = |text: &str| BASE64URL_NOPAD.decode(text.as_bytes()).map_err(|_| TokenError::Malformed);
    let json = |text: &str| -> Result<Value, TokenError> {
        serde_json::from_slice(&decode(text)?).map_err(|_| TokenError::Malformed)
    };
    let header = json(header)?;
    let text = |name: &str| header.get(name).and_then(Value::as_str);
    let algorithm = text("alg").ok_or(TokenError::Malformed)?;
    // Extensions that must be understood are not.
    if header.get("crit").is_some() {
        return Err(TokenError::Malformed);
    }
    match keys.verify(algorithm, text("kid"), message.as_bytes(), &decode(signature)?) {
        Verdict::Good => json(claims),
        Verdict::Bad => Err(TokenError::Signature),
        Verdict::NoKey => Err(TokenError::UnknownKey),
    }
}

#[cfg(test)]
mod tests;
