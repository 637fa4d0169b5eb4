use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::listener::v3 as api;
use pilot_envoy_api::envoy::config::route::v3 as route;
use pilot_mesh::{ClusterName, PeerModes, Target, stand_in};
use pilot_model::{
    CaptureMode, ConfigId, Interception, Kind, ListenerProtocol, MtlsMode, Protocol, ServerTls,
};
use pilot_xds::Encoded;

use super::inspector::{inspectors, original_dst, original_src};
use super::merge::L4Serve;
use super::protocol::protocol_filters;
use super::{
    PLAIN_HTTP, RAW_BUFFER, TLS, additional, at_wildcard, black_hole_filters, direction, encode,
    exact_balance, per_socket_event,
};
use crate::access_log;
use crate::convert::{duration, socket_address, stat_prefix, wildcards};
use crate::http_connection_manager::{Manager, Routes};
use crate::http_filter::Direction;
use crate::metadata;
use crate::network_filter::{PHASES, TcpProxy, extensions, leading, metadata_exchange};
use crate::route::inbound as inbound_route;
use crate::security::SecurityFilters;
use crate::server_tls::{ServerSide, Transport};
use crate::settings::{HttpTraits, ListenerTraits, Settings};
use crate::stat_name::StatName;
use crate::tls_context::downstream_mutual;

/// What sidecars offer in the handshake when they know that they speak HTTP, when they do not, and either.
const ISTIO_HTTP: [&str; 3] = ["istio-http/1.0", "istio-http/1.1", "istio-h2"];
const ISTIO_TCP: [&str; 2] = ["istio-peer-exchange", "istio"];
const ISTIO_ANY: [&str; 5] = ["istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"];
/// What this side offers.
const HTTP_ALPN: [&str; 2] = ["h2", "http/1.1"];
const TCP_ALPN: [&str; 3] = ["istio-peer-exchange", "h2", "http/1.1"];

/// Some of the connections to a port, and what is done with them.
struct Case {
    alpn: &'static [&'static str],
    tls: Tls,
    serves: Serves,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tls {
    None,
    /// Between sidecars; it ends here.
    Ours,
    /// The application's own business.
    Theirs,
    /// Of clients that are not sidecars, with certificates that a Sidecar names; it ends here.
    Named,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Serves {
    Http,
    Tcp,
}

/// Mutual TLS from sidecars and plain text from everyone else, for a port that speaks HTTP.
const HTTP_CASES: [Case; 2] = [
    Case { alpn: &ISTIO_ANY, tls: Tls::Ours, serves: Serves::Http },
    Case { alpn: &[], tls: Tls::None, serves: Serves::Http },
];
/// The same for a port that speaks something else, which may be TLS of its own.
const TCP_CASES: [Case; 3] = [
    Case { alpn: &ISTIO_ANY, tls: Tls::Ours, serves: Serves::Tcp },
    Case { alpn: &[], tls: Tls::Theirs, serves: Serves::Tcp },
    Case { alpn: &[], tls: Tls::None, serves: Serves::Tcp },
];
/// The same for a port of which nothing is known.
const AUTO_CASES: [Case; 5] = [
    Case { alpn: &ISTIO_HTTP, tls: Tls::Ours, serves: Serves::Http },
    Case { alpn: &PLAIN_HTTP, tls: Tls::None, serves: Serves::Http },
    Case { alpn: &ISTIO_TCP, tls: Tls::Ours, serves: Serves::Tcp },
    Case { alpn: &[], tls: Tls::None, serves: Serves::Tcp },
    Case { alpn: &[], tls: Tls::Theirs, serves: Serves::Tcp },
];

const STRICT_HTTP: [Case; 1] = [Case { alpn: &[], tls: Tls::Ours, serves: Serves::Http }];
const STRICT_TCP: [Case; 1] = [Case { alpn: &[], tls: Tls::Ours, serves: Serves::Tcp }];
const STRICT_AUTO: [Case; 2] = [
    Case { alpn: &ISTIO_HTTP, tls: Tls::Ours, serves: Serves::Http },
    Case { alpn: &[], tls: Tls::Ours, serves: Serves::Tcp },
];
const PLAIN_HTTP_CASES: [Case; 1] = [Case { alpn: &[], tls: Tls::None, serves: Serves::Http }];
const PLAIN_TCP: [Case; 1] = [Case { alpn: &[], tls: Tls::None, serves: Serves::Tcp }];
const PLAIN_AUTO: [Case; 2] = [
    Case { alpn: &PLAIN_HTTP, tls: Tls::None, serves: Serves::Http },
    Case { alpn: &[], tls: Tls::None, serves: Serves::Tcp },
];

/// A port whose Sidecar says how TLS ends.
const NAMED_HTTP: [Case; 1] = [Case { alpn: &[], tls: Tls::Named, serves: Serves::Http }];
const NAMED_TCP: [Case; 1] = [Case { alpn: &[], tls: Tls::Named, serves: Serves::Tcp }];

fn cases(protocol: ListenerProtocol, mode: MtlsMode) -> &'static [Case] {
    match (protocol, mode) {
        (ListenerProtocol::Http, MtlsMode::Permissive) => &HTTP_CASES,
        (ListenerProtocol::Http, MtlsMode::Strict) => &STRICT_HTTP,
        (ListenerProtocol::Http, MtlsMode::Disable) => &PLAIN_HTTP_CASES,
        (ListenerProtocol::Auto, MtlsMode::Permissive) => &AUTO_CASES,
        (ListenerProtocol::Auto, MtlsMode::Strict) => &STRICT_AUTO,
        (ListenerProtocol::Auto, MtlsMode::Disable) => &PLAIN_AUTO,
        (ListenerProtocol::Tcp | ListenerProtocol::None, MtlsMode::Permissive) => &TCP_CASES,
        (ListenerProtocol::Tcp | ListenerProtocol::None, MtlsMode::Strict) => &STRICT_TCP,
        (ListenerProtocol::Tcp | ListenerProtocol::None, MtlsMode::Disable) => &PLAIN_TCP,
    }
}

/// A port of the application, or all that nobody declared.
struct Port {
    chain: ChainNames,
    cluster: Name,
    /// What traces call it.
    host: String,
    number: u16,
    protocol: Protocol,
    target: Option<u16>,
    /// Where it has a listener of its own.
    opens_at: Option<Vec<Name>>,
    /// The Sidecar that declares it.
    sidecar: Option<ConfigId>,
    tls: Option<Arc<ServerTls>>,
}

/// How the chains of a port are called, by what they serve.
struct ChainNames {
    http: String,
    tcp: String,
    stat_prefix: String,
    /// For connections, where the mesh has a pattern.
    connections: Option<String>,
}

/// Who is let in to a workload.
#[derive(Clone, Copy)]
pub struct Guard<'a> {
    pub peers: &'a PeerModes,
    pub filters: &'a SecurityFilters,
}

/// The listener to which all inbound traffic is redirected, unless none is, and those that open their ports themselves.
pub fn inbound_listeners(
    targets: &[Target],
    traits: &ListenerTraits,
    http: &HttpTraits,
    guard: Guard<'_>,
    settings: Settings<'_>,
) -> Vec<Arc<Encoded>> {
    let builder = Builder { traits, http, guard, settings };
    let (opening, redirected): (Vec<Port>, Vec<Port>) =
        builder.ports(targets).into_iter().partition(|port| port.opens_at.is_some());
    let mut out: Vec<api::Listener> = Vec::new();
    if traits.interception != Interception::None {
        let mut chains = vec![builder.to_itself()];
        chains.extend(builder.chains(&undeclared(None, settings)));
        // Ports with a mode of their own may be such that no service declares.
        let declared = |port: &&u16| targets.iter().any(|target| target.target_port == **port);
        let spoken_of = guard.peers.ports.keys().filter(|port| !declared(port));
        chains.extend(spoken_of.flat_map(|port| builder.chains(&undeclared(Some(*port), settings))));
        chains.extend(redirected.iter().flat_map(|port| builder.chains(port)));
        out.push(builder.virtual_listener(chains));
    }
    out.extend(opening.iter().filter_map(|port| builder.own_listener(port)));
    out.iter().map(|listener| Arc::new(encode(listener))).collect()
}

/// Ports that no service declares, or one of them.
fn undeclared(target: Option<u16>, settings: Settings<'_>) -> Port {
    let cluster = "InboundPassthroughCluster";
    Port {
        chain: ChainNames {
            http: "virtualInbound-catchall-http".to_owned(),
            tcp: "virtualInbound".to_owned(),
            stat_prefix: cluster.to_owned(),
            connections: StatName { port_name: "virtualInbound", ..StatName::default() }
                .by(&settings.mesh.inbound_cluster_stat_name),
        },
        cluster: Name::new(cluster),
        host: String::new(),
        number: 0,
        protocol: Protocol::Auto,
        target,
        opens_at: None,
        sidecar: None,
        tls: None,
    }
}

struct Builder<'a> {
    traits: &'a ListenerTraits,
    http: &'a HttpTraits,
    guard: Guard<'a>,
    settings: Settings<'a>,
}

impl Builder<'_> {
    fn virtual_listener(&self, chains: Vec<api::FilterChain>) -> api::Listener {
        let (traits, settings) = (self.traits, self.settings);
        let tproxy = traits.interception == Interception::Tproxy;
        let mut filters = vec![original_dst()];
        filters.extend(tproxy.then(original_src));
        filters.extend(inspectors(&chains));
        let port = settings.mesh.proxy_inbound_listen_port;
        api::Listener {
            transparent: tproxy.then_some(true),
            listener_filters: filters,
            ..self.listener(at_wildcard("virtualInbound", port, traits.ip_mode, settings), chains)
        }
    }

    /// A listener that opens the port of the application.
    fn own_listener(&self, port: &Port) -> Option<api::Listener> {
        let addresses = port.opens_at.as_ref()?;
        let number = port.target?;
        let chains = self.chains(port);
        let more = if self.settings.options.features.dual_stack { &addresses[1..] } else { &[] };
        let at = api::Listener {
            name: port.chain.tcp.clone(),
            address: Some(socket_address(addresses.first()?, number)),
            additional_addresses: additional(more.iter().map(Name::as_str), number),
            max_connections_to_accept_per_socket_event: per_socket_event(self.settings),
            ..api::Listener::default()
        };
        Some(api::Listener { listener_filters: inspectors(&chains), ..self.listener(at, chains) })
    }

    fn listener(&self, at: api::Listener, chains: Vec<api::FilterChain>) -> api::Listener {
        api::Listener {
            traffic_direction: direction(Direction::Inbound),
            continue_on_listener_filters_timeout: true,
            connection_balance_config: self.traits.inbound_exact_balance.then(exact_balance),
            access_log: access_log::of_listener(self.settings),
            filter_chains: chains,
            listener_filters_timeout: self.settings.mesh.protocol_detection_timeout.map(duration),
            ..at
        }
    }

    /// The ports of the application, each claimed by the first service that has it.
    fn ports(&self, targets: &[Target]) -> Vec<Port> {
        let mut by_port: BTreeMap<u16, Port> = BTreeMap::new();
        for target in targets.iter().filter(|target| self.can_bind(target)) {
            by_port.entry(target.target_port).or_insert_with(|| self.port(target));
        }
        by_port.into_values().collect()
    }

    fn port(&self, target: &Target) -> Port {
        let everywhere = || wildcards(self.traits.ip_mode).iter().map(|address| Name::new(address)).collect();
        let bind = target.ingress.as_ref().and_then(|ingress| ingress.bind.clone());
        let addresses: Vec<Name> = bind.map_or_else(everywhere, |bind| vec![bind]);
        let name = format!("{}_{}", addresses[0], target.target_port);
        let stat_prefix = format!("inbound_{name}");
        let stand_in = target.ingress.as_ref().map(|ingress| stand_in(&ingress.sidecar));
        let stats = StatName {
            service: Some(stand_in.as_deref().unwrap_or(&target.service)),
            port: target.port,
            port_name: target.port_name(),
            ..StatName::default()
        };
        let connections = stats.by(&self.settings.mesh.inbound_cluster_stat_name);
        let tls = target.ingress.as_ref().and_then(|ingress| ingress.tls.clone());
        let tls = tls.filter(|_| self.settings.options.features.ingress_tls);
        Port {
            chain: ChainNames { http: name.clone(), tcp: name, stat_prefix, connections },
            cluster: ClusterName::inbound(target.target_port),
            host: target.name(),
            number: target.port,
            protocol: if tls.is_some() { decrypted(target.protocol) } else { target.protocol },
            tls,
            target: Some(target.target_port),
            opens_at: self.opens_port(target).then_some(addresses),
            sidecar: target.ingress.as_ref().map(|ingress| ingress.sidecar.clone()),
        }
    }

    fn opens_port(&self, target: &Target) -> bool {
        match target.ingress.as_ref().map(|ingress| ingress.capture).unwrap_or_default() {
            CaptureMode::Default => self.traits.interception == Interception::None,
            CaptureMode::Iptables => false,
            CaptureMode::None => true,
        }
    }

    /// Ports that the proxy has for itself, and ports that an ordinary user may not open.
    fn can_bind(&self, target: &Target) -> bool {
        let port = target.target_port;
        if self.opens_port(target) && self.traits.unprivileged && (1..1024).contains(&port) {
            return false;
        }
        let Some(ingress) = &target.ingress else { return !self.is_own(port) };
        let at_wildcard = match &ingress.bind {
            Some(bind) => *bind == wildcards(self.traits.ip_mode)[0],
            None => true,
        };
        !(at_wildcard && self.traits.own_ports.contains(&port))
    }

    fn is_own(&self, port: u16) -> bool {
        let mesh = self.settings.mesh;
        self.traits.own_ports.contains(&port)
            || port == mesh.proxy_listen_port
            || port == mesh.proxy_inbound_listen_port
    }

    fn to_itself(&self) -> api::FilterChain {
        let port = u32::from(self.settings.mesh.proxy_inbound_listen_port);
        let exchange = metadata_exchange(self.settings);
        api::FilterChain {
            name: "virtualInbound-blackhole".to_owned(),
            filter_chain_match: Some(api::FilterChainMatch {
                destination_port: Some(port),
                ..api::FilterChainMatch::default()
            }),
            filters: exchange
                .into_iter()
                .chain(black_hole_filters(Direction::Inbound, self.settings))
                .collect(),
            ..api::FilterChain::default()
        }
    }

    fn chains(&self, port: &Port) -> Vec<api::FilterChain> {
        let mode = self.guard.peers.at(port.target.unwrap_or(0));
        // Two kinds of TLS at one port could not be told apart.
        let cases = match &port.tls {
            Some(_) if mode == MtlsMode::Disable && port.protocol.is_http() => &NAMED_HTTP[..],
            Some(_) if mode == MtlsMode::Disable => &NAMED_TCP,
            _ => cases(port.protocol.listener(), mode),
        };
        cases.iter().map(|case| self.chain(port, case)).collect()
    }

    fn chain(&self, port: &Port, case: &Case) -> api::FilterChain {
        let (name, filters) = match case.serves {
            Serves::Http => (&port.chain.http, self.http_filters(port)),
            Serves::Tcp => (&port.chain.tcp, self.tcp_filters(port)),
        };
        api::FilterChain {
            name: name.clone(),
            filter_chain_match: Some(api::FilterChainMatch {
                application_protocols: self.protocols(case),
                transport_protocol: if case.tls == Tls::None { RAW_BUFFER } else { TLS }.to_owned(),
                destination_port: port.target.map(u32::from),
                ..api::FilterChainMatch::default()
            }),
            filters,
            transport_socket: match case.tls {
                Tls::None | Tls::Theirs => None,
                Tls::Ours => Some(self.mutual_tls(case)),
                Tls::Named => port.tls.as_ref().map(|tls| self.named_tls(tls, port.protocol)),
            },
            metadata: port.sidecar.as_ref().and_then(|id| metadata::of_config(Kind::Sidecar, id)),
            ..api::FilterChain::default()
        }
    }

    fn protocols(&self, case: &Case) -> Vec<String> {
        let oldest = case.alpn == PLAIN_HTTP && self.settings.options.features.http10;
        oldest.then_some("http/1.0").into_iter().chain(case.alpn.iter().copied()).map(str::to_owned).collect()
    }

    fn mutual_tls(&self, case: &Case) -> core::TransportSocket {
        let features = &self.settings.options.features;
        let exchanges = features.metadata_exchange && !features.disable_metadata_exchange_alpn;
        let alpn: &[&str] = if case.serves == Serves::Tcp && exchanges { &TCP_ALPN } else { &HTTP_ALPN };
        downstream_mutual(alpn, &self.traits.server_files, self.settings)
    }

    fn named_tls(&self, tls: &ServerTls, protocol: Protocol) -> core::TransportSocket {
        let (traits, settings) = (self.traits, self.settings);
        ServerSide { protocol, tls, traits, settings, transport: Transport::Tcp }.socket()
    }

    fn tcp_filters(&self, port: &Port) -> Vec<api::Filter> {
        let stat_prefix = port.chain.connections.clone().unwrap_or_else(|| port.cluster.to_string());
        let proxy =
            TcpProxy { stat_prefix, idle_timeout: self.traits.idle_timeout, ..TcpProxy::to(&port.cluster) };
        let guard = Some(self.guard.filters);
        let mut filters: Vec<api::Filter> = metadata_exchange(self.settings).into_iter().collect();
        filters.extend(leading(Direction::Inbound, port.number, guard, self.settings));
        let serve = L4Serve { proxy, protocol: port.protocol, cluster: port.cluster.clone(), dynamic: None };
        filters.extend(protocol_filters(&serve, self.settings));
        filters
    }

    fn http_filters(&self, port: &Port) -> Vec<api::Filter> {
        let manager = Manager {
            direction: Direction::Inbound,
            stat_prefix: stat_prefix(&port.chain.stat_prefix),
            routes: Routes::Here(Box::new(routes(port))),
            port: port.target.unwrap_or(0),
            protocol: port.protocol,
            idle_timeout: self.traits.idle_timeout,
            traits: self.http,
            security: Some(self.guard.filters),
            names: Vec::new(),
        };
        let extensions = extensions(&PHASES, port.target.unwrap_or(0), self.settings);
        let exchange = metadata_exchange(self.settings);
        exchange.into_iter().chain(extensions).chain([manager.build(self.settings)]).collect()
    }
}

/// What is left of a protocol once TLS has ended.
fn decrypted(protocol: Protocol) -> Protocol {
    match protocol {
        Protocol::Https => Protocol::Http,
        Protocol::Tls => Protocol::Tcp,
        other => other,
    }
}

fn routes(port: &Port) -> route::RouteConfiguration {
    let operation = format!("{}:{}/*", port.host, port.number);
    let host = route::VirtualHost {
        name: format!("inbound|http|{}", port.number),
        domains: vec!["*".to_owned()],
        routes: vec![inbound_route(&port.cluster, operation, port.protocol)],
        ..route::VirtualHost::default()
    };
    route::RouteConfiguration {
        name: port.cluster.to_string(),
        virtual_hosts: vec![host],
        validate_clusters: Some(false),
        ..route::RouteConfiguration::default()
    }
}
