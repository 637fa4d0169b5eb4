//! Filters for connections and, inside one of them, filters for requests.

use pilot_envoy_api::envoy::config::listener::v3::{Filter, FilterChain};
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, http_filter::ConfigType,
};
use pilot_envoy_api::{from_any, to_any};
use pilot_model::{ApplyTo, ChainMatch, PatchOperation};

use super::list::{arrange, merge_config};
use super::listener::{Scope, listener_match, typed_config};
use super::{Faults, Patch};

const CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";

pub(super) fn patch_filters(scope: &Scope<'_>, chain: &mut FilterChain, faults: &mut Faults) {
    for patch in scope.to(ApplyTo::NetworkFilter) {
        if !scope.place.matches_chain(chain, patch) || patch.spec.operation == PatchOperation::Merge {
            continue;
        }
        let wanted = chain_match(patch).and_then(|matching| matching.filter.as_ref());
        let is_wanted = |filter: &Filter| wanted.is_some_and(|name| filter.name == name.as_str());
        let finds: Option<&dyn Fn(&Filter) -> bool> = wanted.map(|_| &is_wanted as _);
        arrange(&mut chain.filters, patch.spec.operation, || patch.value(), finds);
    }
    let mut filters = std::mem::take(&mut chain.filters);
    for filter in &mut filters {
        merge_filter(scope, chain, filter, faults);
        if filter.name == CONNECTION_MANAGER {
            patch_http(scope, chain, filter, faults);
        }
    }
    chain.filters = filters;
}

fn chain_match(patch: &Patch) -> Option<&ChainMatch> {
    listener_match(patch).and_then(|matching| matching.filter_chain.as_ref())
}

/// Without a name every filter is meant.
fn matches_filter(filter: &Filter, patch: &Patch) -> bool {
    let wanted = chain_match(patch).and_then(|matching| matching.filter.as_ref());
    wanted.is_none_or(|name| filter.name == name.as_str())
}

fn merge_filter(scope: &Scope<'_>, chain: &FilterChain, filter: &mut Filter, faults: &mut Faults) {
    for patch in scope.to(ApplyTo::NetworkFilter) {
        let counts = patch.spec.operation == PatchOperation::Merge
            && scope.place.matches_chain(chain, patch)
            && matches_filter(filter, patch);
        let Some(base) = typed_config(filter).filter(|_| counts) else { continue };
        let mut over: Filter = patch.value();
        if let Some(over) = typed_config(&mut over) {
            merge_config(base, over, patch, faults);
        }
        if !over.name.is_empty() {
            filter.name = over.name;
        }
    }
}

fn patch_http(scope: &Scope<'_>, chain: &FilterChain, filter: &mut Filter, faults: &mut Faults) {
    let patches: Vec<&Patch> = scope
        .to(ApplyTo::HttpFilter)
        .filter(|patch| scope.place.matches_chain(chain, patch) && matches_filter(filter, patch))
        .collect();
    let Some(config) = typed_config(filter).filter(|_| !patches.is_empty()) else { return };
    let Some(mut manager) = from_any::<HttpConnectionManager>(config) else { return };
    for patch in patches.iter().filter(|patch| patch.spec.operation != PatchOperation::Merge) {
        let wanted = chain_match(patch).and_then(|matching| matching.sub_filter.as_ref());
        let is_wanted = |filter: &HttpFilter| wanted.is_some_and(|name| filter.name == name.as_str());
        let finds: Option<&dyn Fn(&HttpFilter) -> bool> = wanted.map(|_| &is_wanted as _);
        arrange(&mut manager.http_filters, patch.spec.operation, || patch.value(), finds);
    }
    for filter in &mut manager.http_filters {
        for patch in patches.iter().filter(|patch| patch.spec.operation == PatchOperation::Merge) {
            let wanted = chain_match(patch).and_then(|matching| matching.sub_filter.as_ref());
            if wanted.is_none_or(|name| filter.name == name.as_str()) {
                merge_http_filter(filter, patch, faults);
            }
        }
    }
    *config = to_any(&manager);
}

fn merge_http_filter(filter: &mut HttpFilter, patch: &Patch, faults: &mut Faults) {
    let Some(ConfigType::TypedConfig(base)) = &mut filter.config_type else { return };
    let over: HttpFilter = patch.value();
    if let Some(ConfigType::TypedConfig(over)) = &over.config_type {
        merge_config(base, over, patch, faults);
    }
    if !over.name.is_empty() {
        filter.name = over.name;
    }
}
