use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_mesh::{HostPlan, View};
use pilot_model::{
    CaptureMode, Created, EgressListener, Interception, IpMode, ListenerProtocol, Protocol, Registry,
    Resolution, Service, ServicePort,
};

use super::l4;
use super::merge::{Chain, Serve};
use crate::convert::{localhosts, wildcards};
use crate::dynamic_forward_proxy::dynamic_host;
use crate::settings::{ListenerTraits, Settings};

/// Where an outbound listener stands.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    pub address: Name,
    /// Zero for a socket file.
    pub port: u16,
}

impl Place {
    pub fn listener_name(&self) -> Name {
        Name::from(format!("{}_{}", self.address, self.port))
    }
}

/// How a listener stands at its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Binding {
    /// Does it open the port, or is it handed connections that were redirected?
    pub(super) opens_port: bool,
    /// Further addresses at which it stands.
    pub(super) more: Vec<Name>,
    /// Is it for gRPC as browsers speak it?
    pub(super) grpc_web: bool,
}

/// The order in which services claim a place: by listener of the Sidecar, what is exported to the client before what is
/// public, the older first, then by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartKey {
    listener: usize,
    /// A listener for all ports leaves alone what others before it have claimed.
    catches_all: bool,
    public: bool,
    created: Created,
    name: Name,
    namespace: Name,
    host: Host,
    /// Which of the host's services, which of its ports, and which of its endpoints.
    at: (usize, usize, usize),
}

impl PartKey {
    /// Is the place taken for good by what claimed it first?
    pub(super) fn is_locked_out_by(&self, first: &Self) -> bool {
        self.catches_all && first.listener < self.listener
    }
}

/// A port whose connections are told apart by the listener itself.
#[derive(Clone, PartialEq, Debug)]
pub struct L4Part {
    pub(super) protocol: Protocol,
    pub(super) binding: Binding,
    pub(super) chains: Vec<Chain>,
}

/// All ports that speak HTTP at one place are served by one chain, so there is little to say: the first counts.
#[derive(Clone, PartialEq, Debug)]
pub struct HttpPart {
    pub(super) binding: Binding,
    /// The pattern whose hosts are found out as they are called.
    pub(super) dynamic: Option<Host>,
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
    Http(HttpPart),
    L4(Arc<L4Part>),
}

/// What a host must know of others to be given listeners.
pub trait Surroundings {
    /// What another host is to the same proxies.
    fn plan(&self, host: &Host) -> Option<&HostPlan>;
    /// The namespace of the asking proxies, if they share one.
    fn client(&self) -> Option<&Name>;
    /// The addresses of each endpoint of a service at one of its ports.
    fn instances(&self, service: &Service, port: &ServicePort) -> Vec<Vec<Name>>;
}

/// What the ports of a host contribute, for proxies with these traits, through the egress listeners they have.
pub fn outbound_parts(
    plan: &HostPlan,
    listeners: &[EgressListener],
    traits: &ListenerTraits,
    around: &impl Surroundings,
    settings: Settings<'_>,
) -> Vec<Part> {
    let mut parts = Vec::new();
    for view in &plan.views {
        let Some(listener) = listeners.get(view.listener) else { continue };
        let declared = listener.port.as_ref().map(|port| ServicePort {
            name: port.name.clone(),
            number: port.number,
            protocol: port.protocol,
        });
        for (i, service) in view.services.iter().enumerate().filter(|(_, service)| !service.is_alias()) {
            let ports = match &declared {
                Some(port) => std::slice::from_ref(port),
                None => &service.ports[..],
            };
            for (j, port) in ports.iter().enumerate() {
                let key = part_key(view, listener, service, (i, j), settings);
                let maker = Maker { plan, view, listener, service, port, traits, around, settings };
                parts.extend(maker.parts(&key));
            }
        }
    }
    parts
}

fn part_key(
    view: &View,
    listener: &EgressListener,
    service: &Service,
    (i, j): (usize, usize),
    settings: Settings<'_>,
) -> PartKey {
    PartKey {
        listener: view.listener,
        catches_all: listener.port.is_none(),
        public: service.export_to.or(&settings.mesh.service_export_to).is_public(),
        created: service.created,
        name: service.name.clone(),
        namespace: service.namespace.clone(),
        host: service.host.clone(),
        at: (i, j, 0),
    }
}

pub(super) struct Maker<'a, S> {
    pub(super) plan: &'a HostPlan,
    pub(super) view: &'a View,
    pub(super) listener: &'a EgressListener,
    pub(super) service: &'a Service,
    /// The port of the listener.
    pub(super) port: &'a ServicePort,
    pub(super) traits: &'a ListenerTraits,
    pub(super) around: &'a S,
    pub(super) settings: Settings<'a>,
}

/// Where the listener of a service stands.
struct Stand {
    addresses: Vec<Name>,
    /// Of a listener for all addresses: which of them it is for.
    cidrs: Vec<Name>,
}

impl<S: Surroundings> Maker<'_, S> {
    fn parts(&self, key: &PartKey) -> Vec<Part> {
        if !self.can_bind() {
            return Vec::new();
        }
        match self.port.protocol.listener() {
            ListenerProtocol::None => Vec::new(),
            ListenerProtocol::Http if self.port.protocol == Protocol::HttpProxy => {
                let stand = Stand { addresses: self.bind_or_wildcard(), cidrs: Vec::new() };
                vec![self.l4_part(key.clone(), stand)]
            }
            ListenerProtocol::Http => {
                let (place, binding) = self.place(self.bind_or_wildcard());
                let part = HttpPart { binding, dynamic: dynamic_host(self.service).cloned() };
                vec![Part { place, key: key.clone(), kind: PartKind::Http(part) }]
            }
            ListenerProtocol::Tcp | ListenerProtocol::Auto => {
                let numbered = self.l4_stands().into_iter().enumerate();
                let key = |i| PartKey { at: (key.at.0, key.at.1, i), ..key.clone() };
                numbered.map(|(i, stand)| self.l4_part(key(i), stand)).collect()
            }
        }
    }

    fn l4_part(&self, key: PartKey, stand: Stand) -> Part {
        let (place, binding) = self.place(stand.addresses);
        let chains = self.chains(&place, &stand.cidrs);
        let l4 = L4Part { protocol: self.port.protocol, binding, chains };
        Part { place, key, kind: PartKind::L4(Arc::new(l4)) }
    }

    /// The first address is where a listener stands; it is known by it.
    fn place(&self, addresses: Vec<Name>) -> (Place, Binding) {
        let mut addresses = addresses.into_iter();
        let address = addresses.next().unwrap_or_else(|| self.wildcard());
        let binding = Binding {
            opens_port: self.opens_port(),
            more: addresses.collect(),
            grpc_web: self.port.protocol == Protocol::GrpcWeb,
        };
        (Place { address, port: self.port.number }, binding)
    }

    pub(super) fn wildcard(&self) -> Name {
        Name::new(wildcards(self.traits.ip_mode)[0])
    }

    fn opens_port(&self) -> bool {
        self.traits.interception == Interception::None
            || self.listener.capture == CaptureMode::None
            || self.listener.bind.starts_with("unix://")
    }

    /// Where the Sidecar says that listeners stand, or where they do when nothing is redirected to them.
    fn bind(&self) -> Vec<Name> {
        if !self.listener.bind.is_empty() {
            vec![self.listener.bind.clone()]
        } else if self.opens_port() {
            names(localhosts(self.traits.ip_mode))
        } else {
            Vec::new()
        }
    }

    fn bind_or_wildcard(&self) -> Vec<Name> {
        let bind = self.bind();
        if bind.is_empty() { names(wildcards(self.traits.ip_mode)) } else { bind }
    }

    /// Ports that the proxy has for itself, and ports that an ordinary user may not open.
    fn can_bind(&self) -> bool {
        let port = self.port.number;
        if self.opens_port() && self.traits.unprivileged && (1..1024).contains(&port) {
            return false;
        }
        let at_wildcard = match self.bind().first() {
            Some(bind) => *bind == self.wildcard(),
            None => self.port.protocol.is_http(),
        };
        let mesh = self.settings.mesh;
        let taken = self.traits.own_ports.contains(&port)
            || port == mesh.proxy_listen_port
            || port == mesh.proxy_inbound_listen_port;
        !(taken && at_wildcard)
    }

    /// Where to listen for connections to this service: at its own address if it has one. A range of addresses shares
    /// the listener of all addresses and is told apart there.
    fn l4_stands(&self) -> Vec<Stand> {
        let one = |addresses| vec![Stand { addresses, cidrs: Vec::new() }];
        let bind = self.bind();
        if !bind.is_empty() {
            return one(bind);
        }
        let addresses = self.service.addresses_from(&self.traits.caller);
        match addresses.first() {
            Some(range) if range.contains('/') => {
                vec![Stand { addresses: names(wildcards(self.traits.ip_mode)), cidrs: addresses }]
            }
            Some(_) => one(addresses),
            None if self.service.resolution == Resolution::Passthrough && self.listener.port.is_none() => {
                self.instance_stands().unwrap_or_else(|| one(self.any_address()))
            }
            None => one(self.any_address()),
        }
    }

    /// Clients of a headless service call its endpoints, so there is a listener for each: one for all addresses would
    /// catch too much. Not so for something whose endpoints nobody ever said.
    fn instance_stands(&self) -> Option<Vec<Stand>> {
        let instances = self.around.instances(self.service, self.port);
        let declared = self.service.registry == Registry::Kubernetes || self.service.selector.is_some();
        if instances.is_empty() && !declared {
            return None;
        }
        let stand = |addresses| Stand { addresses, cidrs: Vec::new() };
        Some(instances.into_iter().map(stand).collect())
    }

    fn any_address(&self) -> Vec<Name> {
        match (self.service.registry, self.traits.ip_mode) {
            (Registry::External, mode) => names(wildcards(mode)),
            (Registry::Kubernetes, _) => names(wildcards(IpMode::V4)),
        }
    }

    fn chains(&self, place: &Place, cidrs: &[Name]) -> Vec<Chain> {
        let routes = if place.port == 0 {
            place.address.clone()
        } else if self.port.protocol == Protocol::Auto && place.address != self.wildcard() {
            // Only this service is called at this address, so it has routes of its own.
            Name::from(format!("{}:{}", self.service.host, place.port))
        } else {
            Name::from(place.port.to_string())
        };
        let dynamic = dynamic_host(self.service).cloned();
        let serve = || Serve::Http { routes: routes.clone(), dynamic: dynamic.clone() };
        let http = |sniffed| Chain { sniffed, ..Chain::all(serve()) };
        match self.port.protocol {
            Protocol::HttpProxy => vec![http(false)],
            Protocol::Auto => {
                let mut chains = l4::chains(self, place, cidrs);
                chains.push(http(true));
                chains
            }
            _ => l4::chains(self, place, cidrs),
        }
    }
}

fn names(addresses: &[&str]) -> Vec<Name> {
    addresses.iter().map(|address| Name::new(address)).collect()
}
