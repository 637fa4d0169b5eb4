//! Who calls.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::rbac::v3::{Principal, principal};
use pilot_envoy_api::envoy::r#type::matcher::v3::{MetadataMatcher, StringMatcher};
use pilot_mesh::{domains_with_aliases, principals_with_aliases};
use pilot_model::{AuthzAttribute, AuthzMatch, ConfigId};

use super::matcher::{self, Case, Pattern};
use super::{Scope, Sight};
use principal::Identifier;

const SPIFFE: &str = "spiffe://";

fn of(identifier: Identifier) -> Principal {
    Principal { identifier: Some(identifier) }
}

pub(super) fn any() -> Principal {
    of(Identifier::Any(true))
}

pub(super) fn not(principal: Principal) -> Principal {
    of(Identifier::NotId(Box::new(principal)))
}

fn or(ids: Vec<Principal>) -> Principal {
    of(Identifier::OrIds(principal::Set { ids }))
}

fn and(ids: Vec<Principal>) -> Principal {
    of(Identifier::AndIds(principal::Set { ids }))
}

#[allow(deprecated, reason = "Istio's proxies of all supported versions read this field")]
fn metadata(matcher: MetadataMatcher) -> Principal {
    of(Identifier::Metadata(matcher))
}

/// All of them. Nothing, if one cannot be seen that must hold.
pub(super) fn all(matches: &[&AuthzMatch], policy: &ConfigId, scope: Scope<'_>) -> Option<Principal> {
    let mut ids = Vec::new();
    for m in matches {
        match scope.can_see(m) {
            Sight::Hopeless => return None,
            Sight::Unseen => (),
            Sight::Seen => {
                ids.extend(one_of(&m.attribute, &with_aliases(m, &m.values, scope), policy));
                ids.extend(one_of(&m.attribute, &with_aliases(m, &m.not_values, scope), policy).map(not));
            }
        }
    }
    if ids.is_empty() {
        ids.push(any());
    }
    Some(and(ids))
}

fn with_aliases(m: &AuthzMatch, values: &[Name], scope: Scope<'_>) -> Vec<Name> {
    match m.attribute {
        AuthzAttribute::Principal => principals_with_aliases(values, scope.mesh),
        AuthzAttribute::TrustDomain => domains_with_aliases(values, scope.mesh),
        _ => values.to_vec(),
    }
}

fn one_of(attribute: &AuthzAttribute, values: &[Name], policy: &ConfigId) -> Option<Principal> {
    use AuthzAttribute as A;
    if values.is_empty() {
        return None;
    }
    let claim = |path: &[&str]| metadata(matcher::claim_any(path, values));
    match attribute {
        A::RequestPrincipal => {
            let mut ids: Vec<Principal> = values.iter().map(|value| request_principal(value)).collect();
            return Some(if ids.len() == 1 { ids.remove(0) } else { or(ids) });
        }
        A::Audiences => return Some(claim(&["aud"])),
        A::Presenter => return Some(claim(&["azp"])),
        A::Claim(path) => return Some(claim(&path.iter().map(Name::as_str).collect::<Vec<_>>())),
        _ => (),
    }
    let ids: Vec<Principal> =
        values.iter().filter_map(|value| single(attribute, value, policy)).map(of).collect();
    (!ids.is_empty()).then(|| or(ids))
}

fn single(attribute: &AuthzAttribute, value: &str, policy: &ConfigId) -> Option<Identifier> {
    use AuthzAttribute as A;
    match attribute {
        A::SourceIp => matcher::cidr(value).map(Identifier::DirectRemoteIp),
        A::RemoteIp => matcher::cidr(value).map(Identifier::RemoteIp),
        A::Namespace => Some(authenticated(namespace(value))),
        A::ServiceAccount => Some(authenticated(service_account(value, policy))),
        A::TrustDomain => Some(authenticated(trust_domain(value))),
        A::Principal => Some(authenticated(peer(value))),
        A::Header(name) => Some(Identifier::Header(matcher::header(name, value, Case::Matters))),
        _ => None,
    }
}

fn authenticated(name: StringMatcher) -> Identifier {
    Identifier::Authenticated(principal::Authenticated { principal_name: Some(name) })
}

fn namespace(value: &str) -> StringMatcher {
    let parts: Vec<String> = value.split('*').map(matcher::quote).collect();
    matcher::regex(format!(".*/ns/{}/.*", parts.join(".*")))
}

/// Other pairs may stand in an identity between the namespace and the account, and behind them.
fn service_account(value: &str, policy: &ConfigId) -> StringMatcher {
    let (namespace, account) = value.split_once('/').unwrap_or((policy.namespace.as_str(), value));
    let (namespace, account) = (matcher::quote(namespace), matcher::quote(account));
    matcher::regex(format!("{SPIFFE}.+/ns/{namespace}/(.+/|)sa/{account}(/.+)?"))
}

fn trust_domain(value: &str) -> StringMatcher {
    match value.split_once('*') {
        None => matcher::prefix(&format!("{SPIFFE}{value}/")),
        Some(("", "")) => matcher::prefix(SPIFFE),
        Some((before, after)) => {
            let (before, after) = (matcher::quote(before), matcher::quote(after));
            matcher::regex(format!("{SPIFFE}{before}[^/]*{after}/.*"))
        }
    }
}

fn peer(value: &str) -> StringMatcher {
    match matcher::pattern(value) {
        Pattern::Any => matcher::something(),
        Pattern::Suffix(text) => matcher::regex(format!("{SPIFFE}.*{}", matcher::quote(text))),
        Pattern::Prefix(text) => matcher::prefix(&format!("{SPIFFE}{text}")),
        Pattern::Exact(text) => matcher::exact(&format!("{SPIFFE}{text}")),
    }
}

/// `issuer/subject`, where the issuer may have slashes itself.
fn request_principal(value: &str) -> Principal {
    let whole = value.rsplit_once('/');
    let (issuer, subject) = match (matcher::pattern(value), whole) {
        (Pattern::Any, _) => (matcher::something(), matcher::something()),
        (Pattern::Suffix(_), Some((issuer, subject))) => {
            let issuer = match issuer.strip_prefix('*') {
                Some("") | None => matcher::something(),
                Some(text) => matcher::suffix(text),
            };
            (issuer, matcher::exact(subject))
        }
        (Pattern::Suffix(text), None) => (matcher::something(), matcher::suffix(text)),
        (Pattern::Prefix(_), Some((issuer, subject))) => {
            let subject = match subject.strip_suffix('*') {
                Some("") | None => matcher::something(),
                Some(text) => matcher::prefix(text),
            };
            (matcher::exact(issuer), subject)
        }
        (Pattern::Prefix(text), None) => (matcher::prefix(text), matcher::something()),
        (Pattern::Exact(_), Some((issuer, subject))) => (matcher::exact(issuer), matcher::exact(subject)),
        (Pattern::Exact(_), None) => (matcher::exact(value), matcher::exact("")),
    };
    let claim = |name: &str, text: StringMatcher| metadata(matcher::claim(name, text));
    and(vec![claim("iss", issuer), claim("sub", subject)])
}
