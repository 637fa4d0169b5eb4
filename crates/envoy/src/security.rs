//! What policies add to the listeners of a workload.

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_model::{AuthorizationPolicy, Config, JwtRule, KeySource, ProxyType, RequestAuthentication};

use crate::authorization::{Filters, custom, local};
use crate::ext_authz::Providers;
use crate::http_filter::jwt_authn::{self, Keys};
use crate::settings::Settings;

/// The policies for a workload, those of the root namespace and its own.
pub struct SecurityPolicies<'a> {
    pub kind: ProxyType,
    pub requests: Vec<&'a Config<RequestAuthentication>>,
    pub authorization: Vec<&'a Config<AuthorizationPolicy>>,
    /// Is there exactly one service with a host, or one in the namespace that is named?
    pub is_known: &'a dyn Fn(Option<&Name>, &Host) -> bool,
    /// Keys that somebody fetched.
    pub fetched: &'a dyn Fn(&KeySource) -> Option<Name>,
}

/// The filters they amount to. The same ones stand in every chain of the workload's listeners.
#[derive(Clone, PartialEq, Default)]
pub struct SecurityFilters {
    custom: Filters,
    jwt: Option<HttpFilter>,
    local: Filters,
}

/// Where in a chain a filter stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Step {
    /// Somebody else is asked, before tokens are looked at.
    Custom,
    Jwt,
    Local,
}

pub fn security_filters(policies: &SecurityPolicies<'_>, settings: Settings<'_>) -> SecurityFilters {
    let mut rules: Vec<&JwtRule> = policies.requests.iter().flat_map(|policy| &policy.spec.rules).collect();
    rules.sort_by(|a, b| a.issuer.cmp(&b.issuer));
    let keys = Keys {
        fetch: settings.options.features.jwks_fetch,
        kind: policies.kind,
        fetched: policies.fetched,
        is_known: policies.is_known,
    };
    let providers = Providers { mesh: settings.mesh, is_known: policies.is_known };
    SecurityFilters {
        custom: custom(&policies.authorization, &providers, settings),
        jwt: jwt_authn::filter(&rules, &keys),
        local: local(&policies.authorization, settings),
    }
}

impl SecurityFilters {
    pub(crate) fn http(&self, step: Step) -> Vec<HttpFilter> {
        match step {
            Step::Custom => self.custom.http.clone(),
            Step::Jwt => self.jwt.clone().into_iter().collect(),
            Step::Local => self.local.http.clone(),
        }
    }

    pub(crate) fn network(&self, step: Step) -> Vec<listener::Filter> {
        match step {
            Step::Custom => self.custom.network.clone(),
            Step::Jwt => Vec::new(),
            Step::Local => self.local.network.clone(),
        }
    }
}
