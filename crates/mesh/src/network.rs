//! Networks: who is part of which, and over which gateways others are reached.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use pilot_base::{Labels, Name};
use pilot_model::{Address, Endpoint, GatewayAt, MeshNetworks, NetworkMembers, Service};

const NETWORK: &str = "topology.istio.io/network";
const GATEWAY_PORT: &str = "networking.istio.io/gatewayPort";
/// Where gateways between networks listen unless they say otherwise.
const DEFAULT_PORT: u16 = 15443;

/// A gateway into a network, in the order in which they are told.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NetworkGateway {
    pub address: Name,
    pub port: u16,
    pub network: Name,
    /// The cluster it is part of, if that is known.
    pub cluster: Name,
}

/// All gateways between networks.
#[derive(Clone, PartialEq, Debug)]
pub struct NetworkGateways {
    all: BTreeSet<NetworkGateway>,
    /// Weights are multiplied by this, so that each can be divided among gateways.
    pub scale: u32,
}

impl NetworkGateways {
    /// Nothing, if there are none: then everybody is reached directly.
    pub fn new(found: impl Iterator<Item = NetworkGateway>) -> Option<Self> {
        let all: BTreeSet<NetworkGateway> = found.collect();
        let mut counts: BTreeMap<(&Name, Option<&Name>), u32> = BTreeMap::new();
        for gateway in &all {
            *counts.entry((&gateway.network, None)).or_default() += 1;
            *counts.entry((&gateway.network, Some(&gateway.cluster))).or_default() += 1;
        }
        let scale = counts.into_values().fold(1, lcm);
        (!all.is_empty()).then_some(Self { all, scale })
    }

    /// The gateways towards an endpoint: those of its cluster, else those of its network.
    pub fn towards(&self, endpoint: &Endpoint) -> Vec<&NetworkGateway> {
        let of_network = || self.all.iter().filter(|gateway| gateway.network == endpoint.network);
        let near: Vec<_> = of_network().filter(|gateway| gateway.cluster == endpoint.cluster).collect();
        if near.is_empty() { of_network().collect() } else { near }
    }
}

fn lcm(a: u32, b: u32) -> u32 {
    let gcd = |mut a: u32, mut b: u32| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a.max(1)
    };
    (a / gcd(a, b)).saturating_mul(b)
}

/// Gateways with an address of their own. Nobody looks up the names of others yet; who reads them says so.
pub fn declared_gateways(networks: &MeshNetworks) -> impl Iterator<Item = NetworkGateway> {
    networks.0.iter().flat_map(|(network, declared)| {
        declared.gateways.iter().filter_map(|gateway| match gateway {
            GatewayAt::Address(address, port) if address.parse::<IpAddr>().is_ok() => Some(NetworkGateway {
                address: address.clone(),
                port: *port,
                network: network.clone(),
                cluster: Name::empty(),
            }),
            GatewayAt::Address(..) | GatewayAt::Service(..) => None,
        })
    })
}

/// The networks that a Kubernetes service of a cluster is a gateway of: by its label, else because the mesh says so.
pub fn service_gateways(service: &Service, networks: &MeshNetworks, cluster: &Name) -> Vec<NetworkGateway> {
    let mut at: Vec<(Name, u16)> = Vec::new();
    if let Some(network) = service.labels.get(NETWORK).filter(|network| !network.is_empty()) {
        let port =
            service.labels.get(GATEWAY_PORT).and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT);
        at.extend(service.port(port).map(|_| (network.clone(), port)));
    } else {
        for (network, declared) in &networks.0 {
            if declared.members.contains(&NetworkMembers::Cluster(cluster.clone())) {
                let named = declared.gateways.iter().filter_map(|gateway| match gateway {
                    GatewayAt::Service(host, port) if *host == service.host => Some(*port),
                    GatewayAt::Address(..) | GatewayAt::Service(..) => None,
                });
                at.extend(named.map(|port| (network.clone(), port)));
            }
        }
    }
    let addresses = || service.outer_addresses.iter().filter(|address| address.parse::<IpAddr>().is_ok());
    let gateway = |(network, port): (Name, u16)| {
        let (network, cluster) = (network, cluster.clone());
        addresses().map(move |address| NetworkGateway {
            address: address.clone(),
            port,
            network: network.clone(),
            cluster: cluster.clone(),
        })
    };
    at.into_iter().flat_map(gateway).collect()
}

/// How it is found out which network an endpoint is part of.
pub struct NetworkMap<'a> {
    pub networks: Option<&'a MeshNetworks>,
    /// Labels of the mesh's own namespace, which say where the whole cluster is.
    pub home: Option<&'a Labels>,
    pub cluster: &'a Name,
}

impl NetworkMap<'_> {
    /// Says where an endpoint is that does not say so itself.
    pub fn settle(&self, endpoint: &mut Endpoint) {
        if let Some(network) = self.find(endpoint) {
            endpoint.network = network;
        }
    }

    /// The network of an endpoint that does not name one: its label counts first, then its cluster, then the mesh.
    fn find(&self, endpoint: &Endpoint) -> Option<Name> {
        if !endpoint.network.is_empty() {
            return None;
        }
        let label = |labels: &Labels| labels.get(NETWORK).filter(|network| !network.is_empty()).cloned();
        let said = label(&endpoint.labels).or_else(|| self.home.and_then(label));
        said.or_else(|| self.declared(&endpoint.address))
    }

    fn declared(&self, address: &Address) -> Option<Name> {
        let networks = &self.networks?.0;
        let here = NetworkMembers::Cluster(self.cluster.clone());
        if let Some((name, _)) = networks.iter().find(|(_, network)| network.members.contains(&here)) {
            return Some(name.clone());
        }
        let Address::Ip(ip) = address else { return None };
        let ranges = networks.iter().flat_map(|(name, network)| {
            network.members.iter().filter_map(move |members| match members {
                NetworkMembers::Range(range) => Some((*range, name)),
                NetworkMembers::Cluster(_) => None,
            })
        });
        let mut containing: Vec<_> = ranges.filter(|(range, _)| range.contains(*ip)).collect();
        containing.sort();
        containing.first().map(|(_, name)| (*name).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::{NetworkGateway, NetworkGateways};

    fn gateway(address: &str, network: &str, cluster: &str) -> NetworkGateway {
        let (address, network, cluster) = (address.into(), network.into(), cluster.into());
        NetworkGateway { address, port: 15443, network, cluster }
    }

    #[test]
    fn weights_can_be_divided_among_the_gateways_of_every_network() {
        let scale = |all: Vec<NetworkGateway>| NetworkGateways::new(all.into_iter()).map(|found| found.scale);
        assert_eq!(scale(Vec::new()), None);
        assert_eq!(scale(vec![gateway("1.1.1.1", "a", "")]), Some(1));
        let two = [gateway("1.1.1.1", "a", ""), gateway("1.1.1.2", "a", "")];
        let three = ["2.1.1.1", "2.1.1.2", "2.1.1.3"].map(|address| gateway(address, "b", ""));
        assert_eq!(scale(two.into_iter().chain(three).collect()), Some(6));
    }
}
