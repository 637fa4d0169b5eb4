use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_mesh::{ClusterName, HostPlan};
use pilot_model::{
    Created, HashKey, Interception, ListenerProtocol, Protocol, Registry, Resolution, Service, ServicePort,
};

use super::merge::{Chain, Serve};
use crate::convert::{localhosts, wildcards};
use crate::network_filter::TcpProxy;
use crate::settings::{ListenerTraits, Settings};

/// Where an outbound listener stands.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    pub address: Name,
    pub port: u16,
}

impl Place {
    pub fn listener_name(&self) -> Name {
        Name::from(format!("{}_{}", self.address, self.port))
    }
}

/// The order in which services claim a place: the older first, then by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartKey {
    created: Created,
    name: Name,
    namespace: Name,
    host: Host,
    /// Which of the host's services, and which of its ports.
    at: (usize, usize),
}

/// A port whose connections are told apart by the listener itself.
#[derive(Clone, PartialEq, Debug)]
pub struct L4Part {
    pub(super) protocol: Protocol,
    pub(super) chains: Vec<Chain>,
}

/// What a port of a host contributes to the listener at a place.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    pub place: Place,
    pub key: PartKey,
    pub kind: PartKind,
}

#[derive(Clone, PartialEq, Debug)]
pub enum PartKind {
    /// All ports that speak HTTP at one place are served by one chain, so there is nothing more to say.
    Http,
    L4(Arc<L4Part>),
}

/// What the ports of a host contribute, for proxies with these traits.
pub fn outbound_parts(plan: &HostPlan, traits: &ListenerTraits, settings: Settings<'_>) -> Vec<Part> {
    let mut parts = Vec::new();
    for (i, service) in plan.services.iter().enumerate() {
        // What a port speaks is said by the first service that has it.
        let agreed = |port: &ServicePort| plan.port(port.number).is_some_and(|p| p.protocol == port.protocol);
        for (j, port) in service.ports.iter().enumerate().filter(|(_, port)| agreed(port)) {
            let key = PartKey {
                created: service.created,
                name: service.name.clone(),
                namespace: service.namespace.clone(),
                host: service.host.clone(),
                at: (i, j),
            };
            let maker = Maker { plan, service, port, traits, settings };
            parts.extend(maker.part(key));
        }
    }
    parts
}

struct Maker<'a> {
    plan: &'a HostPlan,
    service: &'a Service,
    port: &'a ServicePort,
    traits: &'a ListenerTraits,
    settings: Settings<'a>,
}

impl Maker<'_> {
    fn part(&self, key: PartKey) -> Option<Part> {
        if !self.can_bind() {
            return None;
        }
        match self.port.protocol.listener() {
            ListenerProtocol::None => None,
            ListenerProtocol::Http => {
                let address = self.local_address().unwrap_or_else(|| self.wildcard());
                Some(Part { place: self.place(address), key, kind: PartKind::Http })
            }
            ListenerProtocol::Tcp | ListenerProtocol::Auto => {
                let (address, cidrs) = self.l4_address()?;
                let place = self.place(address);
                let chains = self.chains(&place, &cidrs);
                let l4 = L4Part { protocol: self.port.protocol, chains };
                Some(Part { place, key, kind: PartKind::L4(Arc::new(l4)) })
            }
        }
    }

    fn place(&self, address: Name) -> Place {
        Place { address, port: self.port.number }
    }

    fn wildcard(&self) -> Name {
        Name::new(wildcards(self.traits.ip_mode)[0])
    }

    /// The address at which listeners stand when nothing is redirected to them.
    fn local_address(&self) -> Option<Name> {
        let local = self.traits.interception == Interception::None;
        local.then(|| Name::new(localhosts(self.traits.ip_mode)[0]))
    }

    /// Ports that the proxy has for itself, and ports that an ordinary user may not open.
    fn can_bind(&self) -> bool {
        let port = self.port.number;
        match self.traits.interception {
            Interception::None => !(self.traits.unprivileged && port < 1024),
            Interception::Redirect | Interception::Tproxy => {
                let mesh = self.settings.mesh;
                let taken = self.traits.own_ports.contains(&port)
                    || port == mesh.proxy_listen_port
                    || port == mesh.proxy_inbound_listen_port;
                !(taken && self.port.protocol.is_http())
            }
        }
    }

    /// Where to listen for connections to this service: at its own address if it has one. A range of addresses shares
    /// the listener of all addresses and is told apart there.
    fn l4_address(&self) -> Option<(Name, Vec<Name>)> {
        if let Some(local) = self.local_address() {
            return Some((local, Vec::new()));
        }
        match self.service.addresses_in(&self.traits.cluster).into_iter().next() {
            Some(range) if range.contains('/') => Some((self.wildcard(), vec![range])),
            Some(address) => Some((address, Vec::new())),
            // Clients of a headless service call its endpoints; a listener for all addresses would catch too much.
            None if self.is_headless() => None,
            None => Some((self.wildcard(), Vec::new())),
        }
    }

    fn is_headless(&self) -> bool {
        self.service.registry == Registry::Kubernetes && self.service.resolution == Resolution::Passthrough
    }

    fn chains(&self, place: &Place, cidrs: &[Name]) -> Vec<Chain> {
        let at_wildcard = place.address == self.wildcard();
        let a_range = self.service.address.as_ref().is_some_and(|address| address.contains('/'));
        let told_by_name = self.port.protocol.is_tls() && (at_wildcard || a_range);
        let server_names = if told_by_name { vec![self.service.host.name().clone()] } else { Vec::new() };
        let tcp =
            Chain { server_names, cidrs: cidrs.to_vec(), sniffed: false, serve: Serve::Tcp(self.proxy()) };
        if self.port.protocol != Protocol::Auto {
            return vec![tcp];
        }
        // Only this service is called at this address, so it has routes of its own.
        let routes = if at_wildcard {
            Name::from(self.port.number.to_string())
        } else {
            Name::from(format!("{}:{}", self.service.host, self.port.number))
        };
        let http =
            Chain { server_names: Vec::new(), cidrs: Vec::new(), sniffed: true, serve: Serve::Http(routes) };
        vec![tcp, http]
    }

    fn proxy(&self) -> TcpProxy {
        let cluster = ClusterName::outbound(self.port.number, "", &self.service.host);
        let policy = self.plan.traffic.as_ref().and_then(|traffic| traffic.rule.policy.as_ref());
        // The policy of the rule as a whole, not of the port: that is where listeners have always looked.
        let tcp = policy.and_then(|p| p.connection_pool.as_ref()).and_then(|pool| pool.tcp.as_ref());
        let hash = policy.and_then(|p| p.load_balancer.as_ref()?.consistent_hash.as_ref());
        TcpProxy {
            idle_timeout: tcp.and_then(|tcp| tcp.idle_timeout).or(self.traits.idle_timeout),
            max_duration: tcp.and_then(|tcp| tcp.max_connection_duration),
            hash_source_ip: hash.is_some_and(|hash| hash.key == HashKey::SourceIp(true)),
            ..TcpProxy::to(&cluster)
        }
    }
}
