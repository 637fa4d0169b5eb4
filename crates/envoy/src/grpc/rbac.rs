//! Who may call a gRPC server that has no Envoy beside it. Its library knows two kinds of rules, those that deny and those
//! that allow, and none that are only tried.

use std::collections::BTreeMap;

use pilot_envoy_api::envoy::config::rbac::v3 as api;
use pilot_envoy_api::envoy::config::rbac::v3::rbac::Action;
use pilot_envoy_api::envoy::extensions::filters::http::rbac::v3::Rbac as HttpRbac;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_envoy_api::to_any;
use pilot_model::{AuthorizationPolicy, AuthzAction, Config, MeshConfig};

use crate::authorization::HTTP_RBAC;
use crate::http_filter::http_filter;
use crate::rbac::{On, Scope, rule_policy};

/// What denies is asked before what allows.
pub(super) fn filters(policies: &[&Config<AuthorizationPolicy>]) -> Vec<HttpFilter> {
    let kinds = [
        (AuthzAction::Deny, Action::Deny, format!("{HTTP_RBAC}.DENY")),
        (AuthzAction::Allow, Action::Allow, HTTP_RBAC.to_owned()),
    ];
    let filter = |(wanted, action, name): (AuthzAction, Action, String)| {
        let those = || policies.iter().copied().filter(|policy| policy.spec.action == wanted);
        let rules = rules(those(), action);
        let rbac = api::Rbac { action: action as i32, policies: rules, ..api::Rbac::default() };
        // Who allows nothing lets nobody in.
        let counts = !rbac.policies.is_empty() || action == Action::Allow && those().next().is_some();
        let config = HttpRbac { rules: Some(rbac), ..HttpRbac::default() };
        counts.then(|| http_filter(&name, to_any(&config)))
    };
    kinds.into_iter().filter_map(filter).collect()
}

fn rules<'a>(
    policies: impl Iterator<Item = &'a Config<AuthorizationPolicy>>,
    action: Action,
) -> BTreeMap<String, api::Policy> {
    // Names of trust domains count as they are written: what the mesh calls them is not looked up here.
    let mesh = MeshConfig::default();
    let scope = Scope { on: On::Requests, action, mesh: &mesh };
    let mut out = BTreeMap::new();
    for policy in policies {
        for (i, rule) in policy.spec.rules.iter().enumerate() {
            let name = format!("{}-{}-{i}", policy.id.namespace, policy.id.name);
            out.extend(rule_policy(rule, &policy.id, scope).map(|policy| (name, policy)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::filters;
    use pilot_model::{AuthorizationPolicy, AuthzAction, AuthzRule, Config, ConfigId, Created};

    fn policy(name: &str, action: AuthzAction, rules: usize) -> Config<AuthorizationPolicy> {
        let spec = AuthorizationPolicy {
            action,
            rules: vec![AuthzRule::default(); rules],
            ..AuthorizationPolicy::default()
        };
        let (labels, annotations) = Default::default();
        Config { id: ConfigId::new("shop", name), created: Created(0), labels, annotations, spec }
    }

    #[test]
    fn what_denies_stands_first_and_what_a_library_does_not_know_is_left_out() {
        let all = [
            policy("allow", AuthzAction::Allow, 1),
            policy("audit", AuthzAction::Audit, 1),
            policy("deny", AuthzAction::Deny, 2),
        ];
        let names: Vec<String> =
            filters(&all.iter().collect::<Vec<_>>()).into_iter().map(|filter| filter.name).collect();
        assert_eq!(names, ["envoy.filters.http.rbac.DENY", "envoy.filters.http.rbac"]);
        assert_eq!(
            filters(&[&policy("nobody", AuthzAction::Allow, 0)]).len(),
            1,
            "who allows nothing denies"
        );
        assert!(filters(&[&policy("nobody", AuthzAction::Deny, 0)]).is_empty());
    }
}
