//! What the Gateways of a workload come to together: which ports it opens, and which servers share one.

mod merge;
mod routing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_model::{Config, ConfigId, Gateway, GatewayServer, HostNamespace, Protocol};

pub use merge::merge_gateways;
pub use routing::{gateway_rank, intersection, l4_applies, more_specific, overlaps};

/// The Gateways that a workload serves, and at which of its own ports.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GatewaySet {
    /// In the order in which they claim ports.
    pub gateways: Vec<ConfigId>,
    /// The workload's port for a port that clients call, where its services say that it is another one.
    pub ports: BTreeMap<u16, u16>,
    /// Ports that clients may call over UDP, as its services say: HTTP/3 can be served there.
    pub udp_ports: BTreeSet<u16>,
    /// Hosts that are reached by their clusters' names, over servers that pass TLS on by themselves.
    pub auto_hosts: Vec<Host>,
}

/// A host that a server serves. With a namespace, only VirtualServices that live there may route it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServedHost {
    pub namespace: Option<Name>,
    pub host: Host,
}

impl ServedHost {
    /// `namespace/host`, or just `host`.
    pub fn text(&self) -> Name {
        match &self.namespace {
            Some(namespace) => Name::from(format!("{namespace}/{}", self.host)),
            None => self.host.name().clone(),
        }
    }
}

/// A server of one of the Gateways.
#[derive(Clone, PartialEq, Debug)]
pub struct MergedServer {
    /// `namespace/name` of its Gateway, by which VirtualServices speak of it.
    pub gateway: Name,
    pub server: Arc<GatewayServer>,
    pub hosts: Vec<ServedHost>,
    /// Routes of its own, for HTTPS that ends here.
    pub routes: Name,
    /// Is it served over HTTP/3, too?
    pub http3: bool,
}

impl MergedServer {
    /// The names by which its connections are told from others', in order.
    pub fn server_names(&self) -> Vec<Name> {
        let mut names: Vec<Name> = self.hosts.iter().map(|host| host.host.name().clone()).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Servers that share a port of the workload.
#[derive(Clone, PartialEq, Debug)]
pub struct MergedPort {
    pub port: u16,
    pub bind: Name,
    pub protocol: Protocol,
    /// The routes of all of them, for plain HTTP.
    pub routes: Name,
    pub servers: Vec<Arc<MergedServer>>,
}

/// All ports, and all tables of routes, of a workload.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MergedGateway {
    /// In the order in which they were claimed.
    pub ports: Vec<MergedPort>,
    /// The servers whose hosts are in a table of routes, by its name.
    pub routes: BTreeMap<Name, Vec<Arc<MergedServer>>>,
    /// Servers that could not be served, and why.
    pub left_out: Vec<LeftOut>,
}

/// A server that another one stands in the way of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftOut {
    pub gateway: ConfigId,
    pub server: usize,
    pub why: String,
}

fn served_hosts(server: &GatewayServer, gateway: &Config<Gateway>) -> Vec<ServedHost> {
    let hosts = server.hosts.iter();
    hosts
        .map(|host| ServedHost {
            namespace: match &host.namespace {
                HostNamespace::Any => None,
                HostNamespace::Own => Some(gateway.id.namespace.clone()),
                HostNamespace::Named(namespace) => Some(namespace.clone()),
            },
            host: host.host.clone(),
        })
        .collect()
}
