use std::sync::Arc;

use pilot_envoy_api::envoy::config::listener::v3 as api;
use pilot_envoy_api::envoy::config::route::v3::RouteConfiguration;
use pilot_envoy_api::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use pilot_model::{Interception, IpMode, Protocol, Span};
use pilot_xds::Encoded;

use super::inspector::http_inspector;
use super::{additional, at_wildcard, black_hole_filters, catch_all_filters, direction, encode, plain_http};
use crate::access_log;
use crate::convert::{stat_prefix, wildcards};
use crate::dynamic_forward_proxy::{ANY_ROUTE, any_names};
use crate::http_connection_manager::{Manager, Routes};
use crate::http_filter::Direction;
use crate::route_table::{NameHeaders, hosts_by_name, table};
use crate::settings::{HttpTraits, ListenerTraits, Settings};

/// The listener to which all outbound traffic is redirected. It hands connections to the listener that stands at their
/// destination, and serves itself what none does. Nothing, if nothing is redirected. `http` is needed where anybody may be
/// called by name.
pub fn virtual_outbound(
    traits: &ListenerTraits,
    http: Option<&HttpTraits>,
    settings: Settings<'_>,
) -> Option<Arc<Encoded>> {
    let settings = settings.with_chain(&traits.chain);
    let transparent = match traits.interception {
        Interception::None => return None,
        Interception::Redirect => None,
        Interception::Tproxy => Some(true),
    };
    let port = settings.mesh.proxy_listen_port;
    let to_itself = api::FilterChain {
        name: "virtualOutbound-blackhole".to_owned(),
        filter_chain_match: Some(api::FilterChainMatch {
            destination_port: Some(u32::from(port)),
            ..api::FilterChainMatch::default()
        }),
        filters: black_hole_filters(Direction::Outbound, settings),
        ..api::FilterChain::default()
    };
    let to_others = api::FilterChain {
        name: "virtualOutbound-catchall-tcp".to_owned(),
        filters: catch_all_filters(&traits.outbound, traits.idle_timeout, settings),
        ..api::FilterChain::default()
    };
    let at = at_wildcard("virtualOutbound", port, traits.ip_mode, settings);
    // Programs in a cluster of IPv6 alone may still call over IPv4, where the platform translates it.
    let also_v4 = settings.options.features.ipv4_outbound_for_ipv6 && traits.ip_mode == IpMode::V6;
    let more = if also_v4 {
        additional(wildcards(IpMode::V4).iter().copied(), port)
    } else {
        at.additional_addresses.clone()
    };
    let names = any_names(&traits.outbound, traits.ip_mode, settings);
    let by_name = names.zip(http).map(|(names, http)| by_name(names, (http, traits.idle_timeout), settings));
    let listener = api::Listener {
        additional_addresses: more,
        transparent,
        use_original_dst: Some(true),
        listener_filters: by_name.iter().map(|_| http_inspector()).collect(),
        filter_chains: [to_itself].into_iter().chain(by_name).chain([to_others]).collect(),
        traffic_direction: direction(Direction::Outbound),
        access_log: access_log::of_listener(settings),
        ..at
    };
    Some(Arc::new(encode(&listener)))
}

/// Requests to hosts that nobody declared, which are found by their names.
fn by_name(
    names: DnsCacheConfig,
    (http, idle_timeout): (&HttpTraits, Option<Span>),
    settings: Settings<'_>,
) -> api::FilterChain {
    let headers = NameHeaders {
        attempt_count: !http.headers.no_attempt_count,
        x_forwarded_host: http.headers.x_forwarded_host,
    };
    let routes = RouteConfiguration { virtual_hosts: vec![hosts_by_name(headers)], ..table(ANY_ROUTE) };
    let manager = Manager {
        direction: Direction::Outbound,
        stat_prefix: stat_prefix("outbound_virtualOutbound_allow_any_dynamic_dns"),
        routes: Routes::Here(Box::new(routes)),
        port: 0,
        protocol: Protocol::Http,
        idle_timeout,
        traits: http,
        security: None,
        names: vec![names],
    };
    api::FilterChain {
        name: "virtualOutbound-catchall-tcp-http".to_owned(),
        filter_chain_match: Some(api::FilterChainMatch {
            application_protocols: plain_http(settings),
            ..api::FilterChainMatch::default()
        }),
        filters: vec![manager.build(settings)],
        ..api::FilterChain::default()
    }
}
