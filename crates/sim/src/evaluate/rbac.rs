//! Role-based access control, as Envoy decides it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use pilot_envoy_api::envoy::config::core::v3::CidrRange;
use pilot_envoy_api::envoy::config::rbac::v3::permission::Rule;
use pilot_envoy_api::envoy::config::rbac::v3::principal::Identifier;
use pilot_envoy_api::envoy::config::rbac::v3::rbac::Action;
use pilot_envoy_api::envoy::config::rbac::v3::{Permission, Policy, Principal, Rbac};
use pilot_envoy_api::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use pilot_envoy_api::envoy::r#type::matcher::v3::metadata_matcher::path_segment::Segment;
use pilot_envoy_api::envoy::r#type::matcher::v3::{
    MetadataMatcher, PathMatcher, ValueMatcher, list_matcher, path_matcher, value_matcher,
};
use pilot_envoy_api::from_any;
use serde_json::Value;

use super::listener::covers;
use super::{Call, HttpCall, matching};

/// What is known about who calls, and what.
pub(super) struct Peer<'a> {
    pub(super) call: &'a Call,
    pub(super) http: Option<&'a HttpCall>,
    pub(super) direct: IpAddr,
    pub(super) remote: IpAddr,
    /// What the token said.
    pub(super) claims: &'a BTreeMap<String, Value>,
}

pub(super) fn allows(rules: &Rbac, peer: &Peer<'_>) -> Result<bool, String> {
    let mut matched = false;
    for policy in rules.policies.values() {
        matched |= applies(policy, peer)?;
    }
    Ok(match rules.action() {
        Action::Allow => matched,
        Action::Deny => !matched,
        Action::Log => true,
    })
}

fn applies(policy: &Policy, peer: &Peer<'_>) -> Result<bool, String> {
    Ok(any(&policy.permissions, |p| permission(p, peer))? && any(&policy.principals, |p| principal(p, peer))?)
}

fn any<T>(items: &[T], test: impl Fn(&T) -> Result<bool, String>) -> Result<bool, String> {
    let mut found = false;
    for item in items {
        found |= test(item)?;
    }
    Ok(found)
}

fn all<T>(items: &[T], test: impl Fn(&T) -> Result<bool, String>) -> Result<bool, String> {
    Ok(!any(items, |item| Ok(!test(item)?))?)
}

#[allow(deprecated, reason = "Istio's proxies of all supported versions read this field")]
fn permission(permission: &Permission, peer: &Peer<'_>) -> Result<bool, String> {
    let only_http = |test: &dyn Fn(&HttpCall) -> Result<bool, String>| peer.http.map_or(Ok(false), test);
    match permission.rule.as_ref() {
        Some(Rule::AndRules(set)) => all(&set.rules, |rule| self::permission(rule, peer)),
        Some(Rule::OrRules(set)) => any(&set.rules, |rule| self::permission(rule, peer)),
        Some(Rule::NotRule(rule)) => Ok(!self::permission(rule, peer)?),
        Some(Rule::Any(any)) => Ok(*any),
        Some(Rule::Header(header)) => only_http(&|http| matching::header(header, http)),
        Some(Rule::UrlPath(wanted)) => only_http(&|http| path(wanted, http)),
        Some(Rule::UriTemplate(template)) => {
            let config = template.typed_config.as_ref().and_then(from_any::<UriTemplateMatchConfig>);
            let config = config.ok_or("a path template cannot be read")?;
            only_http(&|http| Ok(fits_template(&config.path_template, only_path(http))))
        }
        Some(Rule::DestinationIp(range)) => Ok(is_in(range, peer.call.to.ip())),
        Some(Rule::DestinationPort(port)) => Ok(*port == u32::from(peer.call.to.port())),
        Some(Rule::RequestedServerName(name)) => {
            let said = peer.call.tls.as_ref().map(|tls| tls.server_name.as_str()).unwrap_or_default();
            matching::text(name, said)
        }
        Some(Rule::Metadata(wanted)) => metadata(wanted, peer),
        other => Err(format!("unknown permission {other:?}")),
    }
}

#[allow(deprecated, reason = "Istio's proxies of all supported versions read this field")]
fn principal(principal: &Principal, peer: &Peer<'_>) -> Result<bool, String> {
    match principal.identifier.as_ref() {
        Some(Identifier::AndIds(set)) => all(&set.ids, |id| self::principal(id, peer)),
        Some(Identifier::OrIds(set)) => any(&set.ids, |id| self::principal(id, peer)),
        Some(Identifier::NotId(id)) => Ok(!self::principal(id, peer)?),
        Some(Identifier::Any(any)) => Ok(*any),
        Some(Identifier::DirectRemoteIp(range)) => Ok(is_in(range, peer.direct)),
        Some(Identifier::RemoteIp(range)) => Ok(is_in(range, peer.remote)),
        Some(Identifier::Header(header)) => {
            peer.http.map_or(Ok(false), |http| matching::header(header, http))
        }
        Some(Identifier::Metadata(wanted)) => metadata(wanted, peer),
        // Callers have no identity of the mesh.
        Some(Identifier::Authenticated(_)) => Ok(false),
        other => Err(format!("unknown principal {other:?}")),
    }
}

fn is_in(range: &CidrRange, ip: IpAddr) -> bool {
    covers(range, ip).is_some()
}

fn only_path(http: &HttpCall) -> &str {
    http.path.split(['?', '#']).next().unwrap_or_default()
}

fn path(matcher: &PathMatcher, http: &HttpCall) -> Result<bool, String> {
    let Some(path_matcher::Rule::Path(text)) = &matcher.rule else {
        return Err(format!("unknown path matcher {matcher:?}"));
    };
    matching::text(text, only_path(http))
}

/// `*` is one part of a path, `**` any number of them.
fn fits_template(template: &str, path: &str) -> bool {
    fn fits(wanted: &[&str], parts: &[&str]) -> bool {
        match (wanted, parts) {
            ([], []) => true,
            (["**", rest @ ..], parts) => (0..=parts.len()).any(|n| fits(rest, &parts[n..])),
            (["*", rest @ ..], [part, parts @ ..]) => !part.is_empty() && fits(rest, parts),
            ([word, rest @ ..], [part, parts @ ..]) => word == part && fits(rest, parts),
            _ => false,
        }
    }
    let parts = |text: &'_ str| -> Vec<String> { text.split('/').skip(1).map(str::to_owned).collect() };
    let (wanted, parts) = (parts(template), parts(path));
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    fits(&wanted, &parts)
}

fn metadata(matcher: &MetadataMatcher, peer: &Peer<'_>) -> Result<bool, String> {
    let mut keys =
        matcher.path.iter().filter_map(|at| at.segment.as_ref()).map(|Segment::Key(key)| key.as_str());
    let first = keys.next().and_then(|key| peer.claims.get(key));
    let found = keys.try_fold(first, |at, key| Some(at?.get(key))).flatten();
    let wanted = matcher.value.as_ref().ok_or("a metadata matcher has no value")?;
    let fits = match found {
        Some(found) if matcher.filter == "envoy.filters.http.jwt_authn" => value(wanted, found)?,
        _ => false,
    };
    Ok(fits != matcher.invert)
}

fn value(matcher: &ValueMatcher, found: &Value) -> Result<bool, String> {
    match &matcher.match_pattern {
        Some(value_matcher::MatchPattern::StringMatch(text)) => {
            found.as_str().map_or(Ok(false), |found| matching::text(text, found))
        }
        Some(value_matcher::MatchPattern::OrMatch(or)) => any(&or.value_matchers, |m| value(m, found)),
        Some(value_matcher::MatchPattern::ListMatch(list)) => match (&list.match_pattern, found) {
            (Some(list_matcher::MatchPattern::OneOf(one)), Value::Array(items)) => {
                any(items, |item| value(one, item))
            }
            _ => Ok(false),
        },
        other => Err(format!("unknown value matcher {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::fits_template;

    #[test]
    fn templates_stand_for_parts() {
        assert!(fits_template("/a/*/b", "/a/x/b"));
        assert!(!fits_template("/a/*/b", "/a/x/y/b"));
        assert!(fits_template("/a/**", "/a/x/y"));
        assert!(!fits_template("/a/*", "/b/x"));
    }
}
