//! Requests that belong together go to the same endpoint.

use pilot_envoy_api::envoy::config::route::v3::route_action as api;
use pilot_mesh::TrafficPlan;
use pilot_model::{ConsistentHash, Destination, HashKey, PortPolicy, TrafficPolicy};

use super::Context;
use crate::convert::duration;

fn of_policy(policy: Option<&TrafficPolicy>) -> Option<&ConsistentHash> {
    policy?.load_balancer.as_ref()?.consistent_hash.as_ref()
}

fn of_port(policy: Option<&TrafficPolicy>, port: Option<u16>) -> Option<&ConsistentHash> {
    let settings: &PortPolicy = policy?.ports.iter().find(|p| Some(p.port) == port)?;
    settings.load_balancer.as_ref()?.consistent_hash.as_ref()
}

/// For a host that no rule routes.
pub(crate) fn of_service(traffic: &TrafficPlan, port: u16) -> Option<&ConsistentHash> {
    let policy = traffic.rule.policy.as_ref();
    of_port(policy, Some(port)).or_else(|| of_policy(policy))
}

/// For a destination: what is said for its subset and port, then its subset, its port, and in general.
pub(super) fn of_destination<'a>(
    destination: &Destination,
    context: &Context<'a>,
) -> Option<&'a ConsistentHash> {
    let rule = &(context.traffic)(destination)?.rule;
    let subset = rule.subsets.iter().find(|s| s.name == destination.subset).and_then(|s| s.policy.as_ref());
    let general = rule.policy.as_ref();
    of_port(subset, destination.port)
        .or_else(|| of_policy(subset))
        .or_else(|| of_port(general, destination.port))
        .or_else(|| of_policy(general))
}

pub(crate) fn hash_policy(hash: &ConsistentHash) -> Option<api::HashPolicy> {
    use api::hash_policy::{
        ConnectionProperties, Cookie, CookieAttribute, Header, PolicySpecifier, QueryParameter,
    };
    let specifier = match &hash.key {
        HashKey::Header(name) => {
            PolicySpecifier::Header(Header { header_name: name.to_string(), ..Header::default() })
        }
        HashKey::Cookie(cookie) => {
            let attribute = |(name, value): &(pilot_base::Name, pilot_base::Name)| CookieAttribute {
                name: name.to_string(),
                value: value.to_string(),
            };
            PolicySpecifier::Cookie(Cookie {
                name: cookie.name.to_string(),
                ttl: cookie.ttl.map(duration),
                path: cookie.path.to_string(),
                attributes: cookie.attributes.iter().map(attribute).collect(),
            })
        }
        HashKey::SourceIp(source_ip) => {
            PolicySpecifier::ConnectionProperties(ConnectionProperties { source_ip: *source_ip })
        }
        HashKey::QueryParameter(name) => {
            PolicySpecifier::QueryParameter(QueryParameter { name: name.to_string() })
        }
        HashKey::None => return None,
    };
    Some(api::HashPolicy { policy_specifier: Some(specifier), ..api::HashPolicy::default() })
}
