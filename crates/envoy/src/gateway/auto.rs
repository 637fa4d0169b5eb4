//! Servers that pass TLS on to the cluster that its server name spells out, for gateways between networks.

use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::listener::v3 as api;
use pilot_mesh::{ClusterName, HostPlan};
use pilot_model::{Protocol, Span};
use pilot_xds::Chunk;
use prost::Message as _;

use crate::convert::duration;
use crate::http_filter::Direction;
use crate::listener::{L4Serve, protocol_filters, tuned};
use crate::network_filter::{TcpProxy, istio_stats};
use crate::settings::{ChainTraits, Settings};
use crate::stat_name::StatName;

/// The field of a `Listener` that holds its filter chains.
const FILTER_CHAINS: u32 = 3;
/// What sidecars say they speak inside mutual TLS. Nothing else gets through, so that nobody gets in without it.
const MESH_ALPN: [&str; 5] = ["istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"];

/// Which services are reached this way, and how.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AutoPassthrough {
    pub hosts: Vec<Host>,
    pub idle_timeout: Option<Span>,
    pub chain: Arc<ChainTraits>,
}

/// A chain of the listener, with what tells its place among others.
#[derive(Clone, PartialEq, Debug)]
pub struct AutoChain {
    pub key: Name,
    pub chain: Chunk,
}

/// The chains for a host: one for each port, and one for each port of each subset.
pub fn auto_chains(plan: &HostPlan, traits: &AutoPassthrough, settings: Settings<'_>) -> Vec<AutoChain> {
    let host = &plan.host;
    let Some(service) = plan.service() else { return Vec::new() };
    if service.mesh_external || !traits.hosts.iter().any(|pattern| host.subset_of(pattern)) {
        return Vec::new();
    }
    let subsets = plan.traffic.iter().flat_map(|traffic| traffic.rule.subsets.iter().map(|s| s.name.clone()));
    let subsets: Vec<Name> = std::iter::once(Name::empty()).chain(subsets).collect();
    // What is exported to some comes before what everybody sees, then the older before the newer.
    let public = service.export_to.or(&settings.mesh.service_export_to).is_public();
    let (created, name, namespace) = service.order();
    // Without a sign, text has the order of numbers.
    let age = created.0.cast_unsigned() ^ (1 << 63);
    let mut out = Vec::new();
    let ports = plan.ports().into_iter().filter(|(_, port)| port.protocol != Protocol::Udp);
    for (i, (_, port)) in ports.enumerate() {
        for (j, subset) in subsets.iter().enumerate() {
            let cluster = ClusterName::sni(port.number, subset, host);
            let stats = StatName {
                service: Some(service),
                subset,
                port: port.number,
                port_name: &port.name,
                target_port: Some(0),
            };
            let proxy = TcpProxy::to(&cluster).named(stats, settings);
            let proxy = tuned(proxy, plan.traffic.as_deref(), subset, traits.idle_timeout);
            let proxy = TcpProxy { tunnel: None, ..proxy };
            let serve = L4Serve { proxy, protocol: port.protocol, cluster, dynamic: None };
            let chain = chain(&serve, settings.with_chain(&traits.chain));
            let key = format!("{}{age:020} {name} {namespace} {host} {i:05} {j:05}", u8::from(public));
            out.push(AutoChain {
                key: Name::from(key),
                chain: Chunk::new(FILTER_CHAINS, &chain.encode_to_vec()),
            });
        }
    }
    out
}

fn chain(serve: &L4Serve, settings: Settings<'_>) -> api::FilterChain {
    let timeout = settings.options.features.transport_connect_timeout;
    let stats = istio_stats(Direction::Gateway, settings);
    api::FilterChain {
        filter_chain_match: Some(api::FilterChainMatch {
            server_names: vec![serve.cluster.to_string()],
            application_protocols: MESH_ALPN.iter().map(|protocol| (*protocol).to_owned()).collect(),
            ..api::FilterChainMatch::default()
        }),
        filters: stats.into_iter().chain(protocol_filters(serve, settings)).collect(),
        transport_socket_connect_timeout: (!timeout.is_zero()).then(|| duration(timeout)),
        ..api::FilterChain::default()
    }
}
