use std::net::IpAddr;
use std::sync::Arc;

use pilot_base::{Cidr, Name};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::listener::v3 as api;
use pilot_model::{Kind, Protocol};
use pilot_xds::Encoded;

use super::inspector::{http_inspector, tls_inspector};
use super::merge::{Chain, OutboundListener, Serve};
use super::part::{Binding, Place};
use super::protocol::protocol_filters;
use super::{RAW_BUFFER, additional, catch_all_filters, direction, encode, exact_balance, plain_http};
use crate::convert::{cidr_range, duration, localhosts, seconds, socket_address, stat_prefix};
use crate::dynamic_forward_proxy::{any_names, for_connections, names_of};
use crate::http_connection_manager::{Manager, Routes};
use crate::http_filter::Direction;
use crate::metadata;
use crate::network_filter::{PHASES, extensions, leading};
use crate::settings::{HttpTraits, ListenerTraits, Settings};

/// The bytes of an outbound listener. `http` is needed if it serves HTTP; without it such chains are left out.
pub fn outbound_listener(
    listener: &OutboundListener,
    traits: &ListenerTraits,
    http: Option<&HttpTraits>,
    settings: Settings<'_>,
) -> Arc<Encoded> {
    let builder = Builder { listener, traits, http, settings: settings.with_chain(&traits.chain) };
    Arc::new(encode(&builder.build()))
}

/// The listener of a forward proxy, for applications that are told to use one.
pub fn http_proxy_listener(
    port: u16,
    traits: &ListenerTraits,
    http: &HttpTraits,
    settings: Settings<'_>,
) -> Arc<Encoded> {
    let mut addresses = localhosts(traits.ip_mode).iter().map(|address| Name::new(address));
    let listener = OutboundListener {
        place: Place { address: addresses.next().unwrap_or_default(), port },
        binding: Binding { opens_port: true, more: addresses.collect(), grpc_web: false },
        chains: vec![Chain::all(Serve::ForwardProxy(Name::new("http_proxy")))],
    };
    outbound_listener(&listener, traits, Some(http), settings)
}

struct Builder<'a> {
    listener: &'a OutboundListener,
    traits: &'a ListenerTraits,
    http: Option<&'a HttpTraits>,
    settings: Settings<'a>,
}

impl Builder<'_> {
    fn build(&self) -> api::Listener {
        let place = &self.listener.place;
        let binds = self.listener.binding.opens_port;
        let more = self.listener.binding.more.iter().map(Name::as_str);
        let mut out = api::Listener {
            name: place.listener_name().to_string(),
            address: Some(socket_address(&place.address, place.port)),
            additional_addresses: additional(more, place.port),
            traffic_direction: direction(Direction::Outbound),
            continue_on_listener_filters_timeout: true,
            bind_to_port: (!binds).then_some(false),
            max_connections_to_accept_per_socket_event: super::per_socket_event(self.settings)
                .filter(|_| binds),
            connection_balance_config: self.traits.exact_balance.then(exact_balance),
            ..api::Listener::default()
        };
        self.set_filters(&mut out);
        self.set_chains(&mut out);
        out
    }

    fn set_filters(&self, out: &mut api::Listener) {
        let chains = &self.listener.chains;
        let looks_up = |serve: &Serve| matches!(serve, Serve::L4(serve) if serve.dynamic.is_some());
        if chains.iter().any(|chain| !chain.server_names.is_empty() || looks_up(&chain.serve)) {
            out.listener_filters.push(tls_inspector());
        }
        let sniffed = chains.iter().any(|chain| chain.sniffed);
        if sniffed {
            out.listener_filters.push(http_inspector());
        }
        // Only those who look for HTTP may have to stop looking.
        let patience = self.settings.mesh.protocol_detection_timeout.map(duration);
        out.listener_filters_timeout = if sniffed { patience } else { Some(seconds(0)) };
    }

    fn set_chains(&self, out: &mut api::Listener) {
        for chain in &self.listener.chains {
            let Some(filters) = self.filters(chain, &out.name) else { continue };
            let built = api::FilterChain {
                filter_chain_match: chain_match(chain, self.settings),
                metadata: chain.config.as_ref().and_then(|id| metadata::of_config(Kind::VirtualService, id)),
                filters,
                transport_socket_connect_timeout: Some(duration(
                    self.settings.options.features.transport_connect_timeout,
                )),
                ..api::FilterChain::default()
            };
            // A connection that begins to match one chain and then does not must still find this one.
            if chain.matches_all() {
                out.default_filter_chain = Some(built);
            } else {
                out.filter_chains.push(built);
            }
        }
        if out.filter_chains.is_empty() {
            out.filter_chains.extend(out.default_filter_chain.take());
        } else if out.default_filter_chain.is_none() {
            out.default_filter_chain = Some(api::FilterChain {
                name: "PassthroughFilterChain".to_owned(),
                filter_chain_match: Some(api::FilterChainMatch::default()),
                filters: catch_all_filters(&self.traits.outbound, self.traits.idle_timeout, self.settings),
                ..api::FilterChain::default()
            });
        }
    }

    fn filters(&self, chain: &Chain, name: &str) -> Option<Vec<api::Filter>> {
        match &chain.serve {
            Serve::L4(serve) => {
                let port = self.listener.place.port;
                let mut filters = leading(Direction::Outbound, port, None, self.settings);
                let dynamic = serve.dynamic.as_ref();
                let names = dynamic.map(|host| names_of(host, self.traits.ip_mode, self.settings));
                filters.extend(names.map(|names| for_connections(names, port)));
                filters.extend(protocol_filters(serve, self.settings));
                Some(filters)
            }
            Serve::Http { routes, .. } | Serve::GrpcWeb(routes) | Serve::ForwardProxy(routes) => {
                let protocol = match &chain.serve {
                    Serve::ForwardProxy(_) => Protocol::HttpProxy,
                    Serve::GrpcWeb(_) => Protocol::GrpcWeb,
                    _ => Protocol::Auto,
                };
                let dynamic = match &chain.serve {
                    Serve::Http { dynamic, .. } => dynamic.as_ref(),
                    Serve::GrpcWeb(_) | Serve::ForwardProxy(_) | Serve::L4(_) => None,
                };
                let (mode, settings) = (self.traits.ip_mode, self.settings);
                let names = dynamic.map(|host| names_of(host, mode, settings)).into_iter();
                let names = names.chain(any_names(&self.traits.outbound, mode, settings));
                let manager = Manager {
                    direction: Direction::Outbound,
                    stat_prefix: stat_prefix(&format!("outbound_{name}")),
                    routes: Routes::Named(routes.to_string()),
                    port: self.listener.place.port,
                    protocol,
                    idle_timeout: self.traits.idle_timeout,
                    traits: self.http?,
                    security: None,
                    names: names.collect(),
                };
                let extensions = extensions(&PHASES, self.listener.place.port, self.settings);
                Some(extensions.into_iter().chain([manager.build(self.settings)]).collect())
            }
        }
    }
}

fn chain_match(chain: &Chain, settings: Settings<'_>) -> Option<api::FilterChainMatch> {
    if chain.matches_all() {
        return None;
    }
    let sorted = |names: &[Name]| {
        let mut sorted: Vec<String> = names.iter().map(Name::to_string).collect();
        sorted.sort();
        sorted
    };
    let mut out = api::FilterChainMatch {
        server_names: if chain.names_all() { Vec::new() } else { sorted(&chain.server_names) },
        prefix_ranges: sorted(&chain.cidrs).iter().filter_map(|cidr| prefix_range(cidr)).collect(),
        ..api::FilterChainMatch::default()
    };
    if chain.sniffed {
        out.application_protocols = plain_http(settings);
        out.transport_protocol = RAW_BUFFER.to_owned();
    }
    Some(out)
}

/// All addresses need no range.
fn prefix_range(cidr: &str) -> Option<core::CidrRange> {
    let range = Cidr::parse_or_address(cidr)?;
    (range.base() != IpAddr::from([0, 0, 0, 0])).then(|| cidr_range(range))
}
