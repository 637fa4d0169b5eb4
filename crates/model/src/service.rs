use std::collections::BTreeMap;

use pilot_base::{Host, Labels, Name, ObjectRef};

use crate::{Created, ExportTo, Protocol};

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
    pub mesh_external: bool,
    pub export_to: ExportTo,
    pub created: Created,
    pub labels: Labels,
    /// Which workloads belong to it, if that is not said one by one.
    pub selector: Option<Labels>,
    /// Identities that its certificates may carry, beyond those of its endpoints.
    pub subject_alt_names: Vec<Name>,
    /// For passthrough: ports that differ from the one that was called.
    pub target_ports: BTreeMap<u16, u16>,
    /// Also endpoints that are not ready are published.
    pub publish_not_ready: bool,
    /// The object that says all this.
    pub object: ObjectRef,
}

impl Service {
    pub fn port(&self, number: u16) -> Option<&ServicePort> {
        self.ports.iter().find(|port| port.number == number)
    }

    /// The addresses a proxy in `cluster` would call.
    pub fn addresses_in(&self, cluster: &Name) -> Vec<Name> {
        match self.cluster_addresses.get(cluster) {
            Some(addresses) if !addresses.is_empty() => addresses.clone(),
            _ => self.address.iter().cloned().collect(),
        }
    }

    /// Older services first; what two of the same age are is decided by name.
    pub fn order(&self) -> (Created, Name, Name) {
        (self.created, self.name.clone(), self.namespace.clone())
    }
}
