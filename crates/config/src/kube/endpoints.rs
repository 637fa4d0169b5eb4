use pilot_base::Name;
use pilot_model::{Address, EndpointSlice, Health, PodSight, Protocol, SliceEndpoint, SlicePort};
use serde::Deserialize;

use crate::check::Check;
use crate::kube::read_part;
use crate::object::Meta;
use crate::yaml::Node;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Slice {
    address_type: String,
    endpoints: Vec<SliceItem>,
    ports: Vec<Port>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SliceItem {
    addresses: Vec<String>,
    conditions: Conditions,
    target_ref: Option<TargetRef>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TargetRef {
    kind: String,
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Port {
    name: String,
    port: Option<u32>,
    protocol: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Subsets {
    subsets: Vec<Subset>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Subset {
    addresses: Vec<SubsetAddress>,
    not_ready_addresses: Vec<SubsetAddress>,
    ports: Vec<Port>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SubsetAddress {
    ip: String,
    target_ref: Option<TargetRef>,
}

/// Slices with this label are those of services that several clusters have in common. They say again what others say.
const OF_CLUSTER_SET: &str = "multicluster.kubernetes.io/service-name";

/// `discovery.k8s.io/v1 EndpointSlice`: its fields stand at the top, and a label names the service.
pub(crate) fn decode_slice(meta: &Meta, node: &Node<'_>, check: &mut Check<'_>) -> Option<EndpointSlice> {
    if meta.labels.get(OF_CLUSTER_SET).is_some() {
        return None;
    }
    let slice: Slice = read_part(node, check)?;
    let Some(service) = meta.labels.get("kubernetes.io/service-name") else {
        check.reject(
            "metadata.labels",
            "kubernetes.io/service-name is missing: it says which service this is for",
        );
        return None;
    };
    let (ipv6, service) = (slice.address_type == "IPv6", service.clone());
    if slice.address_type == "FQDN" {
        check.warn("addressType", "endpoints that are names are not used; only IPv4 and IPv6 are");
        let pods = PodSight::Clear;
        return Some(EndpointSlice { service, ipv6, ports: Vec::new(), endpoints: Vec::new(), pods });
    }
    let mut endpoints = Vec::new();
    for (i, item) in slice.endpoints.into_iter().enumerate() {
        let health = health(&item.conditions);
        let addresses = addresses(&item.addresses, &format!("endpoints[{i}].addresses"), check);
        if addresses.is_empty() {
            continue;
        }
        endpoints.push(SliceEndpoint { addresses, health, pod: pod(item.target_ref) });
    }
    let ports = ports(slice.ports, "ports", check);
    Some(EndpointSlice { service, ipv6, ports, endpoints, pods: PodSight::Clear })
}

/// `v1 Endpoints`: named like its service; each subset is what a slice is.
pub(crate) fn decode_endpoints(
    meta: &Meta,
    node: &Node<'_>,
    check: &mut Check<'_>,
) -> Option<Vec<EndpointSlice>> {
    let subsets: Subsets = read_part(node, check)?;
    let mut slices = Vec::new();
    for (i, subset) in subsets.subsets.into_iter().enumerate() {
        let path = format!("subsets[{i}]");
        let mut endpoints = Vec::new();
        let ready = subset.addresses.into_iter().map(|a| (a, Health::Healthy));
        let all = ready.chain(subset.not_ready_addresses.into_iter().map(|a| (a, Health::Unhealthy)));
        for (address, health) in all {
            let addresses = addresses(&[address.ip], &format!("{path}.addresses"), check);
            if !addresses.is_empty() {
                let pod = pod(address.target_ref);
                endpoints.push(SliceEndpoint { addresses, health, pod });
            }
        }
        let ports = ports(subset.ports, &format!("{path}.ports"), check);
        let (service, pods) = (meta.id.name.clone(), PodSight::Clear);
        slices.push(EndpointSlice { service, ipv6: false, ports, endpoints, pods });
    }
    Some(slices)
}

/// Not said means ready. A terminating endpoint that still serves is drained, not dropped. One that is not ready and does
/// not say that it stays is about to end, as istiod has it; Kubernetes itself always says all three.
fn health(conditions: &Conditions) -> Health {
    let terminating = conditions.terminating.unwrap_or(true);
    let serving = conditions.serving.unwrap_or(true);
    match (conditions.ready.unwrap_or(true), serving, terminating) {
        (true, _, _) => Health::Healthy,
        (false, true, true) => Health::Draining,
        (false, false, true) => Health::Terminating,
        (false, ..) => Health::Unhealthy,
    }
}

fn addresses(texts: &[String], path: &str, check: &mut Check<'_>) -> Vec<Address> {
    let mut out = Vec::new();
    for text in texts {
        match Address::parse(text) {
            Address::Ip(ip) => out.push(Address::Ip(ip)),
            _ => check.leave_out(path, format!("{text:?} is not an IP address")),
        }
    }
    out
}

fn pod(target: Option<TargetRef>) -> Option<Name> {
    target.filter(|t| t.kind == "Pod").map(|t| t.name.into())
}

/// A port without a number is left out, as nothing can be called there: no pod has one of that name, or all of its ports
/// are meant.
fn ports(ports: Vec<Port>, path: &str, check: &mut Check<'_>) -> Vec<SlicePort> {
    let mut out = Vec::new();
    for (i, port) in ports.into_iter().enumerate() {
        let Some(given) = port.port else { continue };
        match u16::try_from(given) {
            Ok(number) if number > 0 => out.push(SlicePort {
                number,
                protocol: if port.protocol == "UDP" { Protocol::Udp } else { Protocol::Tcp },
                name: port.name.into(),
            }),
            _ => {
                let message = format!("{given} is not a port: it must be between 1 and 65535");
                check.leave_out(format!("{path}[{i}].port"), message);
            }
        }
    }
    out
}
