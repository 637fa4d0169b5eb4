use pilot_base::Name;
use pilot_model::Protocol;

use crate::convert::wildcards;
use crate::settings::ListenerTraits;

use super::part::{L4Part, PartKey, Place};
use crate::network_filter::TcpProxy;

/// An outbound listener, as data.
#[derive(Clone, PartialEq, Debug)]
pub struct OutboundListener {
    pub place: Place,
    pub(super) chains: Vec<Chain>,
}

impl OutboundListener {
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Does what a proxy says about itself to servers matter to this listener?
    pub fn serves_http(&self) -> bool {
        self.chains.iter().any(|chain| matches!(chain.serve, Serve::Http(_)))
    }
}

/// Some of a listener's connections, and what becomes of them.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Chain {
    pub(super) server_names: Vec<Name>,
    pub(super) cidrs: Vec<Name>,
    /// Only what looks like HTTP.
    pub(super) sniffed: bool,
    pub(super) serve: Serve,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Serve {
    /// By the routes of this name.
    Http(Name),
    Tcp(TcpProxy),
}

impl Chain {
    pub(super) fn matches_all(&self) -> bool {
        self.server_names.is_empty() && self.cidrs.is_empty() && !self.sniffed
    }

    fn matches_as(&self, other: &Self) -> bool {
        (&self.server_names, &self.cidrs, self.sniffed) == (&other.server_names, &other.cidrs, other.sniffed)
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

/// What all that is at one place together makes of it. Of two that cannot be told apart the first counts.
///
/// `http` is the first service there that speaks HTTP; others would change nothing.
pub fn merge_parts<'a>(
    place: &Place,
    traits: &ListenerTraits,
    mut http: Option<&PartKey>,
    l4: impl Iterator<Item = (&'a PartKey, &'a L4Part)>,
) -> OutboundListener {
    let at_wildcard = place.address == wildcards(traits.ip_mode)[0];
    let mut merger = Merger { place, at_wildcard, speaks: None, chains: Vec::new() };
    for (key, part) in l4 {
        if http.take_if(|first| *first < key).is_some() {
            merger.add_http();
        }
        merger.add_l4(part);
    }
    if http.is_some() {
        merger.add_http();
    }
    OutboundListener { place: place.clone(), chains: merger.chains }
}

struct Merger<'a> {
    place: &'a Place,
    /// Connections to anybody may turn up here.
    at_wildcard: bool,
    speaks: Option<Speaks>,
    chains: Vec<Chain>,
}

impl Merger<'_> {
    fn add_http(&mut self) {
        let chain = Chain {
            server_names: Vec::new(),
            cidrs: Vec::new(),
            sniffed: self.at_wildcard,
            serve: Serve::Http(Name::from(self.place.port.to_string())),
        };
        match self.speaks {
            None => {
                self.chains.push(chain);
                self.speaks = Some(if self.at_wildcard { Speaks::Auto } else { Speaks::Http });
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
        let alone = if sniffs { Speaks::Auto } else { Speaks::Tcp(part.protocol) };
        match self.speaks {
            Some(there) if there.clashes_with(part.protocol) => (),
            Some(Speaks::Auto) if sniffs => (),
            None => {
                self.chains.clone_from(&part.chains);
                self.speaks = Some(alone);
            }
            Some(Speaks::Http) if sniffs => {
                self.chains.clone_from(&part.chains);
                self.speaks = Some(alone);
            }
            Some(there) => {
                self.join(part.chains.clone());
                self.speaks = Some(match there {
                    Speaks::Tcp(_) if !sniffs => there,
                    _ => Speaks::Auto,
                });
            }
        }
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
