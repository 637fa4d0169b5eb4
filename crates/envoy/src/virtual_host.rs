//! Virtual hosts: the names by which a host is called, and its routes.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::route::v3 as api;
use pilot_mesh::{ClusterName, HostPlan};
use pilot_model::{Destination, Registry, Resolution, Service, ServicePort};
use pilot_xds::{Chunk, Encoded};
use prost::Message as _;

use crate::route::{self, Context};
use crate::route_table::sniffed_table;
use crate::settings::{RouteTraits, Settings};

/// The field of a `RouteConfiguration` that holds its virtual hosts.
pub(crate) const VIRTUAL_HOSTS: u32 = 2;
/// Hosts that only rules know are served where HTTP is served by default.
const HTTP_PORT: u16 = 80;

/// A host at one port.
#[derive(Clone, PartialEq, Debug)]
pub struct VirtualHost {
    pub port: u16,
    /// `host:port`
    pub name: Name,
    /// Its entry in the routes of the port.
    pub entry: Chunk,
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

/// All entries of a host in tables of routes. `client` is the namespace of the asking proxies, if they share one.
pub fn virtual_hosts(
    plan: &HostPlan,
    client: Option<&Name>,
    traits: &RouteTraits,
    around: &impl Neighbours,
    settings: Settings<'_>,
) -> Vec<VirtualHost> {
    let maker = Maker { plan, client, traits, around, settings };
    let declared = plan.ports().into_iter().filter(|(_, port)| port.protocol.is_http_or_auto());
    let of_service = declared.map(|(service, port)| maker.of_service(service, port));
    let of_rules = maker.ports_of_rules().into_iter().filter_map(|port| maker.of_rule(port));
    of_service.chain(of_rules).collect()
}

struct Maker<'a, N> {
    plan: &'a HostPlan,
    client: Option<&'a Name>,
    traits: &'a RouteTraits,
    around: &'a N,
    settings: Settings<'a>,
}

impl<N: Neighbours> Maker<'_, N> {
    fn of_service(&self, service: &Service, port: &ServicePort) -> VirtualHost {
        let routes = self.routes(port.number).unwrap_or_else(|| vec![self.default_route(port.number)]);
        let own = (port.protocol == pilot_model::Protocol::Auto && self.has_own_listener())
            .then(|| Arc::new(sniffed_table(&self.build(port.number, vec!["*".to_owned()], routes.clone()))));
        let message = self.build(port.number, self.domains(service, port.number), routes);
        finish(message, port.number, own)
    }

    /// The entry of a host that has rules but no service at this port.
    fn of_rule(&self, port: u16) -> Option<VirtualHost> {
        let routes = self.routes(port)?;
        let message = self.build(port, vec![domain(self.plan.host.as_str())], routes);
        Some(finish(message, port, None))
    }

    fn build(&self, port: u16, domains: Vec<String>, routes: Vec<api::Route>) -> api::VirtualHost {
        api::VirtualHost {
            name: format!("{}:{port}", domain(self.plan.host.as_str())),
            domains,
            routes,
            include_request_attempt_count: self.traits.attempt_count,
            ..api::VirtualHost::default()
        }
    }

    /// The routes of the first rule that has any for these clients at this port.
    fn routes(&self, port: u16) -> Option<Vec<api::Route>> {
        let traffic = |to: &Destination| self.around.plan(&to.host).and_then(|plan| plan.traffic.as_ref());
        let context = Context {
            port,
            gateway: route::MESH,
            tls: false,
            client: self.client,
            traits: self.traits,
            settings: self.settings,
            traffic: &traffic,
            only_port: &|_| None,
        };
        self.plan.routes.iter().map(|rule| route::of_rule(rule, &context)).find(|routes| !routes.is_empty())
    }

    fn default_route(&self, port: u16) -> api::Route {
        let host = &self.plan.host;
        let hash = self.plan.traffic.as_ref().and_then(|traffic| route::hash_of_service(traffic, port));
        let cluster = ClusterName::outbound(port, "", host);
        let operation = format!("{host}:{port}/*");
        route::to_cluster(&cluster, operation, hash.and_then(route::hash_policy), self.settings)
    }

    /// Is there a listener that serves only this host?
    fn has_own_listener(&self) -> bool {
        let addresses = || self.plan.services.iter().flat_map(|s| s.addresses_in(&self.traits.cluster));
        self.traits.local || addresses().any(|address| !address.contains('/'))
    }

    /// Ports at which the host is served only because rules speak of it: where other hosts of the same rule are services,
    /// and the port of HTTP.
    fn ports_of_rules(&self) -> BTreeSet<u16> {
        let siblings = self.plan.routes.iter().flat_map(|rule| &rule.spec.hosts);
        let ports = siblings.filter_map(|host| self.around.plan(host)).flat_map(HostPlan::ports);
        let ports = ports.filter(|(_, port)| port.protocol.is_http_or_auto()).map(|(_, port)| port.number);
        let mut out: BTreeSet<u16> = ports.chain([HTTP_PORT]).collect();
        let named = |rule: &Arc<pilot_mesh::RouteRule>| rule.spec.hosts.contains(&self.plan.host);
        if !self.plan.routes.iter().any(named) {
            // A pattern routes services; it does not make up hosts.
            out.clear();
        }
        if self.plan.host.is_wildcard() {
            out.retain(|port| !self.around.covers(&self.plan.host, *port));
        }
        out.retain(|port| self.plan.port(*port).is_none());
        out
    }

    /// Every name by which clients may call the service.
    fn domains(&self, service: &Service, port: u16) -> Vec<String> {
        let host = service.host.as_str();
        let mut short = Vec::new();
        if self.settings.options.features.absolute_fqdn && host.parse::<IpAddr>().is_err() {
            short.push(format!("{host}."));
        }
        short.extend(self.short_names(host));
        short.retain(|name| !self.is_another_host(name, port));
        let mut out: Vec<String> = std::iter::once(domain(host)).chain(short).collect();
        // Endpoints of a headless service have names of their own below that of the service.
        if service.registry == Registry::Kubernetes && service.resolution == Resolution::Passthrough {
            let below: Vec<String> = out.iter().map(|name| format!("*.{name}")).collect();
            out.extend(below);
        }
        let addresses = self.plan.services.iter().flat_map(|s| s.addresses_in(&self.traits.cluster));
        for address in addresses.filter(|address| self.is_first_at(address, port)) {
            let name = domain(&address);
            if !out.contains(&name) {
                out.push(name);
            }
        }
        out
    }

    /// The beginnings of a name that are enough in the clients' domain.
    fn short_names(&self, host: &str) -> Vec<String> {
        let suffix = self.traits.dns_suffix.as_str();
        let whole = if suffix.is_empty() { None } else { host.strip_suffix(suffix) };
        // `name.namespace`
        let Some((name, namespace)) = whole.and_then(|whole| whole.split_once('.')) else {
            return Vec::new();
        };
        let both = format!("{name}.{namespace}");
        if self.client.is_some_and(|client| client == namespace) {
            return vec![name.to_owned(), format!("{both}.svc"), both];
        }
        vec![both.clone(), format!("{both}.svc")]
    }

    fn is_another_host(&self, name: &str, port: u16) -> bool {
        let other = Host::new(name);
        let Some(plan) = self.around.plan(&other).filter(|_| other != self.plan.host) else { return false };
        let by_rule = || {
            let around = Maker { plan, ..*self };
            around.ports_of_rules().contains(&port)
        };
        plan.serves_http(port) || by_rule()
    }

    /// Of several hosts with one address the first by name is called by it.
    fn is_first_at(&self, address: &Name, port: u16) -> bool {
        let hosts = self.around.hosts_at(address);
        let earlier = hosts.iter().take_while(|host| **host < self.plan.host);
        let served = |host: &Host| self.around.plan(host).is_some_and(|plan| plan.serves_http(port));
        !earlier.into_iter().any(served)
    }
}

/// A name as it stands in a `Host` header.
pub(crate) fn domain(name: &str) -> String {
    match name.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => name.to_owned(),
    }
}

fn finish(message: api::VirtualHost, port: u16, own: Option<Arc<Encoded>>) -> VirtualHost {
    let entry = Chunk::new(VIRTUAL_HOSTS, &message.encode_to_vec());
    VirtualHost { port, name: Name::from(message.name), entry, own }
}
