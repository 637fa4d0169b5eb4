use std::collections::BTreeMap;
use std::net::IpAddr;

use pilot_base::{Cidr, Host, Name};

/// Networks whose workloads reach those of others only over gateways.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MeshNetworks(pub BTreeMap<Name, Network>);

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Network {
    /// Who is part of it, beside those who say so themselves.
    pub members: Vec<NetworkMembers>,
    /// How it is reached from others.
    pub gateways: Vec<GatewayAt>,
}

#[derive(Clone, PartialEq, Debug)]
pub enum NetworkMembers {
    Range(Cidr),
    /// All endpoints of a cluster.
    Cluster(Name),
}

#[derive(Clone, PartialEq, Debug)]
pub enum GatewayAt {
    Address(Name, u16),
    /// At the outer addresses of a service of a cluster that is part of the network.
    Service(Host, u16),
}

/// What the name of a gateway was found to stand for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HostAddresses {
    /// The last that were found.
    pub addresses: Vec<IpAddr>,
    /// Why none were found the last time.
    pub failure: Option<Name>,
}
