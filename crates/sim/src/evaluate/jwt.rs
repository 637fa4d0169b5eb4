//! Tokens, as Envoy checks them. No clock is looked at: whatever expires after [`NOW`] has not expired.

use data_encoding::BASE64URL_NOPAD;
use pilot_envoy_api::envoy::config::core::v3::data_source::Specifier;
use pilot_envoy_api::envoy::extensions::filters::http::jwt_authn::v3::jwt_provider::JwksSourceSpecifier;
use pilot_envoy_api::envoy::extensions::filters::http::jwt_authn::v3::jwt_requirement::RequiresType;
use pilot_envoy_api::envoy::extensions::filters::http::jwt_authn::v3::requirement_rule::RequirementType;
use pilot_envoy_api::envoy::extensions::filters::http::jwt_authn::v3::{
    JwtAuthentication, JwtProvider, JwtRequirement,
};
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use serde_json::Value;

use super::{HttpCall, matching};

/// Tokens of tests expire long before or long after.
const NOW: i64 = 1_790_000_000;

pub(super) enum Outcome {
    /// The request goes on without its token, and what the token said.
    Passed { http: HttpCall, payload: Option<Value> },
    /// With this status.
    Refused(u16),
}

/// What came of one requirement.
enum Check {
    Good(Option<(String, Token)>),
    Missing,
    Bad(u16),
}

/// The status for a token that is no good, and for one that is meant for somebody else.
const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;

#[derive(Clone)]
struct Token {
    payload: Value,
    encoded_payload: String,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Header(String),
    Query(String),
    Cookie,
}

pub(super) fn check(config: &JwtAuthentication, http: &HttpCall) -> Result<Outcome, String> {
    for rule in &config.rules {
        let matcher = rule.r#match.as_ref().ok_or("a rule for tokens matches nothing")?;
        if !matching::route(matcher, http)? {
            continue;
        }
        let Some(RequirementType::Requires(wanted)) = &rule.requirement_type else { break };
        return Ok(match requirement(config, wanted, http)? {
            Check::Good(Some((provider, token))) => {
                let provider = config.providers.get(&provider).ok_or("a provider is missing")?;
                Outcome::Passed {
                    http: passed_on(provider, &token, http),
                    payload: Some(normal(provider, token)),
                }
            }
            Check::Good(None) => Outcome::Passed { http: http.clone(), payload: None },
            Check::Missing => Outcome::Refused(UNAUTHORIZED),
            Check::Bad(status) => Outcome::Refused(status),
        });
    }
    Ok(Outcome::Passed { http: http.clone(), payload: None })
}

fn requirement(
    config: &JwtAuthentication,
    wanted: &JwtRequirement,
    http: &HttpCall,
) -> Result<Check, String> {
    match wanted.requires_type.as_ref() {
        Some(RequiresType::ProviderName(name)) => {
            let provider = config.providers.get(name).ok_or_else(|| format!("no provider {name}"))?;
            one(name, provider, http)
        }
        Some(RequiresType::RequiresAny(list)) => {
            let allows_missing =
                |r: &JwtRequirement| matches!(r.requires_type, Some(RequiresType::AllowMissing(())));
            let mut bad = None;
            for wanted in list.requirements.iter().filter(|r| !allows_missing(r)) {
                match requirement(config, wanted, http)? {
                    good @ Check::Good(_) => return Ok(good),
                    Check::Bad(status) => bad = bad.or(Some(status)),
                    Check::Missing => (),
                }
            }
            Ok(match bad {
                Some(status) => Check::Bad(status),
                None if list.requirements.iter().any(allows_missing) => Check::Good(None),
                None => Check::Missing,
            })
        }
        Some(RequiresType::RequiresAll(list)) => {
            let mut last = None;
            for wanted in &list.requirements {
                match requirement(config, wanted, http)? {
                    Check::Good(token) => last = token.or(last),
                    other => return Ok(other),
                }
            }
            Ok(Check::Good(last))
        }
        other => Err(format!("unknown requirement for tokens {other:?}")),
    }
}

fn one(name: &str, provider: &JwtProvider, http: &HttpCall) -> Result<Check, String> {
    let tokens = tokens(provider, http);
    if tokens.is_empty() {
        return Ok(Check::Missing);
    }
    let mut status = UNAUTHORIZED;
    for (text, place) in tokens {
        match verify(provider, &text)? {
            Some((payload, _)) if !is_for(provider, &payload) => status = FORBIDDEN,
            Some((payload, encoded_payload)) => {
                let token = Token { payload, encoded_payload, place };
                return Ok(Check::Good(Some((name.to_owned(), token))));
            }
            None => (),
        }
    }
    Ok(Check::Bad(status))
}

/// Every token in the places where the provider's are looked for.
fn tokens(provider: &JwtProvider, http: &HttpCall) -> Vec<(String, Place)> {
    let header = |name: &str| {
        http.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
    };
    let query = |name: &str| {
        let (_, query) = http.path.split_once('?')?;
        query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}="))).map(str::to_owned)
    };
    let cookie = |name: &str| {
        let cookies = header("cookie")?;
        cookies.split(';').find_map(|pair| pair.trim().strip_prefix(&format!("{name}="))).map(str::to_owned)
    };
    let mut out = Vec::new();
    let anywhere = provider.from_headers.is_empty()
        && provider.from_params.is_empty()
        && provider.from_cookies.is_empty();
    if anywhere {
        let bearer =
            header("authorization").and_then(|value| value.strip_prefix("Bearer ").map(str::to_owned));
        out.extend(bearer.map(|token| (token, Place::Header("authorization".to_owned()))));
        out.extend(query("access_token").map(|token| (token, Place::Query("access_token".to_owned()))));
    }
    for from in &provider.from_headers {
        let value = header(&from.name);
        let token = value.and_then(|value| value.strip_prefix(&from.value_prefix).map(str::to_owned));
        out.extend(token.map(|token| (token, Place::Header(from.name.clone()))));
    }
    for name in &provider.from_params {
        out.extend(query(name).map(|token| (token, Place::Query(name.clone()))));
    }
    for name in &provider.from_cookies {
        out.extend(cookie(name).map(|token| (token, Place::Cookie)));
    }
    out
}

/// What a good token says, and the same as it was encoded.
fn verify(provider: &JwtProvider, token: &str) -> Result<Option<(Value, String)>, String> {
    let parts: Vec<&str> = token.split('.').collect();
    let [header, payload, signature] = parts[..] else { return Ok(None) };
    let json = |part: &str| {
        BASE64URL_NOPAD.decode(part.as_bytes()).ok().and_then(|b| serde_json::from_slice::<Value>(&b).ok())
    };
    let (Some(head), Some(said), Ok(signature)) =
        (json(header), json(payload), BASE64URL_NOPAD.decode(signature.as_bytes()))
    else {
        return Ok(None);
    };
    if head.get("alg").and_then(Value::as_str) != Some("RS256") {
        return Err(format!("tokens signed with {:?} are unknown", head.get("alg")));
    }
    let keys = match &provider.jwks_source_specifier {
        Some(JwksSourceSpecifier::LocalJwks(source)) => match &source.specifier {
            Some(Specifier::InlineString(text)) => serde_json::from_str::<Value>(text).unwrap_or_default(),
            _ => return Err("keys come from an unknown place".to_owned()),
        },
        _ => return Err("keys are fetched by Envoy, which nobody does here".to_owned()),
    };
    let signed = format!("{header}.{payload}");
    let good = keys.get("keys").and_then(Value::as_array).is_some_and(|keys| {
        keys.iter().any(|key| {
            let number = |name: &str| BASE64URL_NOPAD.decode(key.get(name)?.as_str()?.as_bytes()).ok();
            let (Some(n), Some(e)) = (number("n"), number("e")) else { return false };
            let key = RsaPublicKeyComponents { n, e };
            key.verify(&RSA_PKCS1_2048_8192_SHA256, signed.as_bytes(), &signature).is_ok()
        })
    });
    let issuer = said.get("iss").and_then(Value::as_str).unwrap_or_default();
    let expires = said.get("exp").and_then(Value::as_i64);
    let accepted = good
        && (provider.issuer.is_empty() || provider.issuer == issuer)
        && expires.is_none_or(|expires| expires > NOW);
    Ok(accepted.then(|| (said, payload.to_owned())))
}

/// Is it meant for the audience that the provider wants?
fn is_for(provider: &JwtProvider, said: &Value) -> bool {
    let audiences: Vec<&str> = match said.get("aud") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    provider.audiences.is_empty()
        || provider.audiences.iter().any(|audience| audiences.contains(&audience.as_str()))
}

/// The request as the next filter sees it.
fn passed_on(provider: &JwtProvider, token: &Token, http: &HttpCall) -> HttpCall {
    let mut http = http.clone();
    if !provider.forward {
        match &token.place {
            Place::Header(name) => http.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name)),
            Place::Query(name) => {
                let (path, query) = http.path.split_once('?').unwrap_or((&http.path, ""));
                let prefix = format!("{name}=");
                let rest: Vec<&str> = query.split('&').filter(|pair| !pair.starts_with(&prefix)).collect();
                http.path =
                    if rest.is_empty() { path.to_owned() } else { format!("{path}?{}", rest.join("&")) };
            }
            Place::Cookie => (),
        }
    }
    let mut set = |name: &str, value: String| {
        http.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
        http.headers.push((name.to_owned(), value));
    };
    if !provider.forward_payload_header.is_empty() {
        set(&provider.forward_payload_header, token.encoded_payload.clone());
    }
    for output in &provider.claim_to_headers {
        let found = output.claim_name.split('.').try_fold(&token.payload, |at, key| at.get(key));
        let text = match found {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null | Value::Array(_) | Value::Object(_)) | None => continue,
            Some(other) => other.to_string(),
        };
        set(&output.header_name, text);
    }
    http
}

/// Some claims are lists written as a text.
fn normal(provider: &JwtProvider, token: Token) -> Value {
    let mut payload = token.payload;
    let lists = provider.normalize_payload_in_metadata.as_ref().map(|n| &n.space_delimited_claims);
    for name in lists.into_iter().flatten() {
        if let Some(claim) = payload.get_mut(name)
            && let Value::String(text) = claim
        {
            *claim = text.split(' ').map(|word| Value::String(word.to_owned())).collect();
        }
    }
    payload
}
