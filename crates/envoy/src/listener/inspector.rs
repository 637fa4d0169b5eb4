//! Listener filters: what is found out about a connection before a chain is chosen for it.

use std::collections::BTreeMap;

use pilot_envoy_api::envoy::config::listener::v3 as api;
use pilot_envoy_api::envoy::extensions::filters::listener::http_inspector::v3::HttpInspector;
use pilot_envoy_api::envoy::extensions::filters::listener::original_dst::v3::OriginalDst;
use pilot_envoy_api::envoy::extensions::filters::listener::original_src::v3::OriginalSrc;
use pilot_envoy_api::envoy::extensions::filters::listener::proxy_protocol::v3::ProxyProtocol;
use pilot_envoy_api::envoy::extensions::filters::listener::tls_inspector::v3::TlsInspector;
use pilot_envoy_api::envoy::r#type::v3::Int32Range;
use pilot_envoy_api::to_any;
use prost_types::Any;

use super::{PLAIN_HTTP, TLS};

type Predicate = api::ListenerFilterChainMatchPredicate;

/// Packets from the proxy to the application are marked, so that redirection leaves them alone.
const TPROXY_MARK: u32 = 1337;
/// Enough for most first messages; it grows when one is longer.
const TLS_READ_BUFFER: u32 = 512;

fn filter(name: &str, config: Any) -> api::ListenerFilter {
    use api::listener_filter::ConfigType;
    api::ListenerFilter {
        name: name.to_owned(),
        config_type: Some(ConfigType::TypedConfig(config)),
        ..api::ListenerFilter::default()
    }
}

pub(crate) fn tls_inspector() -> api::ListenerFilter {
    let config = TlsInspector { initial_read_buffer_size: Some(TLS_READ_BUFFER), ..TlsInspector::default() };
    filter("envoy.filters.listener.tls_inspector", to_any(&config))
}

/// Somebody in front says, before everything else, where a connection comes from.
pub(crate) fn proxy_protocol() -> api::ListenerFilter {
    filter("envoy.filters.listener.proxy_protocol", to_any(&ProxyProtocol::default()))
}

pub(super) fn http_inspector() -> api::ListenerFilter {
    filter("envoy.filters.listener.http_inspector", to_any(&HttpInspector {}))
}

pub(super) fn original_dst() -> api::ListenerFilter {
    filter("envoy.filters.listener.original_dst", to_any(&OriginalDst {}))
}

pub(super) fn original_src() -> api::ListenerFilter {
    let config = OriginalSrc { mark: TPROXY_MARK, ..OriginalSrc::default() };
    filter("envoy.filters.listener.original_src", to_any(&config))
}

#[derive(Clone, Copy, Default)]
struct Needs {
    tls: bool,
    http: bool,
}

/// The inspectors that the chains of an inbound listener need, switched off for ports that do not need them.
pub(super) fn inspectors(chains: &[api::FilterChain]) -> Vec<api::ListenerFilter> {
    let mut ports: BTreeMap<u32, Needs> = BTreeMap::new();
    for chain in chains {
        let wanted = chain.filter_chain_match.clone().unwrap_or_default();
        let needs = ports.entry(wanted.destination_port.unwrap_or(0)).or_default();
        needs.tls |= wanted.transport_protocol == TLS;
        needs.http |= wanted.application_protocols.iter().any(|p| PLAIN_HTTP.contains(&p.as_str()));
    }
    let mut out = Vec::new();
    // TLS first: what is encrypted is not looked into for HTTP.
    if ports.values().any(|needs| needs.tls) {
        out.push(api::ListenerFilter { filter_disabled: without_tls(&ports), ..tls_inspector() });
    }
    if ports.values().any(|needs| needs.http) {
        let unused = ports.iter().filter(|(_, needs)| !needs.http).map(|(port, _)| *port).collect();
        out.push(api::ListenerFilter { filter_disabled: any_port(unused), ..http_inspector() });
    }
    out
}

/// If ports that nobody declared need it, it is switched off for those that do not; otherwise on for those that do.
fn without_tls(ports: &BTreeMap<u32, Needs>) -> Option<Predicate> {
    use api::listener_filter_chain_match_predicate::Rule;
    let undeclared = ports.get(&0).is_some_and(|needs| needs.tls);
    let declared = ports.iter().filter(|(port, _)| **port != 0);
    let other = declared.filter(|(_, needs)| needs.tls != undeclared).map(|(port, _)| *port).collect();
    let predicate = any_port(other)?;
    if undeclared {
        return Some(predicate);
    }
    Some(Predicate { rule: Some(Rule::NotMatch(Box::new(predicate))) })
}

fn any_port(ports: Vec<u32>) -> Option<Predicate> {
    use api::listener_filter_chain_match_predicate::{MatchSet, Rule};
    let signed = |port: u32| i32::try_from(port).unwrap_or(i32::MAX);
    let one = |port: u32| Predicate {
        rule: Some(Rule::DestinationPortRange(Int32Range { start: signed(port), end: signed(port) + 1 })),
    };
    let mut rules: Vec<Predicate> = ports.into_iter().map(one).collect();
    match rules.len() {
        0 | 1 => rules.pop(),
        _ => Some(Predicate { rule: Some(Rule::OrMatch(MatchSet { rules })) }),
    }
}
