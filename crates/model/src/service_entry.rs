use std::collections::BTreeMap;

use pilot_base::{Host, Labels, Name};

use crate::{ExportTo, Protocol, Resolution};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Location {
    #[default]
    External,
    Internal,
}

/// Services that no registry knows.
#[derive(Clone, PartialEq, Debug)]
pub struct ServiceEntry {
    pub hosts: Vec<Host>,
    /// IPs, or CIDRs with a mask shorter than the address.
    pub addresses: Vec<Name>,
    pub ports: Vec<EntryPort>,
    pub location: Location,
    pub resolution: Resolution,
    pub endpoints: Vec<EntryEndpoint>,
    pub workload_selector: Option<Labels>,
    pub export_to: ExportTo,
    pub subject_alt_names: Vec<Name>,
    /// Addresses that were allocated to hosts, from the object's status.
    pub auto_addresses: Vec<(Host, std::net::IpAddr)>,
    /// The registry that stands behind it; nothing if people wrote it.
    pub registry: Option<RegistryOrigin>,
}

/// A registry that tells its services as ServiceEntries.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegistryOrigin {
    /// How people call it, such as `consul`.
    pub name: Name,
    /// Its place among all registries, from one on; what is not told by an adapter has rank zero.
    pub rank: u16,
}

#[derive(Clone, PartialEq, Debug)]
pub struct EntryPort {
    pub number: u16,
    pub name: Name,
    pub protocol: Protocol,
    pub target_port: Option<u16>,
}

/// An endpoint as it stands in a ServiceEntry, or in a WorkloadEntry of its own.
pub type EntryEndpoint = WorkloadEntry;

/// One workload outside the platform.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WorkloadEntry {
    pub address: Name,
    /// Ports by the name of the service's port.
    pub ports: BTreeMap<Name, u16>,
    pub labels: Labels,
    pub network: Name,
    pub locality: Name,
    pub weight: u32,
    pub service_account: Name,
    /// What its health check last said, from the object's status.
    pub is_healthy: Option<bool>,
}
