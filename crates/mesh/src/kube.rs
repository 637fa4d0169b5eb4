use pilot_base::{Labels, Name};
use pilot_model::{
    Address, Endpoint, EndpointSlice, Health, Locality, Node, Pod, Protocol, SlicePort, TlsSupport,
};

use crate::workload::pod_locality;

/// The endpoints in a slice, with what their pods and nodes say about them.
pub fn kube_endpoints<'a>(
    slice: &EndpointSlice,
    namespace: &Name,
    cluster: &Name,
    pod: impl Fn(&Name) -> Option<&'a Pod>,
    node: impl Fn(&Name) -> Option<&'a Node>,
) -> Vec<Endpoint> {
    let mut out = Vec::new();
    for endpoint in &slice.endpoints {
        let expected = endpoint.pod.is_some();
        let pod = endpoint.pod.as_ref().and_then(&pod);
        if expected && pod.is_none() {
            continue;
        }
        // Where an endpoint is that is no pod is not known, whatever the slice says: so it is to istiod.
        let node_name = pod.map(|pod| pod.node.clone()).unwrap_or_default();
        let locality = pod.map(|pod| pod_locality(pod, node(&node_name))).unwrap_or_default();
        for address in &endpoint.addresses {
            for port in slice.ports.iter().filter(|port| port.protocol != Protocol::Udp) {
                let place = Place { address, port, locality: &locality, node: &node_name };
                out.push(self::endpoint(endpoint.health, pod, &place, namespace, cluster));
            }
        }
    }
    out
}

struct Place<'a> {
    address: &'a Address,
    port: &'a SlicePort,
    locality: &'a Locality,
    node: &'a Name,
}

fn endpoint(
    health: Health,
    pod: Option<&Pod>,
    place: &Place<'_>,
    namespace: &Name,
    cluster: &Name,
) -> Endpoint {
    let labels = pod.map(|pod| pod.labels.clone()).unwrap_or_default();
    Endpoint {
        address: place.address.clone(),
        more_addresses: Vec::new(),
        port: place.port.number,
        port_name: place.port.name.clone(),
        entry_port: None,
        tls: tls(&labels),
        service_account: pod.map(|pod| pod.service_account.clone()).unwrap_or_default(),
        locality: place.locality.clone(),
        network: labels.get("topology.istio.io/network").cloned().unwrap_or_default(),
        labels,
        cluster: cluster.clone(),
        weight: 1,
        health,
        workload: pod.map(|pod| pod.workload.clone()).unwrap_or_default(),
        // Who it is is said by its pod.
        namespace: pod.map(|_| namespace.clone()).unwrap_or_default(),
        node: place.node.clone(),
        dns_name: pod.and_then(|pod| pod.dns_name.clone()),
    }
}

fn tls(labels: &Labels) -> TlsSupport {
    labels.get("security.istio.io/tlsMode").map(|mode| TlsSupport::parse(mode)).unwrap_or_default()
}
