//! What is called.

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3::TypedExtensionConfig;
use pilot_envoy_api::envoy::config::rbac::v3::{Permission, permission};
use pilot_envoy_api::envoy::extensions::path::r#match::uri_template::v3::UriTemplateMatchConfig;
use pilot_envoy_api::envoy::r#type::matcher::v3 as matcher_api;
use pilot_envoy_api::to_any;
use pilot_model::{AuthzAttribute, AuthzMatch};

use super::matcher::{self, Case};
use super::{Scope, Sight};
use permission::Rule;

fn of(rule: Rule) -> Permission {
    Permission { rule: Some(rule) }
}

pub(super) fn any() -> Permission {
    of(Rule::Any(true))
}

pub(super) fn not(permission: Permission) -> Permission {
    of(Rule::NotRule(Box::new(permission)))
}

fn or(rules: Vec<Permission>) -> Permission {
    of(Rule::OrRules(permission::Set { rules }))
}

#[allow(deprecated, reason = "Istio's proxies of all supported versions read this field")]
fn metadata(matcher: matcher_api::MetadataMatcher) -> Permission {
    of(Rule::Metadata(matcher))
}

/// All of them. Nothing, if one cannot be seen that must hold.
pub(super) fn all(matches: &[&AuthzMatch], scope: Scope<'_>) -> Option<Permission> {
    let mut rules = Vec::new();
    for m in matches {
        match scope.can_see(m) {
            Sight::Hopeless => return None,
            Sight::Unseen => (),
            Sight::Seen => {
                rules.extend(one_of(&m.attribute, &m.values));
                rules.extend(one_of(&m.attribute, &m.not_values).map(not));
            }
        }
    }
    if rules.is_empty() {
        rules.push(any());
    }
    Some(of(Rule::AndRules(permission::Set { rules })))
}

fn one_of(attribute: &AuthzAttribute, values: &[Name]) -> Option<Permission> {
    if values.is_empty() {
        return None;
    }
    if let AuthzAttribute::FilterMetadata { filter, key } = attribute {
        return Some(metadata(filter_metadata(filter, key, values)));
    }
    let rules: Vec<Permission> = values.iter().filter_map(|value| single(attribute, value)).map(of).collect();
    (!rules.is_empty()).then(|| or(rules))
}

fn single(attribute: &AuthzAttribute, value: &str) -> Option<Rule> {
    use AuthzAttribute as A;
    match attribute {
        A::DestinationIp => matcher::cidr(value).map(Rule::DestinationIp),
        A::DestinationPort => value.parse().ok().map(Rule::DestinationPort),
        A::Sni => Some(Rule::RequestedServerName(matcher::text(value))),
        A::Host => Some(Rule::Header(matcher::header(":authority", value, Case::Ignored))),
        A::Method => Some(Rule::Header(matcher::header(":method", value, Case::Matters))),
        A::Path => Some(path(value)),
        _ => None,
    }
}

fn path(value: &str) -> Rule {
    use matcher_api::path_matcher;
    if value.contains("{*}") || value.contains("{**}") {
        let path_template = value.replace("{**}", "**").replace("{*}", "*");
        return Rule::UriTemplate(TypedExtensionConfig {
            name: "uri-template".to_owned(),
            typed_config: Some(to_any(&UriTemplateMatchConfig { path_template })),
        });
    }
    Rule::UrlPath(matcher_api::PathMatcher { rule: Some(path_matcher::Rule::Path(matcher::text(value))) })
}

/// A value in brackets is a member of a list.
fn filter_metadata(filter: &str, key: &str, values: &[Name]) -> matcher_api::MetadataMatcher {
    let one = |value: &Name| {
        let listed = value.len() > 1 && value.starts_with('[') && value.ends_with(']');
        let text = |value: &str| matcher::string_value(matcher::text(value));
        if listed { matcher::list_value(text(value.trim_matches(['[', ']']))) } else { text(value) }
    };
    matcher::metadata(filter, &[key], matcher::any_value(values.iter().map(one).collect()))
}
