use std::collections::BTreeMap;

use pilot_base::{Labels, Name};

use crate::{Address, Health, Protocol};

/// A Kubernetes Pod, as far as the mesh cares.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Pod {
    pub labels: Labels,
    pub annotations: Labels,
    pub service_account: Name,
    pub node: Name,
    pub ips: Vec<Name>,
    /// Can it be called? It says that it is ready, has an address, and is not about to end.
    pub ready: bool,
    /// What the pod's owner is called: its deployment, if one can be made out.
    pub workload: Name,
    /// Its name below that of a headless service: `hostname.subdomain`.
    pub dns_name: Option<Name>,
    /// Ports of its containers that have a name.
    pub ports: BTreeMap<Name, u16>,
}

/// A Kubernetes Node: where pods are.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Node {
    pub labels: Labels,
    /// How it is reached from outside its cluster.
    pub outer_address: Option<Name>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct Namespace {
    pub labels: Labels,
    pub annotations: Labels,
    /// Do its proxies ask for clusters when they need them? Where it does not say, the mesh decides.
    pub on_demand: Option<bool>,
}

/// Part of the endpoints of a Kubernetes Service.
#[derive(Clone, PartialEq, Debug)]
pub struct EndpointSlice {
    /// The service, in the slice's namespace.
    pub service: Name,
    /// Are its addresses those of IPv6?
    pub ipv6: bool,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<SliceEndpoint>,
    pub pods: PodSight,
}

/// Can the pods behind a slice be seen?
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PodSight {
    /// One that is not there is about to come, or gone.
    #[default]
    Clear,
    /// We may not see pods. What is not known of them will never be known.
    Lost,
}

#[derive(Clone, PartialEq, Debug)]
pub struct SlicePort {
    pub name: Name,
    pub number: u16,
    pub protocol: Protocol,
}

#[derive(Clone, PartialEq, Debug)]
pub struct SliceEndpoint {
    pub addresses: Vec<Address>,
    pub health: Health,
    /// The pod behind it, in the slice's namespace.
    pub pod: Option<Name>,
}
