use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::listener::v3 as api;
use pilot_mesh::{HostPlan, MergedGateway, MergedPort, MergedServer, RouteRule, l4_applies, overlaps};
use pilot_model::{Protocol, ServerTlsMode};
use pilot_xds::{Children, Encoded, TypeUrl};
use prost::Message as _;

use super::l4::L4Route;
use crate::access_log;
use crate::convert::{duration, socket_address, stat_prefix, wildcards};
use crate::http_connection_manager::{Manager, Routes};
use crate::http_filter::Direction;
use crate::listener::{
    Place, direction, encode, exact_balance, per_socket_event, protocol_filters, proxy_protocol,
    tls_inspector,
};
use crate::network_filter::{PHASES, extensions, leading, metadata_exchange};
use crate::security::SecurityFilters;
use crate::server_tls::{ServerSide, Transport};
use crate::settings::{HttpTraits, ListenerTraits, Settings};

/// Where a gateway's connections may go.
pub trait GatewayRules {
    /// VirtualServices that speak of connections to this Gateway and that these proxies see, in the order in which they
    /// count.
    fn rules(&self, gateway: &Name) -> Vec<Arc<RouteRule>>;
    /// Chains for all services that are reached by their clusters' names.
    fn auto_chains(&self) -> Children;
    /// What a host is to these proxies.
    fn plan(&self, host: &Host) -> Option<&HostPlan>;
}

/// A listener, and what had to be left out so that Envoy takes it.
#[derive(Clone, PartialEq, Debug)]
pub struct GatewayListener {
    /// Nothing if nobody says where its connections go.
    pub bytes: Option<Arc<Encoded>>,
    pub left_out: Vec<LeftOutChain>,
}

/// Connections that cannot be told from those of another server or rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeftOutChain {
    /// `namespace/name` of the Gateway.
    pub gateway: Name,
    pub why: String,
}

/// Where a listener of a gateway stands.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GatewayPlace {
    transport: Transport,
    place: Place,
}

impl GatewayPlace {
    pub fn listener_name(&self) -> Name {
        let name = self.place.listener_name();
        match self.transport {
            Transport::Tcp => name,
            Transport::Quic => Name::from(format!("udp_{name}")),
        }
    }

    fn address(&self, address: &str) -> core::Address {
        let mut out = socket_address(address, self.place.port);
        if let (Transport::Quic, Some(core::address::Address::SocketAddress(socket))) =
            (self.transport, &mut out.address)
        {
            socket.protocol = core::socket_address::Protocol::Udp as i32;
        }
        out
    }
}

/// The places at which a workload listens for its Gateways. An ordinary user may not open low ports.
pub fn gateway_places(merged: &MergedGateway, traits: &ListenerTraits) -> BTreeSet<GatewayPlace> {
    let may_open = |port: &&MergedPort| !(traits.unprivileged && port.port < 1024);
    let mut places = BTreeSet::new();
    for port in merged.ports.iter().filter(may_open) {
        places.insert(GatewayPlace { transport: Transport::Tcp, place: place(port, traits) });
        if port.servers.iter().any(|server| server.http3) {
            places.insert(GatewayPlace { transport: Transport::Quic, place: place(port, traits) });
        }
    }
    places
}

fn place(port: &MergedPort, traits: &ListenerTraits) -> Place {
    let address = match port.bind.as_str() {
        "" => Name::new(wildcards(traits.ip_mode)[0]),
        _ => port.bind.clone(),
    };
    Place { address, port: port.port }
}

/// The listener at a place of a gateway.
pub fn gateway_listener(
    at: &GatewayPlace,
    merged: &MergedGateway,
    around: &impl GatewayRules,
    (traits, http, security): (&ListenerTraits, &HttpTraits, &SecurityFilters),
    settings: Settings<'_>,
) -> GatewayListener {
    let settings = settings.with_chain(&traits.chain);
    let ports: Vec<&MergedPort> =
        merged.ports.iter().filter(|port| place(port, traits) == at.place).collect();
    let name = at.listener_name().to_string();
    let mut builder = Builder {
        around,
        traits,
        http,
        security,
        settings,
        port: at.place.port,
        transport: at.transport,
        name: &name,
        seen: Seen::default(),
        chains: Vec::new(),
        by_name: false,
        left_out: Vec::new(),
    };
    ports.iter().for_each(|port| builder.add_port(port));
    let tcp = at.transport == Transport::Tcp;
    let auto = tcp && ports.iter().flat_map(|port| &port.servers).any(|s| s.server.is_auto_passthrough());
    let extra = if ports.iter().all(|port| port.bind.is_empty()) { builder.more_addresses() } else { &[] };
    let listener = api::Listener {
        name: name.clone(),
        address: Some(at.address(&at.place.address)),
        additional_addresses: extra.iter().map(|address| also_at(at.address(address))).collect(),
        udp_listener_config: (!tcp).then(udp),
        traffic_direction: direction(Direction::Gateway),
        listener_filters: builder.listener_filters(),
        max_connections_to_accept_per_socket_event: per_socket_event(settings),
        connection_balance_config: (tcp && traits.exact_balance).then(exact_balance),
        access_log: access_log::of_listener(settings),
        per_connection_buffer_limit_bytes: http
            .connections
            .as_ref()
            .and_then(|connections| connections.listener_buffer_limit),
        filter_chains: builder.chains,
        ..api::Listener::default()
    };
    let bytes = if auto {
        let children = around.auto_chains();
        (children.iter().next().is_some() || !listener.filter_chains.is_empty()).then(|| {
            let name = at.listener_name();
            Encoded::assemble(TypeUrl::Listener, name, &listener.encode_to_vec(), children)
        })
    } else {
        (!listener.filter_chains.is_empty()).then(|| encode(&listener))
    };
    GatewayListener { bytes: bytes.map(Arc::new), left_out: builder.left_out }
}

fn also_at(address: core::Address) -> api::AdditionalAddress {
    api::AdditionalAddress { address: Some(address), ..api::AdditionalAddress::default() }
}

fn udp() -> api::UdpListenerConfig {
    api::UdpListenerConfig {
        quic_options: Some(api::QuicProtocolOptions::default()),
        downstream_socket_config: Some(core::UdpSocketConfig::default()),
        ..api::UdpListenerConfig::default()
    }
}

struct Builder<'a, R> {
    around: &'a R,
    traits: &'a ListenerTraits,
    http: &'a HttpTraits,
    security: &'a SecurityFilters,
    settings: Settings<'a>,
    port: u16,
    transport: Transport,
    name: &'a str,
    seen: Seen,
    chains: Vec<api::FilterChain>,
    /// Does any chain depend on the server name that clients ask for?
    by_name: bool,
    left_out: Vec<LeftOutChain>,
}

impl<R: GatewayRules> Builder<'_, R> {
    /// The same place in the other address family.
    fn more_addresses(&self) -> &'static [&'static str] {
        let all = wildcards(self.traits.ip_mode);
        if self.settings.options.features.dual_stack { &all[1..] } else { &[] }
    }

    fn listener_filters(&self) -> Vec<api::ListenerFilter> {
        if self.transport == Transport::Quic {
            return Vec::new();
        }
        let behind_proxy = self.http.topology.proxy_protocol.then(proxy_protocol);
        behind_proxy.into_iter().chain(self.by_name.then(tls_inspector)).collect()
    }

    fn add_port(&mut self, port: &MergedPort) {
        if self.transport == Transport::Quic {
            port.servers.iter().filter(|server| server.http3).for_each(|server| self.add_https(server));
            return;
        }
        if port.protocol.is_http() {
            let Some(first) = port.servers.first() else { return };
            let filters = self.requests(self.manager(&port.routes, port.protocol, ""));
            self.add(&[], api::FilterChain { filters, ..api::FilterChain::default() }, first);
            return;
        }
        for server in &port.servers {
            if server.server.ends_https() {
                self.add_https(server);
            } else if server.server.passes_tls() {
                self.add_passthrough(server);
            } else {
                self.add_tcp(server);
            }
        }
    }

    fn add_https(&mut self, server: &MergedServer) {
        let filters =
            self.requests(self.manager(&server.routes, server.server.protocol, &server.server.name));
        let chain = api::FilterChain { filters, ..self.encrypted(server) };
        self.add(&server.server_names(), chain, server);
    }

    /// Opaque connections, decrypted or never encrypted, go where the first rule that has a say sends them.
    fn add_tcp(&mut self, server: &MergedServer) {
        let proxy = self.rules(server).iter().find_map(|rule| {
            let mut routes = rule.spec.tcp.iter().filter(|route| !route.route.is_empty());
            let route = routes.find(|route| {
                route.matches.is_empty() || route.matches.iter().any(|wanted| l4_applies(wanted, server))
            })?;
            self.l4_route(rule, &route.route, server)
        });
        let Some(mut filters) = proxy else { return };
        let in_mesh = server.server.tls.as_ref().is_some_and(|tls| tls.mode == ServerTlsMode::IstioMutual);
        if in_mesh {
            filters.splice(0..0, metadata_exchange(self.settings));
        }
        let names = if server.server.tls.is_some() { server.server_names() } else { Vec::new() };
        let chain = api::FilterChain { filters, ..self.encrypted(server) };
        self.add(&names, chain, server);
    }

    /// Encrypted connections that are passed on, each by the server name that rules speak of.
    fn add_passthrough(&mut self, server: &MergedServer) {
        if server.server.is_auto_passthrough() {
            self.by_name = true;
            return;
        }
        for rule in self.rules(server) {
            for route in &rule.spec.tls {
                for wanted in route.matches.iter().filter(|wanted| l4_applies(&wanted.base, server)) {
                    let Some(filters) = self.l4_route(&rule, &route.route, server) else { continue };
                    let mut names = wanted.sni_hosts.clone();
                    names.sort();
                    self.add(&names, api::FilterChain { filters, ..api::FilterChain::default() }, server);
                }
            }
        }
    }

    fn rules(&self, server: &MergedServer) -> Vec<Arc<RouteRule>> {
        let mut rules = self.around.rules(&server.gateway);
        rules.retain(|rule| overlaps(server, rule));
        rules
    }

    fn l4_route(
        &self,
        rule: &RouteRule,
        route: &[pilot_model::L4Destination],
        server: &MergedServer,
    ) -> Option<Vec<api::Filter>> {
        let target = L4Route {
            rule: &rule.id,
            route,
            port: server.server.port,
            port_name: &server.server.port_name,
            protocol: server.server.protocol,
            idle_timeout: self.traits.idle_timeout,
            settings: self.settings,
        };
        let serve = target.serve(&|host: &Host| self.around.plan(host))?;
        let port = server.server.port;
        let leading = leading(Direction::Gateway, port, Some(self.security), self.settings);
        Some(leading.into_iter().chain(protocol_filters(&serve, self.settings)).collect())
    }

    /// Code that looks at connections sees those with requests, too.
    fn requests(&self, manager: api::Filter) -> Vec<api::Filter> {
        if self.transport == Transport::Quic {
            return vec![manager];
        }
        extensions(&PHASES, self.port, self.settings).into_iter().chain([manager]).collect()
    }

    fn manager(&self, routes: &Name, protocol: Protocol, stats: &str) -> api::Filter {
        let stat_prefix =
            if stats.is_empty() { stat_prefix(&format!("outbound_{}", self.name)) } else { stats.to_owned() };
        let manager = Manager {
            direction: Direction::Gateway,
            stat_prefix,
            routes: Routes::Named(routes.to_string()),
            port: self.port,
            protocol,
            idle_timeout: self.traits.idle_timeout,
            traits: self.http,
            security: Some(self.security),
            names: Vec::new(),
        };
        match self.transport {
            Transport::Tcp => manager.build(self.settings),
            Transport::Quic => manager.build_http3(self.settings),
        }
    }

    fn encrypted(&self, server: &MergedServer) -> api::FilterChain {
        let socket = server.server.tls.as_ref().map(|tls| {
            let side = ServerSide {
                protocol: server.server.protocol,
                tls,
                traits: self.traits,
                settings: self.settings,
                transport: self.transport,
            };
            side.socket()
        });
        api::FilterChain { transport_socket: socket, ..api::FilterChain::default() }
    }

    /// Adds a chain for connections with one of these server names, for all if there are none or any will do.
    fn add(&mut self, names: &[Name], chain: api::FilterChain, server: &MergedServer) {
        self.by_name |= !names.is_empty();
        let all = names.is_empty() || names.iter().any(|name| name == "*");
        let names = if all { &[] } else { names };
        if let Some(taken) = self.seen.claim(names) {
            let why = format!("{} already serves {taken} for another server or rule", self.name);
            self.left_out.push(LeftOutChain { gateway: server.gateway.clone(), why });
            return;
        }
        let timeout = self.settings.options.features.transport_connect_timeout;
        self.chains.push(api::FilterChain {
            filter_chain_match: (!all).then(|| api::FilterChainMatch {
                server_names: names.iter().map(Name::to_string).collect(),
                ..api::FilterChainMatch::default()
            }),
            transport_socket_connect_timeout: (!timeout.is_zero()).then(|| duration(timeout)),
            ..chain
        });
    }
}

/// Which connections have a chain. Envoy refuses a listener with two chains for the same.
#[derive(Default)]
struct Seen {
    names: BTreeSet<Name>,
    all: bool,
}

impl Seen {
    /// Something that is taken already, if so.
    fn claim(&mut self, names: &[Name]) -> Option<String> {
        if names.is_empty() {
            return std::mem::replace(&mut self.all, true).then(|| "everything else".to_owned());
        }
        if let Some(taken) = names.iter().find(|name| self.names.contains(*name)) {
            return Some(taken.to_string());
        }
        self.names.extend(names.iter().cloned());
        None
    }
}
