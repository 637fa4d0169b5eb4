use std::net::IpAddr;

use pilot_base::{FastSet, Labels, Name};
use pilot_model::{
    Address, Endpoint, EndpointSlice, Health, Locality, Node, Pod, PodSight, SliceEndpoint, SlicePort,
    TlsSupport,
};

use crate::workload::pod_locality;

/// What of its surroundings a slice depends on.
pub struct SliceSurroundings<'a> {
    /// Where the slice is.
    pub namespace: &'a Name,
    pub cluster: &'a Name,
    /// The pod of a name, and one that can be called at an address: both in the slice's namespace.
    pub pod: &'a dyn Fn(&Name) -> Option<&'a Pod>,
    pub pod_at: &'a dyn Fn(IpAddr) -> Option<&'a Pod>,
    pub node: &'a dyn Fn(&Name) -> Option<&'a Node>,
    /// Is an endpoint told with all addresses of its pod? Its service has addresses of both families then.
    pub dual_stack: &'a dyn Fn() -> bool,
}

/// The endpoints in a slice, with what their pods and nodes say about them; each address and port once.
pub fn kube_endpoints(slice: &EndpointSlice, around: &SliceSurroundings<'_>) -> Vec<Endpoint> {
    let mut out = Vec::new();
    let mut seen: FastSet<(&Address, &Name)> = FastSet::default();
    for endpoint in &slice.endpoints {
        let named = endpoint.pod.as_ref().map(|name| (around.pod)(name));
        // Nothing is said of a pod that is not there yet, but where nobody can see whether it is.
        if named.is_some_and(|pod| pod.is_none()) && slice.pods == PodSight::Clear {
            continue;
        }
        let whole = named.flatten().filter(|pod| pod.ips.len() > 1 && (around.dual_stack)());
        // The slice of the other family says the same pods again.
        if whole.is_some() && slice.ipv6 {
            continue;
        }
        for address in &endpoint.addresses {
            let pod = named.flatten().or_else(|| match address {
                // Somebody wrote the endpoint, who may have meant a pod all the same.
                Address::Ip(ip) => (around.pod_at)(*ip),
                Address::Host(_) | Address::Pipe(_) => None,
            });
            let ports = slice.ports.iter().filter(|port| seen.insert((address, &port.name)));
            let base = base(endpoint, address, (pod, whole), around);
            out.extend(ports.map(|port| at_port(&base, port)));
        }
    }
    out
}

fn at_port(base: &Endpoint, port: &SlicePort) -> Endpoint {
    Endpoint { port: port.number, port_name: port.name.clone(), ..base.clone() }
}

/// An endpoint without its port. `whole` is the pod whose addresses are told together.
fn base(
    endpoint: &SliceEndpoint,
    address: &Address,
    (pod, whole): (Option<&Pod>, Option<&Pod>),
    around: &SliceSurroundings<'_>,
) -> Endpoint {
    let labels = pod.map(|pod| pod.labels.clone()).unwrap_or_default();
    let all: Vec<Address> = whole.into_iter().flat_map(|pod| &pod.ips).map(|ip| Address::parse(ip)).collect();
    let (first, more) = all.split_first().map_or((address, &[][..]), |(first, more)| (first, more));
    // Where an endpoint is that is no pod is not known, whatever the slice says: so it is to istiod.
    let node = pod.map(|pod| pod.node.clone()).unwrap_or_default();
    let locality = pod.map_or_else(Locality::default, |pod| pod_locality(pod, (around.node)(&node)));
    Endpoint {
        address: first.clone(),
        more_addresses: more.to_vec(),
        port: 0,
        port_name: Name::empty(),
        entry_port: None,
        tls: tls(&labels),
        service_account: pod.map(|pod| pod.service_account.clone()).unwrap_or_default(),
        locality,
        network: labels.get("topology.istio.io/network").cloned().unwrap_or_default(),
        labels,
        cluster: around.cluster.clone(),
        weight: 1,
        health: endpoint.health,
        workload: pod.map(|pod| pod.workload.clone()).unwrap_or_default(),
        // Who it is is said by its pod.
        namespace: pod.map(|_| around.namespace.clone()).unwrap_or_default(),
        node,
        dns_name: pod.and_then(|pod| pod.dns_name.clone()),
    }
}

fn tls(labels: &Labels) -> TlsSupport {
    labels.get("security.istio.io/tlsMode").map(|mode| TlsSupport::parse(mode)).unwrap_or_default()
}

/// The order in which endpoints count that several slices say: one that can be called before others.
pub fn outranks(one: &Endpoint, other: &Endpoint) -> bool {
    one.health == Health::Healthy && other.health != Health::Healthy
}
