//! The filters for requests, in the order in which they see one.

mod alpn;
pub(crate) mod cors;
mod extension;
pub(crate) mod fault;
mod grpc_stats;
pub(crate) mod jwt_authn;
mod metadata_exchange;
mod on_demand;
pub(crate) mod stateful_session;

use pilot_envoy_api::envoy::extensions::common::dynamic_forward_proxy::v3::DnsCacheConfig;
use pilot_envoy_api::envoy::extensions::filters::http::cors::v3::Cors;
use pilot_envoy_api::envoy::extensions::filters::http::fault::v3::HttpFault;
use pilot_envoy_api::envoy::extensions::filters::http::grpc_web::v3::GrpcWeb;
use pilot_envoy_api::envoy::extensions::filters::http::router::v3::Router;
use pilot_envoy_api::envoy::extensions::filters::http::stateful_session::v3::StatefulSession;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpFilter as Api, http_filter::ConfigType,
};
use pilot_envoy_api::to_any;
use pilot_model::{ExtensionPhase, Protocol, ProxyHeaders};
use prost_types::Any;

use crate::dynamic_forward_proxy::for_requests;
use crate::network_filter::{STATS, stats_config};
use crate::security::{SecurityFilters, Step};
use crate::settings::{HttpTraits, Settings};

pub(crate) const FAULT: &str = "envoy.filters.http.fault";
pub(crate) const CORS: &str = "envoy.filters.http.cors";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Inbound,
    Outbound,
    /// From outside into the mesh, or out of it: called like a server, calling like a client.
    Gateway,
}

/// Every filter. EnvoyFilters that insert before or after one rely on their order in [`CHAIN`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum HttpFilter {
    /// Before all others, because all see the request again when its cluster has come.
    OnDemand,
    /// First of those who look at a request, so that what later filters refuse is counted for the right peer.
    MetadataExchange,
    /// Policies, in the order in which they are asked.
    Security(Step),
    /// The user's code, before the policies its phase names; what has no phase comes last.
    Extensions(ExtensionPhase),
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
    /// Does nothing until a route says so.
    StatefulSession,
    /// Looks up hosts that are found out as they are called.
    DynamicForwardProxy,
    /// Sends the request on; nothing can come after it.
    Router,
}

/// In the order of the declaration, but for the user's code, which stands before what its phase names.
const CHAIN: [HttpFilter; 18] = [
    HttpFilter::OnDemand,
    HttpFilter::MetadataExchange,
    HttpFilter::Security(Step::Custom),
    HttpFilter::Extensions(ExtensionPhase::Authn),
    HttpFilter::Security(Step::Jwt),
    HttpFilter::Extensions(ExtensionPhase::Authz),
    HttpFilter::Security(Step::Local),
    HttpFilter::Extensions(ExtensionPhase::Stats),
    HttpFilter::Extensions(ExtensionPhase::Unspecified),
    HttpFilter::GrpcWeb,
    HttpFilter::GrpcStats,
    HttpFilter::Alpn,
    HttpFilter::Fault,
    HttpFilter::Cors,
    HttpFilter::Stats,
    HttpFilter::StatefulSession,
    HttpFilter::DynamicForwardProxy,
    HttpFilter::Router,
];

/// What a chain of filters depends on.
#[derive(Clone, Copy)]
pub(crate) struct ChainContext<'a> {
    pub(crate) direction: Direction,
    /// Of the application, or of the listener in front of somebody else's.
    pub(crate) port: u16,
    /// What the port was declared to speak.
    pub(crate) protocol: Protocol,
    pub(crate) traits: &'a HttpTraits,
    /// Policies of the workload, on the way to it or at a gateway.
    pub(crate) security: Option<&'a SecurityFilters>,
    /// Names that are looked up as they are called.
    pub(crate) names: &'a [DnsCacheConfig],
    pub(crate) settings: Settings<'a>,
}

pub(crate) fn http_filters(chain: ChainContext<'_>) -> Vec<Api> {
    CHAIN.into_iter().flat_map(|filter| filter.build(chain)).collect()
}

impl HttpFilter {
    fn build(self, chain: ChainContext<'_>) -> Vec<Api> {
        let ChainContext { direction, port, protocol, traits, security, names, settings } = chain;
        let (features, headers) = (&settings.options.features, &traits.headers);
        let one = match self {
            Self::MetadataExchange => {
                // Who calls the proxy as a forward proxy has always told everybody who it is.
                let default = ProxyHeaders::default();
                let headers = if protocol == Protocol::HttpProxy { &default } else { headers };
                features.metadata_exchange.then(|| metadata_exchange::filter(direction, headers))
            }
            Self::OnDemand => traits.on_demand.then(on_demand::filter),
            Self::Security(step) => return security.map(|policies| policies.http(step)).unwrap_or_default(),
            Self::Extensions(phase) => {
                let here = traits.extensions.iter().filter(|e| e.phase == phase && e.applies_at(port));
                return here.map(extension::filter).collect();
            }
            Self::GrpcWeb => (protocol == Protocol::GrpcWeb)
                .then(|| http_filter("envoy.filters.http.grpc_web", to_any(&GrpcWeb {}))),
            Self::GrpcStats => Some(grpc_stats::filter()),
            Self::Alpn => (features.alpn_filter && direction != Direction::Inbound).then(alpn::filter),
            Self::Fault => Some(http_filter(FAULT, to_any(&HttpFault::default()))),
            Self::Cors => Some(http_filter(CORS, to_any(&Cors {}))),
            Self::Stats => {
                let plans = settings.chain.stats.iter();
                return plans.map(|plan| http_filter(STATS, stats_config(plan, direction))).collect();
            }
            Self::StatefulSession => {
                (features.persistent_sessions && direction != Direction::Inbound).then(|| {
                    http_filter(stateful_session::STATEFUL_SESSION, to_any(&StatefulSession::default()))
                })
            }
            Self::DynamicForwardProxy => return names.iter().map(for_requests).collect(),
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
    use super::{CHAIN, HttpFilter};

    #[test]
    fn every_filter_stands_once_and_what_sends_requests_on_stands_last() {
        let mut once = CHAIN.to_vec();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), CHAIN.len());
        assert_eq!(CHAIN.last(), Some(&HttpFilter::Router));
    }
}
