//! The filters for requests, in the order in which they see one.

mod alpn;
pub(crate) mod cors;
pub(crate) mod fault;
mod grpc_stats;
pub(crate) mod jwt_authn;
mod metadata_exchange;

use pilot_envoy_api::envoy::extensions::filters::http::cors::v3::Cors;
use pilot_envoy_api::envoy::extensions::filters::http::fault::v3::HttpFault;
use pilot_envoy_api::envoy::extensions::filters::http::grpc_web::v3::GrpcWeb;
use pilot_envoy_api::envoy::extensions::filters::http::router::v3::Router;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpFilter as Api, http_filter::ConfigType,
};
use pilot_envoy_api::to_any;
use pilot_model::{Protocol, ProxyHeaders};
use prost_types::Any;

use crate::network_filter::{default_metrics, stats_config};
use crate::security::{SecurityFilters, Step};
use crate::settings::Settings;

pub(crate) const FAULT: &str = "envoy.filters.http.fault";
pub(crate) const CORS: &str = "envoy.filters.http.cors";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Inbound,
    Outbound,
    /// From outside into the mesh, or out of it: called like a server, calling like a client.
    Gateway,
}

/// Every filter, declared in the order of the chain. EnvoyFilters that insert before or after one rely on it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum HttpFilter {
    /// First, so that what later filters refuse is counted for the right peer.
    MetadataExchange,
    /// Policies, in the order in which they are asked.
    Security(Step),
    /// Only where a port says that browsers speak gRPC there.
    GrpcWeb,
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

const CHAIN: [HttpFilter; 11] = [
    HttpFilter::MetadataExchange,
    HttpFilter::Security(Step::Custom),
    HttpFilter::Security(Step::Jwt),
    HttpFilter::Security(Step::Local),
    HttpFilter::GrpcWeb,
    HttpFilter::GrpcStats,
    HttpFilter::Alpn,
    HttpFilter::Fault,
    HttpFilter::Cors,
    HttpFilter::Stats,
    HttpFilter::Router,
];

/// What a chain of filters depends on.
#[derive(Clone, Copy)]
pub(crate) struct ChainContext<'a> {
    pub(crate) direction: Direction,
    /// What the port was declared to speak.
    pub(crate) protocol: Protocol,
    pub(crate) headers: &'a ProxyHeaders,
    /// Policies of the workload, on the way to it or at a gateway.
    pub(crate) security: Option<&'a SecurityFilters>,
    pub(crate) settings: Settings<'a>,
}

pub(crate) fn http_filters(chain: ChainContext<'_>) -> Vec<Api> {
    CHAIN.into_iter().flat_map(|filter| filter.build(chain)).collect()
}

impl HttpFilter {
    fn build(self, chain: ChainContext<'_>) -> Vec<Api> {
        let ChainContext { direction, protocol, headers, security, settings } = chain;
        let features = &settings.options.features;
        let one = match self {
            Self::MetadataExchange => {
                features.metadata_exchange.then(|| metadata_exchange::filter(direction, headers))
            }
            Self::Security(step) => return security.map(|policies| policies.http(step)).unwrap_or_default(),
            Self::GrpcWeb => (protocol == Protocol::GrpcWeb)
                .then(|| http_filter("envoy.filters.http.grpc_web", to_any(&GrpcWeb {}))),
            Self::GrpcStats => Some(grpc_stats::filter()),
            Self::Alpn => (features.alpn_filter && direction != Direction::Inbound).then(alpn::filter),
            Self::Fault => Some(http_filter(FAULT, to_any(&HttpFault::default()))),
            Self::Cors => Some(http_filter(CORS, to_any(&Cors {}))),
            Self::Stats => {
                default_metrics(settings).then(|| http_filter("istio.stats", stats_config(direction)))
            }
            Self::Router => {
                let suppress_envoy_headers = headers.no_envoy_debug_headers;
                let config = Router { suppress_envoy_headers, ..Router::default() };
                Some(http_filter("envoy.filters.http.router", to_any(&config)))
            }
        };
        one.into_iter().collect()
    }
}

pub(crate) fn http_filter(name: &str, config: Any) -> Api {
    Api { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)), ..Api::default() }
}

#[cfg(test)]
mod tests {
    use super::CHAIN;

    #[test]
    fn the_chain_is_in_the_order_of_the_declaration() {
        assert!(CHAIN.is_sorted());
    }
}
