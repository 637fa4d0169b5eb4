//! Tokens of an issuer whose keys are public.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Clock, Millis};
use pilot_ca::{KeySet, SpiffeId, TokenError, TokenRules};
use pilot_model::KeySource;
use serde_json::Value;
use tokio::sync::{Mutex, watch};

use super::{Authenticator, Caller, Identified};
use crate::clock::unix_seconds;
use crate::engine::TrustDomains;
use crate::key_sets::{KeyClient, KeyOptions};

/// Whoever sends tokens with keys that nobody has must not make us ask the issuer all the time.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Files cost nothing to look at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Why a rule for tokens cannot be followed.
#[derive(thiserror::Error, PartialEq, Eq, Debug)]
pub enum JwtRuleError {
    #[error(
        "it is not a JSON object such as {{\"issuer\": \"…\", \"jwksUri\": \"…\", \"audiences\": [\"…\"]}}"
    )]
    NotJson,
    #[error("it names no issuer")]
    NoIssuer,
    #[error("it names no audiences, so no token would be good")]
    NoAudiences,
    #[error("jwks: {0}")]
    Keys(#[from] pilot_ca::KeyError),
}

/// Whose tokens are believed, and where his keys are.
#[derive(Clone, PartialEq, Debug)]
pub struct JwtRule {
    rules: TokenRules,
    source: Source,
}

#[derive(Clone, PartialEq, Debug)]
enum Source {
    Text(String),
    File(PathBuf),
    Fetched(KeySource),
}

impl JwtRule {
    /// Istio's `JWT_RULE`, in either spelling of JSON.
    pub fn parse(text: &str) -> Result<Self, JwtRuleError> {
        let value: Value = serde_json::from_str(text).map_err(|_| JwtRuleError::NotJson)?;
        let rule = value.as_object().ok_or(JwtRuleError::NotJson)?;
        let word = |names: &[&str]| {
            names
                .iter()
                .find_map(|name| rule.get(*name))
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let issuer = word(&["issuer"]).ok_or(JwtRuleError::NoIssuer)?.to_owned();
        let audiences = rule.get("audiences").and_then(Value::as_array);
        let audiences: Vec<String> =
            audiences.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
        if audiences.is_empty() {
            return Err(JwtRuleError::NoAudiences);
        }
        let source = match (word(&["jwks"]), word(&["jwksUri", "jwks_uri"])) {
            (Some(keys), _) => {
                KeySet::parse(keys)?;
                Source::Text(keys.to_owned())
            }
            (None, Some(uri)) => match uri.strip_prefix("file://") {
                Some(path) => Source::File(path.into()),
                None => Source::Fetched(KeySource::Uri(uri.into())),
            },
            (None, None) => Source::Fetched(KeySource::Issuer(issuer.as_str().into())),
        };
        Ok(Self { rules: TokenRules { issuer, audiences }, source })
    }

    /// Istio's `TOKEN_ISSUER` and `AUDIENCE`: the issuer tells where his keys are.
    pub fn of_issuer(issuer: &str, audience: &str) -> Self {
        let rules = TokenRules { issuer: issuer.to_owned(), audiences: vec![audience.to_owned()] };
        Self { rules, source: Source::Fetched(KeySource::Issuer(issuer.into())) }
    }
}

pub(super) struct Oidc {
    rule: JwtRule,
    trust: watch::Receiver<TrustDomains>,
    client: KeyClient,
    refresh: Duration,
    clock: Arc<dyn Clock>,
    keys: Mutex<Keys>,
}

#[derive(Default)]
struct Keys {
    set: Option<Arc<KeySet>>,
    /// Whether it told anything or not.
    asked: Option<Millis>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Some,
    /// A token was signed with a key that is not among those we have.
    Newer,
}

impl Oidc {
    pub(super) fn new(
        rule: JwtRule,
        trust: watch::Receiver<TrustDomains>,
        options: &KeyOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let client = KeyClient::new(options, Arc::clone(&clock));
        Self { rule, trust, client, refresh: options.refresh, clock, keys: Mutex::default() }
    }

    async fn check(&self, caller: &Caller) -> Result<Vec<SpiffeId>, String> {
        let token = caller.token().ok_or("no bearer token is presented")?;
        let trust_domain = self.trust.borrow().own.clone();
        let check = |keys: &KeySet| self.rule.rules.check(token, keys, &trust_domain, unix_seconds());
        let mut answer = check(&*self.keys(Need::Some).await?);
        // An issuer who has the same name for a new key is followed too.
        if matches!(answer, Err(TokenError::UnknownKey | TokenError::Signature)) {
            answer = check(&*self.keys(Need::Newer).await?);
        }
        answer.map(|id| vec![id]).map_err(|error| error.to_string())
    }

    /// Callers who come meanwhile wait for the same answer.
    async fn keys(&self, need: Need) -> Result<Arc<KeySet>, String> {
        let mut keys = self.keys.lock().await;
        let now = self.clock.now();
        let age = keys.asked.map(|at| Duration::from_millis(now.saturating_sub(at)));
        let pause = if matches!(self.rule.source, Source::Fetched(_)) { ASK_AGAIN } else { LOOK_AGAIN };
        let limit = if need == Need::Newer || keys.set.is_none() { pause } else { self.refresh };
        if age.is_none_or(|age| age >= limit) {
            let answer = self.fetch().await;
            keys.asked = Some(self.clock.now());
            match (answer, &keys.set) {
                (Ok(set), _) => keys.set = Some(Arc::new(set)),
                (Err(error), Some(_)) => {
                    tracing::warn!("keys of {}: {error}; the last ones are used", self.rule.rules.issuer);
                }
                (Err(error), None) => {
                    tracing::warn!("keys of {}: {error}; its tokens are refused", self.rule.rules.issuer);
                    return Err(error);
                }
            }
        }
        keys.set.clone().ok_or_else(|| "the issuer's keys are not known".to_owned())
    }

    async fn fetch(&self) -> Result<KeySet, String> {
        let (client, source) = (self.client.clone(), self.rule.source.clone());
        let text = tokio::task::spawn_blocking(move || match source {
            Source::Text(text) => Ok(text),
            Source::File(path) => {
                fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
            }
            Source::Fetched(source) => client.keys(&source),
        });
        let text = text.await.map_err(|_| "asking broke off".to_owned())??;
        KeySet::parse(&text).map_err(|error| error.to_string())
    }
}

impl Authenticator for Oidc {
    fn name(&self) -> &'static str {
        "IDTokenAuthenticator"
    }

    fn identify<'a>(&'a self, caller: &'a Caller) -> Identified<'a> {
        Box::pin(self.check(caller))
    }
}

#[cfg(test)]
mod tests {
    use super::{JwtRule, JwtRuleError, KeySource, Source};

    #[test]
    fn rules_are_istios() {
        let rule = |text: &str| JwtRule::parse(text).map(|rule| rule.source);
        let uri = r#"{"issuer": "foo", "jwks_uri": "https://baz", "audiences": ["aud1", "aud2"]}"#;
        assert_eq!(rule(uri), Ok(Source::Fetched(KeySource::Uri("https://baz".into()))));
        assert_eq!(rule(&uri.replace("jwks_uri", "jwksUri")), rule(uri));
        let file = uri.replace("https://baz", "file:///keys.json");
        assert_eq!(rule(&file), Ok(Source::File("/keys.json".into())));
        let issuer = r#"{"issuer": "https://foo", "audiences": ["a"]}"#;
        assert_eq!(rule(issuer), Ok(Source::Fetched(KeySource::Issuer("https://foo".into()))));
        assert_eq!(rule("hello"), Err(JwtRuleError::NotJson));
        assert_eq!(rule("[]"), Err(JwtRuleError::NotJson));
        assert_eq!(rule(r#"{"audiences": ["a"]}"#), Err(JwtRuleError::NoIssuer));
        assert_eq!(rule(r#"{"issuer": "a"}"#), Err(JwtRuleError::NoAudiences));
        let bad = r#"{"issuer": "a", "audiences": ["a"], "jwks": "{}"}"#;
        assert_eq!(rule(bad), Err(JwtRuleError::Keys(pilot_ca::KeyError::NotKeys)));
    }
}
