//! AuthorizationPolicies as Envoy's role-based access control.

mod matcher;
mod permission;
mod principal;

pub(crate) use matcher::JWT_PAYLOAD;

use std::collections::BTreeMap;

use pilot_base::parse_bool;
use pilot_envoy_api::envoy::config::rbac::v3 as api;
use pilot_envoy_api::envoy::config::rbac::v3::rbac::Action;
use pilot_model::{AuthorizationPolicy, AuthzMatch, AuthzRule, Config, ConfigId, MeshConfig};

/// What a filter can look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum On {
    Requests,
    Connections,
}

/// What rules are written for.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) on: On,
    pub(crate) action: Action,
    pub(crate) mesh: &'a MeshConfig,
}

/// Rules that are obeyed, and rules that are only tried.
#[derive(Default)]
pub(crate) struct Rules {
    pub(crate) enforced: Option<api::Rbac>,
    pub(crate) dry_run: Option<api::Rbac>,
}

/// The rules of some policies. `prefix` comes before their names, under which filters and logs know them.
pub(crate) fn rules<'a>(
    policies: impl Iterator<Item = &'a Config<AuthorizationPolicy>>,
    prefix: &str,
    scope: Scope<'_>,
) -> Rules {
    let mut out = Rules::default();
    for policy in policies {
        let place = if is_dry_run(policy) { &mut out.dry_run } else { &mut out.enforced };
        let rbac = place.get_or_insert_with(|| api::Rbac {
            action: scope.action as i32,
            policies: BTreeMap::new(),
            audit_logging_options: None,
        });
        for (i, rule) in policy.spec.rules.iter().enumerate() {
            let generated = rule_policy(rule, &policy.id, scope);
            rbac.policies.extend(generated.map(|generated| (name(prefix, &policy.id, i), generated)));
        }
        if policy.spec.rules.is_empty() {
            rbac.policies.insert(name(prefix, &policy.id, 0), never());
        }
    }
    out
}

/// Is it to be tried out only, with what it would have done in metrics and logs?
fn is_dry_run(policy: &Config<AuthorizationPolicy>) -> bool {
    let value = policy.annotations.get("istio.io/dry-run").map(|value| value.as_str());
    value.is_some_and(|value| parse_bool(value).unwrap_or(false))
}

fn name(prefix: &str, id: &ConfigId, rule: usize) -> String {
    format!("{prefix}ns[{}]-policy[{}]-rule[{rule}]", id.namespace, id.name)
}

fn never() -> api::Policy {
    api::Policy {
        permissions: vec![permission::not(permission::any())],
        principals: vec![principal::not(principal::any())],
        ..api::Policy::default()
    }
}

/// Nothing, if the rule cannot be kept as it is written and would let more through than it says.
pub(crate) fn rule_policy(rule: &AuthzRule, id: &ConfigId, scope: Scope<'_>) -> Option<api::Policy> {
    let (of_operation, of_source): (Vec<&AuthzMatch>, Vec<&AuthzMatch>) =
        rule.when.iter().partition(|m| m.attribute.is_of_operation());
    let permissions = alternatives(&rule.to, &of_operation);
    let principals = alternatives(&rule.from, &of_source);
    Some(api::Policy {
        permissions: permissions
            .iter()
            .map(|matches| permission::all(matches, scope))
            .collect::<Option<Vec<_>>>()?,
        principals: principals
            .iter()
            .map(|matches| principal::all(matches, id, scope))
            .collect::<Option<Vec<_>>>()?,
        ..api::Policy::default()
    })
}

/// Each of the alternatives together with the conditions, or the conditions alone.
fn alternatives<'a>(lists: &'a [Vec<AuthzMatch>], when: &[&'a AuthzMatch]) -> Vec<Vec<&'a AuthzMatch>> {
    if lists.is_empty() {
        return vec![when.to_vec()];
    }
    lists.iter().map(|list| list.iter().chain(when.iter().copied()).collect()).collect()
}

impl Scope<'_> {
    /// Connections have no requests. A rule that allows then allows nothing; one that denies forgets what it cannot see,
    /// so that it denies more.
    fn can_see(self, m: &AuthzMatch) -> Sight {
        match (m.attribute.is_http_only() && self.on == On::Connections, self.action) {
            (false, _) => Sight::Seen,
            (true, Action::Allow) => Sight::Hopeless,
            (true, _) => Sight::Unseen,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sight {
    Seen,
    Unseen,
    Hopeless,
}

#[cfg(test)]
mod tests;
