//! One rule of the kernel's packet filter, in no back end's words.

use std::fmt;

/// In the order in which iptables-restore is told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Table {
    Mangle,
    Nat,
    Raw,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Chain {
    /// The kernel's own: what arrives.
    Prerouting,
    /// The kernel's own: what this machine sends.
    Output,
    Inbound,
    Redirect,
    InRedirect,
    IstioOutput,
    OutputDns,
    Divert,
    Tproxy,
    Drop,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    V4,
    V6,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Last,
    /// Counted from 1.
    At(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    Tcp,
    Udp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Invalid,
    /// Of a connection that is known.
    Known,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sign {
    Is,
    IsNot,
}

/// A port, or all from one to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ports {
    pub(super) first: u16,
    pub(super) last: u16,
}

/// What a packet must be like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Match {
    In(String),
    Out(String),
    From(String),
    To(Sign, String),
    Protocol(Protocol),
    FromPort(Ports),
    ToPort(Sign, Ports),
    ToNoneOf(Vec<Ports>),
    User(Sign, String),
    Group(Sign, String),
    Mark(Sign, u32),
    ConnectionMark(u32),
    State(State),
}

/// What becomes of it then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Return,
    Accept,
    Drop,
    Jump(Chain),
    Redirect(u16),
    Tproxy { port: u16, mark: u32 },
    SetMark(u32),
    SaveMark,
    RestoreMark,
    Zone(u8),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    pub(super) table: Table,
    pub(super) chain: Chain,
    pub(super) place: Place,
    /// `None` is for both.
    pub(super) family: Option<Family>,
    /// In the order in which iptables is told.
    pub(super) matches: Vec<Match>,
    pub(super) action: Action,
}

/// A rule that does not say yet what it does.
#[derive(Clone)]
pub(super) struct Draft {
    table: Table,
    chain: Chain,
    place: Place,
    family: Option<Family>,
    matches: Vec<Match>,
}

pub(super) fn on(table: Table, chain: Chain) -> Draft {
    Draft { table, chain, place: Place::Last, family: None, matches: Vec::new() }
}

impl Draft {
    pub(super) fn at(mut self, position: usize) -> Self {
        self.place = Place::At(position);
        self
    }

    pub(super) fn only(mut self, family: Family) -> Self {
        self.family = Some(family);
        self
    }

    pub(super) fn when(mut self, what: Match) -> Self {
        self.matches.push(what);
        self
    }

    pub(super) fn tcp(self) -> Self {
        self.when(Match::Protocol(Protocol::Tcp))
    }

    pub(super) fn udp(self) -> Self {
        self.when(Match::Protocol(Protocol::Udp))
    }

    pub(super) fn for_port(self, port: impl Into<Ports>) -> Self {
        self.when(Match::ToPort(Sign::Is, port.into()))
    }

    pub(super) fn then(self, action: Action) -> Rule {
        let Self { table, chain, place, family, matches } = self;
        Rule { table, chain, place, family, matches, action }
    }
}

impl Chain {
    pub(super) fn is_kernels(self) -> bool {
        matches!(self, Self::Prerouting | Self::Output)
    }
}

impl Rule {
    pub(super) fn is_for(&self, family: Family) -> bool {
        self.family.is_none_or(|own| own == family)
    }
}

impl From<u16> for Ports {
    fn from(port: u16) -> Self {
        Self { first: port, last: port }
    }
}

impl Ports {
    /// `80`, or `80` and `90` with something between them.
    pub(super) fn text(self, between: char) -> String {
        let Self { first, last } = self;
        if first == last { first.to_string() } else { format!("{first}{between}{last}") }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}
