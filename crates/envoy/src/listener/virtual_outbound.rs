use std::sync::Arc;

use pilot_envoy_api::envoy::config::listener::v3 as api;
use pilot_model::Interception;
use pilot_xds::Encoded;

use super::{at_wildcard, black_hole_filters, catch_all_filters, direction, encode};
use crate::access_log;
use crate::http_filter::Direction;
use crate::settings::{ListenerTraits, Settings};

/// The listener to which all outbound traffic is redirected. It hands connections to the listener that stands at their
/// destination, and serves itself what none does. Nothing, if nothing is redirected.
pub fn virtual_outbound(traits: &ListenerTraits, settings: Settings<'_>) -> Option<Arc<Encoded>> {
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
    let listener = api::Listener {
        transparent,
        use_original_dst: Some(true),
        filter_chains: vec![to_itself, to_others],
        traffic_direction: direction(Direction::Outbound),
        access_log: access_log::of_listener(settings),
        ..at_wildcard("virtualOutbound", port, traits.ip_mode, settings)
    };
    Some(Arc::new(encode(&listener)))
}
