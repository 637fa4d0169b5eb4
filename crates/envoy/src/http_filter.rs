//! The filters for requests, in the order in which they see one.

mod alpn;
pub(crate) mod cors;
pub(crate) mod fault;
mod grpc_stats;
mod metadata_exchange;

use pilot_envoy_api::envoy::extensions::filters::http::cors::v3::Cors;
use pilot_envoy_api::envoy::extensions::filters::http::fault::v3::HttpFault;
use pilot_envoy_api::envoy::extensions::filters::http::router::v3::Router;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpFilter as Api, http_filter,
};
use pilot_envoy_api::to_any;
use pilot_model::ProxyHeaders;
use prost_types::Any;

use crate::network_filter::{default_metrics, stats_config};
use crate::settings::Settings;

pub(crate) const FAULT: &str = "envoy.filters.http.fault";
pub(crate) const CORS: &str = "envoy.filters.http.cors";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Inbound,
    Outbound,
}

/// Every filter, declared in the order of the chain. EnvoyFilters that insert before or after one rely on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum HttpFilter {
    /// First, so that what later filters refuse is counted for the right peer.
    MetadataExchange,
    GrpcStats,
    /// Only towards other sidecars.
    Alpn,
    /// Does nothing until a route says so.
    Fault,
    /// Does nothing until a route says so.
    Cors,
    Stats,
    /// Sends the request on; nothing can come after it.
    Router,
}

const CHAIN: [HttpFilter; 7] = [
    HttpFilter::MetadataExchange,
    HttpFilter::GrpcStats,
    HttpFilter::Alpn,
    HttpFilter::Fault,
    HttpFilter::Cors,
    HttpFilter::Stats,
    HttpFilter::Router,
];

pub(crate) fn http_filters(direction: Direction, headers: &ProxyHeaders, settings: Settings<'_>) -> Vec<Api> {
    CHAIN.into_iter().filter_map(|filter| filter.build(direction, headers, settings)).collect()
}

impl HttpFilter {
    fn build(self, direction: Direction, headers: &ProxyHeaders, settings: Settings<'_>) -> Option<Api> {
        let features = &settings.options.features;
        match self {
            Self::MetadataExchange => {
                features.metadata_exchange.then(|| metadata_exchange::filter(direction, headers))
            }
            Self::GrpcStats => Some(grpc_stats::filter()),
            Self::Alpn => (features.alpn_filter && direction == Direction::Outbound).then(alpn::filter),
            Self::Fault => Some(filter(FAULT, to_any(&HttpFault::default()))),
            Self::Cors => Some(filter(CORS, to_any(&Cors {}))),
            Self::Stats => default_metrics(settings).then(|| filter("istio.stats", stats_config(direction))),
            Self::Router => {
                let suppress_envoy_headers = headers.no_envoy_debug_headers;
                let config = Router { suppress_envoy_headers, ..Router::default() };
                Some(filter("envoy.filters.http.router", to_any(&config)))
            }
        }
    }
}

fn filter(name: &str, config: Any) -> Api {
    Api {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..Api::default()
    }
}

#[cfg(test)]
mod tests {
    use super::CHAIN;

    #[test]
    fn the_chain_is_in_the_order_of_the_declaration() {
        assert!(CHAIN.is_sorted());
    }
}
