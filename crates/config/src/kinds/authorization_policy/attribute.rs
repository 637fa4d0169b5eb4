//! Conditions: attributes by the names users give them.

use pilot_api::security as api;
use pilot_base::Name;
use pilot_model::{AuthzAttribute, AuthzMatch};

use super::source::{check_values, in_brackets, wildcard_fault};
use crate::check::{Check, names};

const HEADERS: &str = "request.headers";
const CLAIMS: &str = "request.auth.claims";
const FILTERS: &str = "experimental.envoy.filters.";

pub(super) fn condition(message: api::Condition, path: &str, check: &mut Check<'_>) -> Option<AuthzMatch> {
    if message.key.is_empty() {
        check.reject(format!("{path}.key"), "is missing");
        return None;
    }
    if message.values.is_empty() && message.not_values.is_empty() {
        check.reject(path, format!("needs values or notValues for {}", message.key));
    }
    let attribute = match attribute(&message.key) {
        Ok(attribute) => attribute,
        Err(why) => {
            check.reject(format!("{path}.key"), format!("{:?} {why}", message.key));
            return None;
        }
    };
    for (field, values) in [("values", &message.values), ("notValues", &message.not_values)] {
        let path = format!("{path}.{field}");
        if attribute == AuthzAttribute::TrustDomain {
            // Unlike in a source, a slash is let through here, and matches nothing.
            for (i, value) in values.iter().enumerate() {
                let empty = value.is_empty().then_some("must not be empty");
                if let Some(why) = empty.or_else(|| wildcard_fault(value)) {
                    check.reject(format!("{path}[{i}]"), why);
                }
            }
        } else {
            check_values(&attribute, values, &path, check);
        }
    }
    Some(AuthzMatch { attribute, values: names(message.values), not_values: names(message.not_values) })
}

fn attribute(key: &str) -> Result<AuthzAttribute, &'static str> {
    use AuthzAttribute as A;
    Ok(match key {
        "source.ip" => A::SourceIp,
        "remote.ip" => A::RemoteIp,
        "source.namespace" => A::Namespace,
        "source.serviceAccount" => A::ServiceAccount,
        "source.principal" => A::Principal,
        "source.trustDomain" => A::TrustDomain,
        "request.auth.principal" => A::RequestPrincipal,
        "request.auth.audiences" => A::Audiences,
        "request.auth.presenter" => A::Presenter,
        "destination.ip" => A::DestinationIp,
        "destination.port" => A::DestinationPort,
        "connection.sni" => A::Sni,
        "destination.namespace" => return Err("is no condition: a policy is for the namespace it is in"),
        "destination.name" | "destination.user" => return Err("is no condition any more"),
        _ if key.starts_with("destination.labels") => return Err("is no condition: use the selector"),
        _ => return keyed(key),
    })
}

/// Attributes of which there are many, each under a key in brackets.
fn keyed(key: &str) -> Result<AuthzAttribute, &'static str> {
    let form = "is not of the form attribute[key]";
    if let Some(rest) = key.strip_prefix(HEADERS) {
        return in_brackets(rest).filter(|name| !name.is_empty()).map(AuthzAttribute::Header).ok_or(form);
    }
    if let Some(rest) = key.strip_prefix(CLAIMS) {
        return claims(rest).map(AuthzAttribute::Claim).ok_or(form);
    }
    if key.starts_with(FILTERS) {
        let inner = key.trim_start_matches("experimental.").strip_suffix(']').and_then(|k| k.split_once('['));
        let (filter, key) = inner.filter(|(_, key)| !key.is_empty()).ok_or(form)?;
        return Ok(AuthzAttribute::FilterMetadata { filter: filter.into(), key: key.into() });
    }
    Err("is not a condition anybody knows")
}

/// `[a][b]` leads into a claim; anything else in brackets is one name.
fn claims(text: &str) -> Option<Vec<Name>> {
    let whole = in_brackets(text).filter(|name| !name.is_empty())?;
    let parts: Vec<&str> = whole.split("][").collect();
    let nested = parts.iter().all(|part| !part.contains(['[', ']']));
    Some(if nested { parts.into_iter().map(Name::new).collect() } else { vec![whole] })
}

#[cfg(test)]
mod tests {
    use super::attribute;
    use pilot_base::Name;
    use pilot_model::AuthzAttribute as A;

    #[test]
    fn keys_stand_in_brackets() {
        let claim = |parts: &[&str]| Ok(A::Claim(parts.iter().map(|p| Name::new(p)).collect()));
        assert_eq!(attribute("request.auth.claims[iss]"), claim(&["iss"]));
        assert_eq!(attribute("request.auth.claims[a][b]"), claim(&["a", "b"]));
        assert_eq!(attribute("request.auth.claims[a[b]]"), claim(&["a[b]"]));
        assert_eq!(attribute("request.headers[:path]"), Ok(A::Header(Name::new(":path"))));
        let metadata = A::FilterMetadata { filter: "envoy.filters.a.b".into(), key: "c".into() };
        assert_eq!(attribute("experimental.envoy.filters.a.b[c]"), Ok(metadata));
        for bad in ["request.headers", "request.headers[]", "request.auth.claims[a", "destination.name", "x"]
        {
            assert!(attribute(bad).is_err(), "{bad}");
        }
    }
}
