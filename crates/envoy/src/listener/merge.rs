use std::collections::BTreeSet;
use std::net::IpAddr;

use pilot_base::{Cidr, Host, Name};
use pilot_model::{ConfigId, Protocol};

use super::part::{Binding, HttpPart, L4Part, PartKey, Place};
use crate::convert::wildcards;
use crate::network_filter::TcpProxy;
use crate::settings::ListenerTraits;

/// An outbound listener, as data.
#[derive(Clone, PartialEq, Debug)]
pub struct OutboundListener {
    pub place: Place,
    pub(super) binding: Binding,
    pub(super) chains: Vec<Chain>,
}

impl OutboundListener {
    /// Does what a proxy says about itself to servers matter to this listener?
    pub fn serves_http(&self) -> bool {
        self.chains.iter().any(|chain| !matches!(chain.serve, Serve::L4(_)))
    }
}

/// Some of a listener's connections, and what becomes of them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Chain {
    pub(super) server_names: Vec<Name>,
    pub(super) cidrs: Vec<Name>,
    /// Only what looks like HTTP.
    pub(super) sniffed: bool,
    /// The VirtualService that says so.
    pub(super) config: Option<ConfigId>,
    pub(super) serve: Serve,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Serve {
    /// By the routes of this name.
    Http {
        routes: Name,
        /// The pattern whose hosts are found out as they are called.
        dynamic: Option<Host>,
    },
    /// The same, for gRPC as browsers speak it too.
    GrpcWeb(Name),
    /// By the routes of this name, for requests that say where they are going.
    ForwardProxy(Name),
    L4(L4Serve),
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct L4Serve {
    pub(crate) proxy: TcpProxy,
    /// Some protocols have a filter of their own.
    pub(crate) protocol: Protocol,
    /// The first cluster, for a filter that knows only one.
    pub(crate) cluster: Name,
    /// The pattern whose hosts are found out as they are called.
    pub(crate) dynamic: Option<Host>,
}

impl Chain {
    /// For all connections.
    pub(super) fn all(serve: Serve) -> Self {
        Self { server_names: Vec::new(), cidrs: Vec::new(), sniffed: false, config: None, serve }
    }

    pub(super) fn matches_all(&self) -> bool {
        self.names_all() && self.cidrs.is_empty() && !self.sniffed
    }

    pub(super) fn names_all(&self) -> bool {
        self.server_names.is_empty() || self.server_names.iter().any(|name| name == "*")
    }

    /// Envoy refuses a listener with two chains that it cannot tell apart.
    fn matches_as(&self, other: &Self) -> bool {
        self.sniffed == other.sniffed && self.names() == other.names() && self.ranges() == other.ranges()
    }

    fn names(&self) -> BTreeSet<&Name> {
        self.server_names.iter().filter(|name| *name != "*").collect()
    }

    fn ranges(&self) -> BTreeSet<Cidr> {
        let parsed = self.cidrs.iter().filter_map(|cidr| Cidr::parse_or_address(cidr));
        parsed.filter(|range| range.base() != IpAddr::from([0, 0, 0, 0])).map(Cidr::masked).collect()
    }
}

/// What a listener serves so far.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaks {
    Http,
    Tcp(Protocol),
    /// Both, told apart by looking.
    Auto,
}

impl Speaks {
    /// A server that speaks first would wait for ever behind an inspector.
    fn clashes_with(self, protocol: Protocol) -> bool {
        match self {
            Self::Http | Self::Auto => speaks_first(protocol),
            Self::Tcp(there) => there != protocol && (speaks_first(there) || speaks_first(protocol)),
        }
    }
}

/// What all that is at one place together makes of it, if anything. Of two that cannot be told apart the first counts.
///
/// `http` is the first service there that speaks HTTP; others would change nothing.
pub fn merge_parts<'a>(
    place: &Place,
    traits: &ListenerTraits,
    mut http: Option<(&PartKey, &HttpPart)>,
    l4: impl Iterator<Item = (&'a PartKey, &'a L4Part)>,
) -> Option<OutboundListener> {
    let at_wildcard = place.address == wildcards(traits.ip_mode)[0];
    let mut merger = Merger { place, at_wildcard, speaks: None, binding: None, chains: Vec::new() };
    let mut l4 = l4.peekable();
    let first = match (http, l4.peek()) {
        (Some((http, _)), Some((l4, _))) => http.min(l4),
        (Some((key, _)), None) => key,
        (None, Some((key, _))) => key,
        (None, None) => return None,
    };
    let first = first.clone();
    http.take_if(|(key, _)| key.is_locked_out_by(&first));
    for (key, part) in l4.filter(|(key, _)| !key.is_locked_out_by(&first)) {
        if let Some((_, part)) = http.take_if(|(first, _)| *first < key) {
            merger.add_http(part);
        }
        merger.add_l4(part);
    }
    if let Some((_, part)) = http {
        merger.add_http(part);
    }
    let binding = merger.binding?;
    (!merger.chains.is_empty()).then(|| OutboundListener {
        place: place.clone(),
        binding,
        chains: merger.chains,
    })
}

struct Merger<'a> {
    place: &'a Place,
    /// Connections to anybody may turn up here.
    at_wildcard: bool,
    speaks: Option<Speaks>,
    binding: Option<Binding>,
    chains: Vec<Chain>,
}

impl Merger<'_> {
    fn add_http(&mut self, part: &HttpPart) {
        let routes = match self.place.port {
            0 => self.place.address.clone(),
            port => Name::from(port.to_string()),
        };
        let dynamic = part.dynamic.clone();
        let grpc_web = part.binding.grpc_web;
        let serve = if grpc_web { Serve::GrpcWeb(routes) } else { Serve::Http { routes, dynamic } };
        let chain = Chain { sniffed: self.at_wildcard, ..Chain::all(serve) };
        match self.speaks {
            None => {
                let speaks = if self.at_wildcard { Speaks::Auto } else { Speaks::Http };
                self.begin(speaks, &part.binding, vec![chain]);
            }
            Some(Speaks::Tcp(protocol)) if !speaks_first(protocol) => {
                self.join(vec![chain]);
                self.speaks = Some(Speaks::Auto);
            }
            Some(_) => (),
        }
    }

    fn add_l4(&mut self, part: &L4Part) {
        let sniffs = part.protocol == Protocol::Auto;
        let alone = match part.protocol {
            Protocol::Auto => Speaks::Auto,
            Protocol::HttpProxy => Speaks::Http,
            protocol => Speaks::Tcp(protocol),
        };
        match self.speaks {
            // A forward proxy shares its port with nobody who was there before.
            _ if part.protocol == Protocol::HttpProxy => {
                self.begin(alone, &part.binding, part.chains.clone());
            }
            Some(there) if there.clashes_with(part.protocol) => (),
            Some(Speaks::Auto) if sniffs => (),
            None => self.begin(alone, &part.binding, part.chains.clone()),
            Some(Speaks::Http) if sniffs => self.begin(alone, &part.binding, part.chains.clone()),
            Some(there) => {
                self.join(part.chains.clone());
                self.speaks = Some(match there {
                    Speaks::Tcp(_) if !sniffs => there,
                    _ => Speaks::Auto,
                });
            }
        }
    }

    fn begin(&mut self, speaks: Speaks, binding: &Binding, chains: Vec<Chain>) {
        self.chains.clear();
        self.join(chains);
        self.speaks = Some(speaks);
        self.binding = Some(binding.clone());
    }

    /// Adds chains that can be told apart from those that are there.
    fn join(&mut self, chains: Vec<Chain>) {
        for chain in chains {
            if !self.chains.iter().any(|there| there.matches_as(&chain)) {
                self.chains.push(chain);
            }
        }
    }
}

/// Protocols in which the client waits for the server's greeting.
fn speaks_first(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Mongo | Protocol::MySql)
}
