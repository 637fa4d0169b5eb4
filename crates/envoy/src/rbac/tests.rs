use pilot_base::{Labels, Name};
use pilot_envoy_api::envoy::config::rbac::v3::permission::Rule;
use pilot_envoy_api::envoy::config::rbac::v3::principal::Identifier;
use pilot_envoy_api::envoy::config::rbac::v3::rbac::Action;
use pilot_model::{
    AuthorizationPolicy, AuthzAttribute, AuthzMatch, AuthzRule, Config, ConfigId, Created, MeshConfig,
};

use super::{On, Rules, Scope, rules};

fn policy(rule: AuthzRule, annotations: Labels) -> Config<AuthorizationPolicy> {
    Config {
        id: ConfigId::new("ns", "p"),
        created: Created(0),
        labels: Labels::default(),
        annotations,
        spec: AuthorizationPolicy { rules: vec![rule], ..AuthorizationPolicy::default() },
    }
}

fn is(attribute: AuthzAttribute, value: &str) -> AuthzMatch {
    AuthzMatch { attribute, values: vec![Name::new(value)], not_values: vec![] }
}

fn build(policy: &Config<AuthorizationPolicy>, on: On, action: Action) -> Rules {
    let mesh = MeshConfig::default();
    rules([policy].into_iter(), "", Scope { on, action, mesh: &mesh })
}

#[test]
fn what_connections_do_not_have_makes_denying_wider_and_allowing_narrower() {
    let to = vec![vec![is(AuthzAttribute::Method, "GET"), is(AuthzAttribute::DestinationPort, "80")]];
    let policy = policy(AuthzRule { to, ..AuthzRule::default() }, Labels::default());
    let count = |on, action| {
        let rbac = build(&policy, on, action).enforced.unwrap();
        rbac.policies.get("ns[ns]-policy[p]-rule[0]").map(|policy| match &policy.permissions[0].rule {
            Some(Rule::AndRules(set)) => set.rules.len(),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(count(On::Requests, Action::Allow), Some(2));
    assert_eq!(count(On::Connections, Action::Allow), None);
    assert_eq!(count(On::Connections, Action::Deny), Some(1));
}

#[test]
fn a_dry_run_is_kept_apart() {
    let policy = policy(AuthzRule::default(), Labels::new([("istio.io/dry-run", "true")]));
    let built = build(&policy, On::Requests, Action::Deny);
    assert!(built.enforced.is_none());
    let rbac = built.dry_run.unwrap();
    let policy = &rbac.policies["ns[ns]-policy[p]-rule[0]"];
    let Some(Identifier::AndIds(ids)) = &policy.principals[0].identifier else { panic!("{policy:?}") };
    assert_eq!(ids.ids[0].identifier, Some(Identifier::Any(true)));
}

#[test]
fn no_rules_never_match() {
    let mut policy = policy(AuthzRule::default(), Labels::default());
    policy.spec.rules.clear();
    let rbac = build(&policy, On::Requests, Action::Allow).enforced.unwrap();
    let never = &rbac.policies["ns[ns]-policy[p]-rule[0]"];
    assert!(matches!(never.permissions[0].rule, Some(Rule::NotRule(_))));
}
