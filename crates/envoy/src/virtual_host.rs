//! Virtual hosts: the names by which a host is called, and its routes.

mod domains;

use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::route::v3 as api;
use pilot_mesh::{ClusterName, HostPlan, MESH, RouteRule, View};
use pilot_model::{Destination, EgressListener, Protocol, Resolution, Service, ServicePort};
use pilot_xds::{Chunk, Encoded};
use prost::Message as _;

use crate::http_filter::stateful_session;
use crate::route::{self, Context};
use crate::route_table::{RouteTable, sniffed_table};
use crate::settings::{RouteTraits, Settings};
use domains::{Naming, at_port};
pub(crate) use domains::{domain, short_names};

/// The field of a `RouteConfiguration` that holds its virtual hosts.
pub(crate) const VIRTUAL_HOSTS: u32 = 2;
/// Hosts that only rules know are served where HTTP is served by default.
const HTTP_PORT: u16 = 80;

/// A host at one port.
#[derive(Clone, PartialEq, Debug)]
pub struct VirtualHost {
    pub table: RouteTable,
    /// `host:port`
    pub name: Name,
    /// Its entry in the table, unless the table belongs to another listener.
    pub entry: Option<Chunk>,
    /// Routes of its own, for a listener that serves no other host.
    pub own: Option<Arc<Encoded>>,
}

/// What a host must know of others to share a table with them.
pub trait Neighbours {
    /// What another host is to the same proxies.
    fn plan(&self, host: &Host) -> Option<&HostPlan>;
    /// Hosts that are called by an address.
    fn hosts_at(&self, address: &Name) -> Vec<Host>;
    /// Does the pattern cover any service with this port?
    fn covers(&self, pattern: &Host, port: u16) -> bool;
}

/// All entries of a host in tables of routes. `client` is the namespace of the asking proxies, if they share one, and
/// `listeners` are the egress listeners they have.
pub fn virtual_hosts(
    plan: &HostPlan,
    (client, listeners): (Option<&Name>, &[EgressListener]),
    traits: &RouteTraits,
    around: &impl Neighbours,
    settings: Settings<'_>,
) -> Vec<VirtualHost> {
    let mut out = Vec::new();
    for view in &plan.views {
        let Some(listener) = listeners.get(view.listener) else { continue };
        let maker = Maker { plan, view, listener, client, traits, around, settings };
        match &listener.port {
            None => {
                let before = listeners[..view.listener].iter().filter_map(|other| other.port.as_ref());
                let claimed: BTreeSet<u16> = before.map(|port| port.number).collect();
                out.extend(maker.at_ports(|port| !claimed.contains(&port)));
                out.extend(maker.beside_tables(&claimed));
                if traits.http_proxy {
                    out.extend(maker.at_any_port(&RouteTable::forward_proxy()));
                }
            }
            Some(port) if port.number == 0 => {
                out.extend(maker.at_any_port(&RouteTable::Named(listener.bind.clone())));
            }
            Some(port) if port.protocol == Protocol::HttpProxy => {
                out.extend(maker.at_any_port(&RouteTable::Port(port.number)));
            }
            // Whatever it speaks, the table of its port is its own.
            Some(port) => out.extend(maker.at_ports(|number| number == port.number)),
        }
    }
    out
}

struct Maker<'a, N> {
    plan: &'a HostPlan,
    view: &'a View,
    listener: &'a EgressListener,
    client: Option<&'a Name>,
    traits: &'a RouteTraits,
    around: &'a N,
    settings: Settings<'a>,
}

impl<N: Neighbours> Maker<'_, N> {
    /// The entries of a host in the tables of the ports it is called at.
    fn at_ports(&self, wanted: impl Fn(u16) -> bool) -> Vec<VirtualHost> {
        let declared = self.http_ports().filter(|(_, port)| wanted(port.number));
        let of_service = declared.filter_map(|(service, port)| self.of_service(service, port));
        let of_rules = self.ports_of_rules().into_iter().filter(|port| wanted(*port));
        let outdone = self.outdone_ports().filter(|port| wanted(*port));
        of_service
            .chain(outdone.map(|port| self.outdone(port)))
            .chain(of_rules.filter_map(|port| self.of_rule(port)))
            .collect()
    }

    /// Ports that have a listener for HTTP because one service says so, and no routes because another does not.
    fn outdone_ports(&self) -> impl Iterator<Item = u16> {
        let ports = self.view.services.iter().flat_map(|service| &service.ports);
        let http = ports.filter(|port| port.protocol.is_http_or_auto()).map(|port| port.number);
        http.filter(|port| !self.view.serves_http(*port)).collect::<BTreeSet<_>>().into_iter()
    }

    /// No entry in the table that it has with others; but a listener of its own finds out what is spoken there.
    fn outdone(&self, port: u16) -> VirtualHost {
        let service = self.view.services.iter().find(|service| service.port(port).is_some());
        let own = self.is_sniffed(port).then(|| {
            let routes = self.routes(self.view.routes.iter(), port);
            let routes = routes.unwrap_or_else(|| vec![self.default_route(port)]);
            self.own_table(port, routes, service.map(|service| &**service))
        });
        let name = Name::from(at_port(self.plan.host.as_str(), port));
        VirtualHost { table: RouteTable::Port(port), name, entry: None, own }
    }

    /// Routes of its own for a host whose ports have tables that belong to other listeners, who do not know it.
    fn beside_tables(&self, claimed: &BTreeSet<u16>) -> Vec<VirtualHost> {
        let elsewhere = |port: u16| {
            let mut others = self.plan.views.iter().filter(|view| view.listener != self.view.listener);
            others.any(|view| view.port(port).is_some())
        };
        let ports = self.http_ports().filter(|(_, port)| claimed.contains(&port.number));
        let alone = ports.filter(|(_, port)| !elsewhere(port.number));
        let hosts = alone.filter_map(|(service, port)| self.of_service(service, port));
        let hosts = hosts.map(|host| VirtualHost { entry: None, ..host });
        hosts.filter(|host| host.own.is_some()).collect()
    }

    /// The entries in a table that serves all ports: what is called is told by the port in the name. Without one it is
    /// the port of HTTP, if that is the host's first.
    fn at_any_port(&self, table: &RouteTable) -> Vec<VirtualHost> {
        let mut out = Vec::new();
        let mut seen = BTreeSet::new();
        for (service, port) in self.http_ports() {
            let mut domains = self.domains(service, port.number, Naming::WithPort);
            domains.retain(|name| seen.insert(name.clone()));
            domains.retain(|name| port.number == HTTP_PORT || name.contains(':'));
            if !domains.is_empty() {
                let rules = self.view.routes.iter();
                let default = || (!service.is_alias()).then(|| vec![self.default_route(port.number)]);
                let Some(routes) = self.routes(rules, 0).or_else(default) else { continue };
                out.push(finish(
                    table.clone(),
                    self.build(port.number, domains, routes, Some(service)),
                    None,
                ));
            }
        }
        let beside = |port: &u16| *port == HTTP_PORT && self.siblings_serve(HTTP_PORT);
        if self.ports_of_rules().iter().any(beside)
            && let Some(routes) = self.routes(self.naming_rules(), 0)
        {
            let message = self.build(HTTP_PORT, vec![domain(self.plan.host.as_str())], routes, None);
            out.push(finish(table.clone(), message, None));
        }
        out
    }

    fn http_ports(&self) -> impl Iterator<Item = (&Arc<Service>, &ServicePort)> {
        self.view.ports().into_iter().filter(|(_, port)| port.protocol.is_http_or_auto())
    }

    /// What is only another name is called as part of the other host, unless rules speak of it.
    fn of_service(&self, service: &Service, port: &ServicePort) -> Option<VirtualHost> {
        let routes = self.routes(self.view.routes.iter(), port.number);
        let default = || (!service.is_alias()).then(|| vec![self.default_route(port.number)]);
        let routes = routes.or_else(default)?;
        let own =
            self.is_sniffed(port.number).then(|| self.own_table(port.number, routes.clone(), Some(service)));
        let domains = self.domains(service, port.number, self.naming());
        let message = self.build(port.number, domains, routes, Some(service));
        Some(finish(RouteTable::Port(port.number), message, own))
    }

    /// The entry of a host that has rules but no service at this port.
    fn of_rule(&self, port: u16) -> Option<VirtualHost> {
        let here = self.naming_rules().filter(|rule| port == HTTP_PORT || self.serves(rule, port));
        let routes = self.routes(here, port)?;
        let host = self.plan.host.as_str();
        let with_port = (self.naming() == Naming::WithPort).then(|| at_port(host, port));
        let domains = std::iter::once(domain(host)).chain(with_port).collect();
        let message = self.build(port, domains, routes, None);
        Some(finish(RouteTable::Port(port), message, None))
    }

    /// Libraries cannot be told to pass over the port in a name.
    fn naming(&self) -> Naming {
        if self.traits.proxyless { Naming::WithPort } else { Naming::Plain }
    }

    fn build(
        &self,
        port: u16,
        domains: Vec<String>,
        routes: Vec<api::Route>,
        service: Option<&Service>,
    ) -> api::VirtualHost {
        api::VirtualHost {
            name: at_port(self.plan.host.as_str(), port),
            domains,
            routes,
            include_request_attempt_count: self.traits.attempt_count,
            typed_per_filter_config: stateful_session::of_host(service, self.settings),
            ..api::VirtualHost::default()
        }
    }

    /// The routes of the first rule that has any for these clients at this port.
    fn routes<'r>(
        &self,
        mut rules: impl Iterator<Item = &'r Arc<RouteRule>>,
        port: u16,
    ) -> Option<Vec<api::Route>> {
        let traffic = |to: &Destination| self.around.plan(&to.host).and_then(|plan| plan.traffic.as_deref());
        // Services that lack the port that was called do not count where one was.
        let only_port = |to: &Destination| match &self.view_of(&to.host)?.ports()[..] {
            [(_, only)] if port == 0 => Some(only.number),
            _ => None,
        };
        let service = |to: &Destination| {
            let view = self.view_of(&to.host)?;
            let ports = view.ports();
            let (service, _) = ports.iter().find(|(_, has)| port == 0 || has.number == port)?;
            Some(&***service)
        };
        let context = Context {
            port,
            gateway: MESH,
            tls: false,
            client: self.client,
            traits: self.traits,
            settings: self.settings,
            traffic: &traffic,
            service: &service,
            only_port: &only_port,
            real_host: &|host| self.around.plan(host).map_or(host, HostPlan::real_host).clone(),
        };
        rules.find_map(|rule| Some(route::of_rule(rule, &context)).filter(|routes| !routes.is_empty()))
    }

    fn default_route(&self, port: u16) -> api::Route {
        let host = &self.plan.host;
        let hash = self.plan.traffic.as_ref().and_then(|traffic| route::hash_of_service(traffic, port));
        let cluster = ClusterName::outbound(port, "", host);
        let operation = format!("{host}:{port}/*");
        route::to_cluster(&cluster, operation, hash.and_then(route::hash_policy), self.settings)
    }

    fn own_table(&self, port: u16, routes: Vec<api::Route>, service: Option<&Service>) -> Arc<Encoded> {
        Arc::new(sniffed_table(&self.build(port, vec!["*".to_owned()], routes, service)))
    }

    /// Is there a listener of its own that finds out what is spoken? Each service has one, whatever another says of the port.
    fn is_sniffed(&self, port: u16) -> bool {
        let is_auto = |port: &ServicePort| port.protocol == Protocol::Auto;
        self.has_own_listener() && self.view.services.iter().any(|s| s.port(port).is_some_and(is_auto))
    }

    /// Is there a listener that serves only this host?
    fn has_own_listener(&self) -> bool {
        let at_own_address = |service: &Arc<Service>| {
            let addresses = service.addresses_from(&self.traits.caller);
            addresses.iter().any(|address| !address.contains('/'))
                || service.resolution == Resolution::Passthrough
        };
        self.traits.local
            || !self.listener.bind.is_empty()
            || self.listener.capture == pilot_model::CaptureMode::None
            || self.view.services.iter().any(at_own_address)
    }

    /// Rules that speak of this very host. A pattern routes services; it does not make up hosts.
    fn naming_rules(&self) -> impl Iterator<Item = &Arc<RouteRule>> {
        self.view.routes.iter().filter(|rule| rule.spec.hosts.contains(&self.plan.host))
    }

    /// Do other hosts of a rule serve HTTP at this port?
    fn serves(&self, rule: &RouteRule, port: u16) -> bool {
        let views = rule.spec.hosts.iter().filter_map(|host| self.view_of(host));
        views.into_iter().any(|view| view.serves_http(port))
    }

    fn siblings_serve(&self, port: u16) -> bool {
        self.naming_rules().any(|rule| self.serves(rule, port))
    }

    fn view_of(&self, host: &Host) -> Option<&View> {
        self.around.plan(host)?.view(self.view.listener)
    }

    /// Ports at which the host is served only because rules speak of it: where other hosts of the same rule are services,
    /// and the port of HTTP.
    fn ports_of_rules(&self) -> BTreeSet<u16> {
        if self.naming_rules().next().is_none() {
            return BTreeSet::new();
        }
        let siblings = self.naming_rules().flat_map(|rule| &rule.spec.hosts);
        let ports = siblings.filter_map(|host| self.view_of(host)).flat_map(View::ports);
        let ports = ports.filter(|(_, port)| port.protocol.is_http_or_auto()).map(|(_, port)| port.number);
        let mut out: BTreeSet<u16> = ports.chain([HTTP_PORT]).collect();
        if self.plan.host.is_wildcard() {
            // Where a service lies within the pattern, or the pattern within a service, the rule is for that.
            let host = &self.plan.host;
            let within = |port: &u16| {
                let mut wider = host.covering_patterns().filter(|pattern| pattern != host);
                wider.any(|pattern| self.view_of(&pattern).is_some_and(|view| view.port(*port).is_some()))
            };
            out.retain(|port| !self.around.covers(host, *port) && !within(port));
        }
        out.retain(|port| self.view.port(*port).is_none());
        out
    }
}

fn finish(table: RouteTable, message: api::VirtualHost, own: Option<Arc<Encoded>>) -> VirtualHost {
    let entry = Some(Chunk::new(VIRTUAL_HOSTS, &message.encode_to_vec()));
    VirtualHost { table, name: Name::from(message.name), entry, own }
}
