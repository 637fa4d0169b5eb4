//! Networks: who is part of which, and over which gateways others are reached.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use pilot_base::{Labels, Name};
use pilot_model::{Address, Endpoint, GatewayAt, MeshNetworks, NetworkMembers, NodePorts, Service};

const NETWORK: &str = "topology.istio.io/network";
const GATEWAY_PORT: &str = "networking.istio.io/gatewayPort";
/// Where gateways between networks listen unless they say otherwise.
const DEFAULT_PORT: u16 = 15443;

/// A gateway into a network, in the order in which they are told.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NetworkGateway {
    /// An address, or a name while nobody has looked it up.
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

/// A gateway that somebody declared: where that is said, and by which address or name.
pub type Declared = (String, NetworkGateway);

/// Gateways that the mesh names by their addresses, or by names that are looked up.
pub fn declared_gateways(networks: &MeshNetworks) -> Vec<Declared> {
    let mut out = Vec::new();
    for (network, declared) in &networks.0 {
        for (i, gateway) in declared.gateways.iter().enumerate() {
            let GatewayAt::Address(address, port) = gateway else { continue };
            let (address, network) = (address.clone(), network.clone());
            let path = format!("networks.{network}.gateways[{i}].address");
            out.push((path, NetworkGateway { address, port: *port, network, cluster: Name::empty() }));
        }
    }
    out
}

/// What a Kubernetes service is between networks.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ServiceGateways {
    pub gateways: Vec<Declared>,
    /// Why it is less than somebody meant it to be, and where that is said.
    pub problem: Option<(&'static str, String)>,
}

/// The gateways that a Kubernetes service of a cluster is. `on_nodes` are the outer addresses of the nodes on which it says
/// that it is reached.
pub fn service_gateways(
    service: &Service,
    networks: &MeshNetworks,
    cluster: &Name,
    on_nodes: impl Fn(&NodePorts) -> Vec<Name>,
) -> ServiceGateways {
    let mut out = ServiceGateways::default();
    let at = gateway_ports(service, networks, cluster, &mut out);
    if at.is_empty() {
        return out;
    }
    let node_ports = service.node_ports.as_deref();
    let (path, addresses) = match node_ports.filter(|_| service.outer_addresses.is_empty()) {
        Some(ports) => ("metadata.annotations", on_nodes(ports)),
        None => ("status.loadBalancer.ingress", service.outer_addresses.clone()),
    };
    if addresses.is_empty() {
        let why = if node_ports.is_some() {
            "no node that it selects has an ExternalIP"
        } else {
            "it has no address outside of its cluster yet"
        };
        out.problem = Some((path, format!("nobody reaches network {} over it: {why}", at[0].0)));
    }
    for (network, port) in at {
        // Nodes have a port of their own for it.
        let port = node_ports.and_then(|ports| ports.ports.get(&port)).copied().unwrap_or(port);
        for address in &addresses {
            let (address, network) = (address.clone(), network.clone());
            let gateway = NetworkGateway { address, port, network, cluster: cluster.clone() };
            out.gateways.push((path.to_owned(), gateway));
        }
    }
    out
}

/// The networks that a service leads to and at which of its ports: by its label, else because the mesh says so.
fn gateway_ports(
    service: &Service,
    networks: &MeshNetworks,
    cluster: &Name,
    out: &mut ServiceGateways,
) -> Vec<(Name, u16)> {
    if let Some(network) = service.labels.get(NETWORK).filter(|network| !network.is_empty()) {
        let port =
            service.labels.get(GATEWAY_PORT).and_then(|port| port.parse().ok()).unwrap_or(DEFAULT_PORT);
        if service.port(port).is_none() {
            let why = format!("nobody reaches network {network} over it: it has no port {port}");
            out.problem = Some(("spec.ports", why));
            return Vec::new();
        }
        return vec![(network.clone(), port)];
    }
    let mut at = Vec::new();
    for (network, declared) in &networks.0 {
        if declared.members.contains(&NetworkMembers::Cluster(cluster.clone())) {
            let named = declared.gateways.iter().filter_map(|gateway| match gateway {
                GatewayAt::Service(host, port) if *host == service.host => Some(*port),
                GatewayAt::Address(..) | GatewayAt::Service(..) => None,
            });
            at.extend(named.map(|port| (network.clone(), port)));
        }
    }
    at
}

impl NetworkGateway {
    /// The name that has to be looked up before anybody can go there.
    pub fn name(&self) -> Option<&Name> {
        self.address.parse::<IpAddr>().is_err().then_some(&self.address)
    }

    /// The same at an address.
    pub fn at(&self, address: IpAddr) -> Self {
        Self { address: Name::from(address.to_string()), ..self.clone() }
    }
}

/// How it is found out which network an endpoint is part of.
pub struct NetworkMap<'a> {
    pub networks: Option<&'a MeshNetworks>,
    /// Labels of the servers' namespace, which say where the whole cluster is.
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

    /// The network of an endpoint that does not name one.
    fn find(&self, endpoint: &Endpoint) -> Option<Name> {
        if endpoint.network.is_empty() { self.network_of(&endpoint.labels, &endpoint.address) } else { None }
    }

    /// The network of a workload: its label counts first, then its cluster, then the mesh.
    pub fn network_of(&self, labels: &Labels, address: &Address) -> Option<Name> {
        let label = |labels: &Labels| labels.get(NETWORK).filter(|network| !network.is_empty()).cloned();
        label(labels).or_else(|| self.home.and_then(label)).or_else(|| self.declared(address))
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
