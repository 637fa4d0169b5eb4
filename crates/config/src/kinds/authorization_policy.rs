mod attribute;
mod source;

use pilot_api::security as api;
use pilot_base::Name;
use pilot_model::{AuthorizationPolicy, AuthzAction, AuthzMatch, AuthzRule};

use crate::check::Check;
use source::{operation, source};

pub(crate) fn decode(message: api::AuthorizationPolicy, check: &mut Check<'_>) -> AuthorizationPolicy {
    use api::authorization_policy::{Action, ActionDetail};
    let target = check.policy_target(message.selector, message.target_ref, message.target_refs);
    let provider = message.action_detail.map(|ActionDetail::Provider(provider)| Name::from(provider.name));
    let api_action = Action::try_from(message.action).unwrap_or(Action::Allow);
    if provider.is_some() && api_action != Action::Custom {
        check.reject("spec.provider", "must only be given with the action CUSTOM");
    }
    if message.rules.is_empty() && matches!(api_action, Action::Deny | Action::Custom) {
        let message = "are missing, so that the policy would never apply: an empty rule, {}, applies always";
        check.reject("spec.rules", message);
    } else if api_action == Action::Custom && provider.as_ref().is_none_or(|name| name.is_empty()) {
        check.reject("spec.provider.name", "is missing: it says who is asked");
    }
    let action = match api_action {
        Action::Allow => AuthzAction::Allow,
        Action::Deny => AuthzAction::Deny,
        Action::Audit => AuthzAction::Audit,
        Action::Custom => AuthzAction::Custom(provider.unwrap_or_default()),
    };
    let rules = message.rules.into_iter().enumerate();
    let rules: Vec<AuthzRule> =
        rules.map(|(i, message)| rule(message, &format!("spec.rules[{i}]"), check)).collect();
    for (i, rule) in rules.iter().enumerate() {
        let path = format!("spec.rules[{i}]");
        match action {
            AuthzAction::Custom(_) => custom(rule, &path, check),
            AuthzAction::Deny => deny(rule, &path, check),
            AuthzAction::Allow | AuthzAction::Audit => (),
        }
    }
    AuthorizationPolicy { target, action, rules }
}

fn rule(message: api::Rule, path: &str, check: &mut Check<'_>) -> AuthzRule {
    let mut out = AuthzRule::default();
    for (i, from) in message.from.into_iter().enumerate() {
        match from.source {
            Some(message) => out.from.push(source(message, &format!("{path}.from[{i}].source"), check)),
            None => check.reject(format!("{path}.from[{i}].source"), "is missing"),
        }
    }
    for (i, to) in message.to.into_iter().enumerate() {
        match to.operation {
            Some(message) => out.to.push(operation(message, &format!("{path}.to[{i}].operation"), check)),
            None => check.reject(format!("{path}.to[{i}].operation"), "is missing"),
        }
    }
    for (i, condition) in message.when.into_iter().enumerate() {
        out.when.extend(attribute::condition(condition, &format!("{path}.when[{i}]"), check));
    }
    out
}

/// Whoever is asked finds out by himself who calls.
fn custom(rule: &AuthzRule, path: &str, check: &mut Check<'_>) {
    use pilot_model::AuthzAttribute as A;
    let known_later = |m: &&AuthzMatch| {
        matches!(
            m.attribute,
            A::Namespace
                | A::ServiceAccount
                | A::TrustDomain
                | A::Principal
                | A::RequestPrincipal
                | A::Audiences
                | A::Presenter
                | A::Claim(_)
        )
    };
    for found in rule.from.iter().flatten().chain(&rule.when).filter(known_later) {
        check.reject(path, format!("{:?} cannot be used with the action CUSTOM", found.attribute));
    }
}

/// On connections that carry no requests, what only requests have is left out of a rule that denies.
fn deny(rule: &AuthzRule, path: &str, check: &mut Check<'_>) {
    use pilot_model::AuthzAttribute as A;
    let tcp_source = |m: &AuthzMatch| {
        matches!(m.attribute, A::Principal | A::SourceIp | A::Namespace | A::RemoteIp | A::ServiceAccount)
    };
    let from = !rule.from.is_empty();
    let to = !rule.to.is_empty();
    let tcp_from = rule.from.iter().flatten().any(tcp_source);
    let tcp_to = rule.to.iter().flatten().any(|m| m.attribute == A::DestinationPort);
    if (from && !to && !tcp_from) || (to && !tcp_to) {
        let message = "says nothing that holds for plain TCP, so that it denies every connection to ports that \
                       do not speak HTTP: name the ports it is for";
        check.warn(path, message);
    }
}
