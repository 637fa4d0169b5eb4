use std::net::{IpAddr, SocketAddr};

use pilot_envoy_api::envoy::config::core::v3::{Address, CidrRange, address, socket_address};
use pilot_envoy_api::envoy::config::listener::v3::{Filter, FilterChain, FilterChainMatch, Listener, filter};
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use pilot_envoy_api::envoy::extensions::filters::network::tcp_proxy::v3::{TcpProxy, tcp_proxy};
use pilot_envoy_api::from_any;

use super::{Call, Snapshot};

/// What a filter chain ends in.
pub(super) enum Terminal {
    Http(Box<HttpConnectionManager>),
    /// Clusters with their chances, and what pins a client to an endpoint.
    Tcp(Vec<(String, f64)>, Option<u64>),
}

/// The filter chain that takes a connection, if there is one.
pub(super) fn find(snapshot: &Snapshot, call: &Call) -> Result<Option<FilterChain>, String> {
    let at = |ip: IpAddr, bound: bool| {
        let place = SocketAddr::new(ip, call.to.port());
        snapshot.listeners.values().find(|l| is_bound(l) == bound && socket(l) == Some(place))
    };
    let wildcard: IpAddr = if call.to.is_ipv4() { [0, 0, 0, 0].into() } else { [0_u16; 8].into() };
    // Whoever listens there takes it. Else it is redirected to the listener for everything, if there is one, which hands
    // it to the one that stands for the original destination.
    let direct = at(call.to.ip(), true).or_else(|| at(wildcard, true));
    let redirected = || {
        let catch_all = snapshot.listeners.get("virtualOutbound")?;
        at(call.to.ip(), false).or_else(|| at(wildcard, false)).or(Some(catch_all))
    };
    let Some(listener) = direct.or_else(redirected) else { return Ok(None) };
    let chain = choose(listener, call);
    Ok(chain.or(listener.default_filter_chain.as_ref()).cloned())
}

fn is_bound(listener: &Listener) -> bool {
    listener.bind_to_port.unwrap_or(true)
}

fn socket(listener: &Listener) -> Option<SocketAddr> {
    address_of(listener.address.as_ref()?)
}

pub(super) fn address_of(address: &Address) -> Option<SocketAddr> {
    let Some(address::Address::SocketAddress(socket)) = &address.address else { return None };
    let Some(socket_address::PortSpecifier::PortValue(port)) = &socket.port_specifier else { return None };
    Some(SocketAddr::new(socket.address.parse().ok()?, u16::try_from(*port).ok()?))
}

/// The most specific chain, in Envoy's order of what counts more.
fn choose<'a>(listener: &'a Listener, call: &Call) -> Option<&'a FilterChain> {
    let inspected = |by: &str| listener.listener_filters.iter().any(|filter| filter.name.ends_with(by));
    let in_plain_text = call.http.is_some() && call.tls.is_none();
    let known = Known {
        protocol: (inspected("http_inspector") && in_plain_text).then_some("http/1.1"),
        server_name: call.tls.as_ref().filter(|_| inspected("tls_inspector")).map(|t| t.server_name.as_str()),
    };
    let rank = |chain: &'a FilterChain| {
        let wanted = chain.filter_chain_match.as_ref();
        Some((specificity(wanted, call, &known)?, chain))
    };
    listener.filter_chains.iter().filter_map(rank).max_by_key(|(rank, _)| *rank).map(|(_, chain)| chain)
}

/// What inspectors have found out about a connection.
struct Known<'a> {
    protocol: Option<&'a str>,
    server_name: Option<&'a str>,
}

/// The part of a server name that a pattern spells out; nothing if it does not match.
fn names(pattern: &str, name: &str) -> Option<u32> {
    let len = |text: &str| u32::try_from(text.len()).unwrap_or(u32::MAX);
    match pattern.strip_prefix('*') {
        Some(suffix) => (name.ends_with(suffix) && name.len() > suffix.len()).then(|| len(suffix)),
        // An exact name counts more than any pattern.
        None => (pattern == name).then_some(u32::MAX),
    }
}

fn specificity(wanted: Option<&FilterChainMatch>, call: &Call, known: &Known<'_>) -> Option<[u32; 5]> {
    let Some(wanted) = wanted else { return Some([0; 5]) };
    let port = match wanted.destination_port {
        Some(port) if port != u32::from(call.to.port()) => return None,
        Some(_) => 1,
        None => 0,
    };
    let range = match &wanted.prefix_ranges[..] {
        [] => 0,
        ranges => ranges.iter().filter_map(|range| covers(range, call.to.ip())).max()?,
    };
    let server_name = match &wanted.server_names[..] {
        [] => 0,
        patterns => patterns.iter().filter_map(|pattern| names(pattern, known.server_name?)).max()?,
    };
    let transport = match wanted.transport_protocol.as_str() {
        "" => 0,
        "tls" if known.server_name.is_some() => 1,
        "raw_buffer" if known.server_name.is_none() => 1,
        _ => return None,
    };
    let application = match (&wanted.application_protocols[..], known.protocol) {
        ([], _) => 0,
        (protocols, Some(protocol)) if protocols.iter().any(|p| p == protocol) => 1,
        _ => return None,
    };
    Some([port, range, server_name, transport, application])
}

/// The length of a range that an address lies in, counted so that even the widest is more than none.
pub(super) fn covers(range: &CidrRange, ip: IpAddr) -> Option<u32> {
    let len = range.prefix_len.unwrap_or(0);
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    };
    let ((own, width), (prefix, range_width)) = (bits(ip), bits(range.address_prefix.parse().ok()?));
    let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
    (width == range_width && own & mask == prefix & mask).then_some(len + 1)
}

pub(super) fn terminal(chain: &FilterChain) -> Result<Terminal, String> {
    let last = chain.filters.last().ok_or_else(|| format!("filter chain {} is empty", chain.name))?;
    let config = |filter: &Filter| match &filter.config_type {
        Some(filter::ConfigType::TypedConfig(any)) => Some(any.clone()),
        _ => None,
    };
    let any = config(last).ok_or_else(|| format!("filter {} has no configuration", last.name))?;
    if let Some(manager) = from_any::<HttpConnectionManager>(&any) {
        return Ok(Terminal::Http(Box::new(manager)));
    }
    let proxy = from_any::<TcpProxy>(&any).ok_or_else(|| format!("unknown filter {}", last.name))?;
    // All calls here have one source address, the only thing that such a connection can be pinned by.
    let key = (!proxy.hash_policy.is_empty()).then_some(1);
    match proxy.cluster_specifier {
        Some(tcp_proxy::ClusterSpecifier::Cluster(cluster)) => Ok(Terminal::Tcp(vec![(cluster, 1.0)], key)),
        Some(tcp_proxy::ClusterSpecifier::WeightedClusters(weighted)) => {
            let total: u32 = weighted.clusters.iter().map(|c| c.weight).sum();
            let share = |weight: u32| f64::from(weight) / f64::from(total.max(1));
            Ok(Terminal::Tcp(weighted.clusters.into_iter().map(|c| (c.name, share(c.weight))).collect(), key))
        }
        None => Err(format!("tcp proxy {} has no cluster", proxy.stat_prefix)),
    }
}
