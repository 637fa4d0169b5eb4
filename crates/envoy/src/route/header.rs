use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::route::v3 as api;
use pilot_model::{HeaderOps, Headers};

/// What is done to the headers of a request and of its response.
#[derive(Default)]
pub(super) struct Operations {
    request: Changes,
    response: Changes,
    /// The host that the request shall have, which is no header to Envoy.
    authority: Option<String>,
}

#[derive(Default)]
struct Changes {
    add: Vec<core::HeaderValueOption>,
    remove: Vec<String>,
}

pub(super) fn operations(headers: &Headers) -> Operations {
    let authority = |map: &BTreeMap<Name, Name>| {
        map.iter().filter(|(key, _)| is_authority(key)).map(|(_, value)| value.to_string()).next_back()
    };
    Operations {
        request: changes(&headers.request),
        response: changes(&headers.response),
        authority: authority(&headers.request.set).or_else(|| authority(&headers.request.add)),
    }
}

impl Operations {
    /// Adds the operations to those of a route; tells the host that the request shall have.
    pub(super) fn apply(self, route: &mut api::Route) -> Option<String> {
        route.request_headers_to_add.extend(self.request.add);
        route.request_headers_to_remove.extend(self.request.remove);
        route.response_headers_to_add.extend(self.response.add);
        route.response_headers_to_remove.extend(self.response.remove);
        self.authority
    }

    pub(super) fn apply_to_weight(self, cluster: &mut api::weighted_cluster::ClusterWeight) {
        use api::weighted_cluster::cluster_weight::HostRewriteSpecifier;
        cluster.request_headers_to_add = self.request.add;
        cluster.request_headers_to_remove = self.request.remove;
        cluster.response_headers_to_add = self.response.add;
        cluster.response_headers_to_remove = self.response.remove;
        cluster.host_rewrite_specifier = self.authority.map(HostRewriteSpecifier::HostRewriteLiteral);
    }
}

fn changes(ops: &HeaderOps) -> Changes {
    use core::header_value_option::HeaderAppendAction;
    let option = |action: HeaderAppendAction| {
        move |(key, value): (&Name, &Name)| core::HeaderValueOption {
            header: Some(core::HeaderValue {
                key: key.to_string(),
                value: value.to_string(),
                ..core::HeaderValue::default()
            }),
            append_action: action as i32,
            ..core::HeaderValueOption::default()
        }
    };
    let allowed = |(key, _): &(&Name, &Name)| !is_internal(key);
    let set = ops.set.iter().filter(allowed).map(option(HeaderAppendAction::OverwriteIfExistsOrAdd));
    let add = ops.add.iter().filter(allowed).map(option(HeaderAppendAction::AppendIfExistsOrAdd));
    let remove = ops.remove.iter().filter(|key| !is_internal(key)).map(Name::to_string);
    Changes { add: set.chain(add).collect(), remove: remove.collect() }
}

/// Envoy refuses to change these as headers.
fn is_internal(key: &str) -> bool {
    key.starts_with(':') || key.eq_ignore_ascii_case("host")
}

fn is_authority(key: &str) -> bool {
    key.eq_ignore_ascii_case(":authority") || key.eq_ignore_ascii_case("host")
}
