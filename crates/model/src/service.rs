use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Host, Labels, Name, ObjectRef};

use crate::{Created, ExportTo, IpMode, Protocol};

/// Where a service is registered. The order is the order of precedence when several claim one host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Registry {
    Kubernetes,
    /// ServiceEntry.
    External,
}

/// How the addresses behind a service are found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Resolution {
    /// We tell the proxy.
    Static,
    Dns,
    DnsRoundRobin,
    DynamicDns,
    /// Traffic goes where it was going.
    Passthrough,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServicePort {
    pub name: Name,
    pub number: u16,
    pub protocol: Protocol,
}

/// Where a workload listens for a port of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkloadPort {
    /// There, unless it has a port of the service's name.
    Number(u16),
    /// At its own port of this name.
    Named(Name),
}

/// A Kubernetes service that is a gateway on nodes, at their own outer addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodePorts {
    /// Which nodes; all, if it is empty.
    pub nodes: Labels,
    /// The port on a node, by the service's own.
    pub ports: BTreeMap<u16, u16>,
}

/// A host that can be called.
#[derive(Clone, PartialEq, Debug)]
pub struct Service {
    pub host: Host,
    pub namespace: Name,
    /// What telemetry calls it: the short name in Kubernetes, the host elsewhere.
    pub name: Name,
    pub registry: Registry,
    pub resolution: Resolution,
    pub ports: Vec<ServicePort>,
    /// Addresses by which it is called, per cluster. Without an entry for a cluster `address` counts.
    pub cluster_addresses: BTreeMap<Name, Vec<Name>>,
    /// The address for everyone else: an IP, a CIDR, or unset when any address will do.
    pub address: Option<Name>,
    /// Addresses at which a Kubernetes service is called from outside its cluster.
    pub outer_addresses: Vec<Name>,
    /// Where else it is called from there, if it says so.
    pub node_ports: Option<Arc<NodePorts>>,
    pub mesh_external: bool,
    pub export_to: ExportTo,
    pub created: Created,
    pub labels: Labels,
    /// Which workloads belong to it, if that is not said one by one.
    pub selector: Option<Labels>,
    /// Identities that its certificates may carry, beyond those of its endpoints.
    pub subject_alt_names: Vec<Name>,
    /// Service accounts of its namespace, in addition to those of its endpoints.
    pub more_accounts: Vec<Name>,
    /// For passthrough: ports that differ from the one that was called.
    pub target_ports: BTreeMap<u16, u16>,
    /// Also endpoints that are not ready are published.
    pub publish_not_ready: bool,
    /// Only endpoints on the client's own node are called.
    pub node_local: bool,
    /// Addresses that the mesh made up for it, for proxies that answer DNS queries themselves: the IPv4 one, then the
    /// IPv6 one.
    pub auto_addresses: Vec<Name>,
    pub traffic_distribution: TrafficDistribution,
    /// Does its namespace say which endpoints are preferred, because it does not itself?
    pub distribution_of_namespace: bool,
    /// Connect to every address that a name has, and keep the first connection that stands.
    pub race_connect: bool,
    /// It is only another name for this host.
    pub external_name: Option<Host>,
    /// Other names for it, with their namespaces.
    pub aliases: Vec<(Name, Host)>,
    /// Where workloads that it selects listen, by the name of its port.
    pub workload_ports: BTreeMap<Name, WorkloadPort>,
    /// The object that says all this.
    pub object: ObjectRef,
}

/// Which endpoints are preferred where no rule says so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum TrafficDistribution {
    #[default]
    Any,
    PreferSameZone,
    PreferSameNode,
}

impl TrafficDistribution {
    /// Reads the annotation; nothing where it is missing, and no preference where it is not understood.
    pub fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "" => None,
            "preferclose" | "prefersamezone" => Some(Self::PreferSameZone),
            "prefersamenode" => Some(Self::PreferSameNode),
            _ => Some(Self::Any),
        }
    }
}

/// What of a client decides by which addresses it calls services.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Caller {
    pub cluster: Name,
    pub ip_mode: IpMode,
    /// Does it use addresses that the mesh made up?
    pub allocated: bool,
    /// May it use addresses of both families for one service?
    pub dual_stack: bool,
}

impl Caller {
    fn reaches(&self, address: &Name) -> bool {
        match address.parse::<std::net::IpAddr>() {
            Ok(ip) if ip.is_ipv4() => self.ip_mode != IpMode::V6,
            Ok(_) => self.ip_mode != IpMode::V4,
            Err(_) => true,
        }
    }
}

impl Service {
    pub fn port(&self, number: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|port| port.number == number)
    }

    /// The addresses by which a caller calls it, of those families that it can use. Nothing if any address will do.
    pub fn addresses_from(&self, caller: &Caller) -> Vec<Name> {
        let found = self.own_addresses(caller);
        // Better one that it may not reach than to listen at every address.
        if found.is_empty() { self.address.iter().cloned().collect() } else { found }
    }

    /// The same without one that it may not reach. Only Kubernetes has one for each family.
    pub fn reachable_from(&self, caller: &Caller) -> Vec<Name> {
        let mut found = self.addresses_from(caller);
        if !self.cluster_addresses.is_empty() {
            found.retain(|address| caller.reaches(address));
        }
        found
    }

    fn own_addresses(&self, caller: &Caller) -> Vec<Name> {
        let mut found = self.cluster_addresses.get(&caller.cluster).cloned().unwrap_or_default();
        if found.is_empty() && caller.allocated {
            found.clone_from(&self.auto_addresses);
        }
        found.retain(|address| caller.reaches(address));
        if let Some(first) = found.first().filter(|_| !caller.dual_stack).map(|first| first.contains(':')) {
            found.retain(|address| address.contains(':') == first);
        }
        found
    }

    /// Is it nothing but another name?
    pub fn is_alias(&self) -> bool {
        self.external_name.is_some()
    }

    /// Older services first; what two of the same age are is decided by name.
    pub fn order(&self) -> (Created, Name, Name) {
        (self.created, self.name.clone(), self.namespace.clone())
    }
}
