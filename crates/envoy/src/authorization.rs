//! AuthorizationPolicies as filters, in the order in which they are asked: somebody else first, then what denies, then
//! what allows.

use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::config::rbac::v3 as rbac_api;
use pilot_envoy_api::envoy::config::rbac::v3::rbac::Action;
use pilot_envoy_api::envoy::extensions::filters::http::rbac::v3::Rbac as HttpRbac;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_envoy_api::envoy::extensions::filters::network::rbac::v3::Rbac as NetworkRbac;
use pilot_envoy_api::to_any;
use pilot_model::{AuthorizationPolicy, AuthzAction, Config};

use crate::ext_authz::{Asked, Providers};
use crate::http_filter::http_filter;
use crate::network_filter::filter;
use crate::rbac::{On, Rules, Scope, rules};
use crate::settings::Settings;

pub(crate) const HTTP_RBAC: &str = "envoy.filters.http.rbac";
pub(crate) const NETWORK_RBAC: &str = "envoy.filters.network.rbac";
/// What the metadata of rules that are only tried begins with.
const TRIED_ALLOW: &str = "istio_dry_run_allow_";
const TRIED_DENY: &str = "istio_dry_run_deny_";
pub(crate) const ASKED: &str = "istio_ext_authz_";
/// What the names of rules that ask somebody else begin with.
pub(crate) const ASKED_NAME: &str = "istio-ext-authz";
const STAT_PREFIX: &str = "tcp.";

type Policy = Config<AuthorizationPolicy>;

/// Filters for requests and for connections.
#[derive(Clone, PartialEq, Default)]
pub(crate) struct Filters {
    pub(crate) http: Vec<HttpFilter>,
    pub(crate) network: Vec<listener::Filter>,
}

/// What Envoy decides by itself.
pub(crate) fn local(policies: &[&Policy], settings: Settings<'_>) -> Filters {
    let mut out = Filters::default();
    for (wanted, action) in [
        (AuthzAction::Audit, Action::Log),
        (AuthzAction::Deny, Action::Deny),
        (AuthzAction::Allow, Action::Allow),
    ] {
        let those = || policies.iter().copied().filter(|policy| policy.spec.action == wanted);
        if those().next().is_none() {
            continue;
        }
        let build = |on| rules(those(), "", Scope { on, action, mesh: settings.mesh });
        out.http.push(http(build(On::Requests)));
        out.network.push(network(build(On::Connections)));
    }
    out
}

fn tried_prefix(dry_run: Option<&rbac_api::Rbac>) -> String {
    // Where nothing is tried, Istio still says where it would be found if it were allowed.
    let action = dry_run.map_or(Action::Allow as i32, |rbac| rbac.action);
    let prefix = match Action::try_from(action) {
        Ok(Action::Allow) => TRIED_ALLOW,
        Ok(Action::Deny) => TRIED_DENY,
        _ => "",
    };
    prefix.to_owned()
}

fn http(rules: Rules) -> HttpFilter {
    http_rbac(&HttpRbac {
        shadow_rules_stat_prefix: tried_prefix(rules.dry_run.as_ref()),
        rules: rules.enforced,
        shadow_rules: rules.dry_run,
        ..HttpRbac::default()
    })
}

fn network(rules: Rules) -> listener::Filter {
    network_rbac(NetworkRbac {
        shadow_rules_stat_prefix: tried_prefix(rules.dry_run.as_ref()),
        rules: rules.enforced,
        shadow_rules: rules.dry_run,
        ..NetworkRbac::default()
    })
}

fn http_rbac(rbac: &HttpRbac) -> HttpFilter {
    http_filter(HTTP_RBAC, to_any(rbac))
}

fn network_rbac(rbac: NetworkRbac) -> listener::Filter {
    filter(NETWORK_RBAC, to_any(&NetworkRbac { stat_prefix: STAT_PREFIX.to_owned(), ..rbac }))
}

/// What somebody else is asked about. Envoy only finds out which rules match; where one does, the filter behind it asks.
pub(crate) fn custom(policies: &[&Policy], providers: &Providers<'_>, settings: Settings<'_>) -> Filters {
    let mut by_provider: BTreeMap<&Name, Vec<&Policy>> = BTreeMap::new();
    for policy in policies {
        if let AuthzAction::Custom(provider) = &policy.spec.action {
            by_provider.entry(provider).or_default().push(policy);
        }
    }
    let one = by_provider.len() <= 1 || settings.options.features.many_authz_providers;
    let mut out = Filters::default();
    for (provider, policies) in by_provider {
        let prefix = format!("{ASKED_NAME}-{provider}-");
        let build = |on| {
            let scope = Scope { on, action: Action::Deny, mesh: settings.mesh };
            let Rules { enforced, dry_run } = rules(policies.iter().copied(), &prefix, scope);
            // Even if all are only tried, there is a list of those that are not.
            let empty = || rbac_api::Rbac { action: Action::Deny as i32, ..rbac_api::Rbac::default() };
            (enforced.unwrap_or_else(empty), dry_run)
        };
        match providers.find(provider).filter(|_| one) {
            // Nobody can be asked, so everything he would have been asked about is denied.
            None => out.deny(build(On::Requests).0, build(On::Connections).0),
            Some(asked) => out.ask(asked, build(On::Requests), build(On::Connections)),
        }
    }
    out
}

impl Filters {
    fn deny(&mut self, requests: rbac_api::Rbac, connections: rbac_api::Rbac) {
        let denying = |rbac: rbac_api::Rbac| {
            let named = rbac.policies.into_iter();
            let policies =
                named.map(|(name, policy)| (format!("{name}-deny-due-to-bad-CUSTOM-action"), policy));
            Some(rbac_api::Rbac { policies: policies.collect(), ..rbac_api::Rbac::default() })
                .map(|rbac| rbac_api::Rbac { action: Action::Deny as i32, ..rbac })
        };
        self.http.push(http_rbac(&HttpRbac { rules: denying(requests), ..HttpRbac::default() }));
        self.network
            .push(network_rbac(NetworkRbac { rules: denying(connections), ..NetworkRbac::default() }));
    }

    fn ask(
        &mut self,
        asked: Asked,
        requests: (rbac_api::Rbac, Option<rbac_api::Rbac>),
        connections: (rbac_api::Rbac, Option<rbac_api::Rbac>),
    ) {
        let some = |rbac: Option<rbac_api::Rbac>| rbac.filter(|rbac| !rbac.policies.is_empty());
        self.http.push(http_rbac(&HttpRbac {
            shadow_rules: Some(requests.0),
            rules: some(requests.1),
            shadow_rules_stat_prefix: ASKED.to_owned(),
            ..HttpRbac::default()
        }));
        self.http.push(asked.http);
        if let Some(network) = asked.network {
            self.network.push(network_rbac(NetworkRbac {
                shadow_rules: Some(connections.0),
                rules: some(connections.1),
                shadow_rules_stat_prefix: ASKED.to_owned(),
                ..NetworkRbac::default()
            }));
            self.network.push(network);
        }
    }
}
