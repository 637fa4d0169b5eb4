//! Listeners: where traffic comes in, from the application (outbound) and to it (inbound).
//!
//! ```text
//!   HostPlan ─parts─► Part at a Place ─merge─► Listener (plain data) ─build─► bytes
//! ```
//! Every HTTP host of a port shares one listener, so a host's part is small and most parts change nothing.

mod build;
mod inbound;
mod inspector;
mod l4;
mod merge;
mod part;
mod protocol;
mod virtual_outbound;

pub use build::{http_proxy_listener, outbound_listener};
pub use inbound::{Guard, inbound_listeners};
pub use merge::{OutboundListener, merge_parts};
pub use part::{HttpPart, L4Part, Part, PartKey, PartKind, Place, Surroundings, outbound_parts};
pub use virtual_outbound::virtual_outbound;

pub(crate) use inspector::{proxy_protocol, tls_inspector};
pub(crate) use l4::tuned;
pub(crate) use merge::L4Serve;
pub(crate) use protocol::protocol_filters;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::listener::v3 as api;
use pilot_model::{IpMode, OutboundMode, Span};
use pilot_xds::{Encoded, TypeUrl};
use prost::Message as _;

use crate::convert::{socket_address, wildcards};
use crate::http_filter::Direction;
use crate::network_filter::{TcpProxy, istio_stats};
use crate::settings::{Outbound, Settings};

/// What the HTTP inspector says a connection in plain text speaks.
const PLAIN_HTTP: [&str; 2] = ["http/1.1", "h2c"];
const RAW_BUFFER: &str = "raw_buffer";
const TLS: &str = "tls";

pub(crate) const PASSTHROUGH: &str = "PassthroughCluster";
pub(crate) const BLACK_HOLE: &str = "BlackHoleCluster";

pub(crate) fn encode(listener: &api::Listener) -> Encoded {
    Encoded::new(TypeUrl::Listener, Name::new(&listener.name), &listener.encode_to_vec())
}

/// A listener at a port of all addresses.
fn at_wildcard(name: &str, port: u16, mode: IpMode, settings: Settings<'_>) -> api::Listener {
    let addresses = wildcards(mode);
    let more = if settings.options.features.dual_stack { &addresses[1..] } else { &[] };
    api::Listener {
        name: name.to_owned(),
        address: Some(socket_address(addresses[0], port)),
        additional_addresses: additional(more.iter().copied(), port),
        max_connections_to_accept_per_socket_event: per_socket_event(settings),
        ..api::Listener::default()
    }
}

pub(crate) fn additional<'a>(
    addresses: impl Iterator<Item = &'a str>,
    port: u16,
) -> Vec<api::AdditionalAddress> {
    let one = |address| api::AdditionalAddress {
        address: Some(socket_address(address, port)),
        ..api::AdditionalAddress::default()
    };
    addresses.map(one).collect()
}

pub(crate) fn per_socket_event(settings: Settings<'_>) -> Option<u32> {
    Some(settings.options.features.max_connections_per_event).filter(|most| *most > 0)
}

pub(crate) fn exact_balance() -> api::listener::ConnectionBalanceConfig {
    use api::listener::connection_balance_config::{BalanceType, ExactBalance};
    api::listener::ConnectionBalanceConfig { balance_type: Some(BalanceType::ExactBalance(ExactBalance {})) }
}

pub(crate) fn direction(direction: Direction) -> i32 {
    match direction {
        Direction::Inbound => core::TrafficDirection::Inbound as i32,
        Direction::Outbound | Direction::Gateway => core::TrafficDirection::Outbound as i32,
    }
}

/// What a connection is found to speak if it speaks HTTP that is not encrypted.
fn plain_http(settings: Settings<'_>) -> Vec<String> {
    let oldest = settings.options.features.http10.then_some("http/1.0");
    oldest.into_iter().chain(PLAIN_HTTP).map(str::to_owned).collect()
}

/// Where connections to hosts that nobody knows go.
fn catch_all_filters(outbound: &Outbound, idle: Option<Span>, settings: Settings<'_>) -> Vec<api::Filter> {
    let proxy = TcpProxy { idle_timeout: idle, ..TcpProxy::to(&catch_all_cluster(outbound)) };
    istio_stats(Direction::Outbound, settings).into_iter().chain([proxy.build(settings)]).collect()
}

pub(crate) fn catch_all_cluster(outbound: &Outbound) -> Name {
    match (outbound.mode, &outbound.proxy) {
        (OutboundMode::RegistryOnly, _) => Name::new(BLACK_HOLE),
        (OutboundMode::AllowAny | OutboundMode::AllowAnyDynamicDns, Some(proxy)) => proxy.clone(),
        (OutboundMode::AllowAny | OutboundMode::AllowAnyDynamicDns, None) => Name::new(PASSTHROUGH),
    }
}

/// Connections to the listener's own port, which would go round in circles.
fn black_hole_filters(kind: Direction, settings: Settings<'_>) -> Vec<api::Filter> {
    let proxy = TcpProxy { logged: false, ..TcpProxy::to(&Name::new(BLACK_HOLE)) };
    istio_stats(kind, settings).into_iter().chain([proxy.build(settings)]).collect()
}
