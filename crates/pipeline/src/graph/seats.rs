//! Who a proxy is, as far as the registry knows: its pod, or the workload at its address, lends it labels and a place.

use std::net::IpAddr;
use std::sync::Arc;

use pilot_base::{Host, Labels, Name, SharedMap, name};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::{EntryPlan, pod_locality};
use pilot_model::{Address, ConfigId, Endpoint, Locality, Pod, Proxy};

use super::inputs::Inputs;
use super::namespaces;
use super::pods::Pods;

const REGION: Name = name!("topology.kubernetes.io/region");
const ZONE: Name = name!("topology.kubernetes.io/zone");
const SUBZONE: Name = name!("topology.istio.io/subzone");
const CLUSTER: Name = name!("topology.istio.io/cluster");
const NODE: Name = name!("kubernetes.io/hostname");
const NETWORK: Name = name!("topology.istio.io/network");

/// A workload at an address.
#[derive(Clone, PartialEq)]
pub(super) struct Seat {
    labels: Labels,
}

/// The namespace, and who says that somebody is there.
type SeatKey = (Name, Host, ConfigId);

#[derive(Clone, Copy)]
pub(super) struct Seats {
    inputs: Inputs,
    pods: Pods,
    by_address: Table<IpAddr, SharedMap<SeatKey, Arc<Seat>>>,
}

impl Seats {
    pub(super) fn declare(
        graph: &mut Graph,
        inputs: Inputs,
        pods: Pods,
        entries: &Table<ConfigId, EntryPlan>,
    ) -> Self {
        let by_address = graph.group("workloads by address", |feeds| {
            feeds.from(entries, |id: &ConfigId, plan: &EntryPlan, out| {
                for (host, endpoints) in &plan.endpoints {
                    let (mut last, mut seats) = (None, Vec::new());
                    for endpoint in endpoints.iter() {
                        let Address::Ip(ip) = endpoint.address else { continue };
                        // One for each port, one after the other.
                        if last == Some(ip) {
                            continue;
                        }
                        last = Some(ip);
                        let seat = seat_like(endpoint, &mut seats);
                        out.emit(ip, (id.namespace.clone(), host.clone(), id.clone()), seat);
                    }
                }
            });
        });
        Self { inputs, pods, by_address }
    }

    /// The proxy with the labels and the locality that count for it, and its pod. What it says of itself counts where
    /// nobody else knows.
    pub(super) fn seated<'a>(&self, reader: &Reader<'a>, proxy: &Proxy) -> (Proxy, Option<&'a Pod>) {
        let mut out = proxy.clone();
        let options = reader.get(&self.inputs.options, &());
        if let Some(cluster) = options.and_then(|options| options.cluster_aliases.get(&out.cluster)) {
            out.cluster = cluster.clone();
        }
        let found = self.pods.of(reader, &out);
        let of_pod = found.as_ref().and_then(|(id, pod)| self.labels_of_pod(reader, &out, (id, *pod)));
        let known = of_pod.or_else(|| self.at_address(reader, &out).map(|seat| seat.labels.clone()));
        if let Some(known) = known {
            out.labels = over(&out.static_labels, owned(&known));
        }
        out.locality = locality_of(&out.labels).unwrap_or(out.locality);
        out.labels = with_place(&out);
        (out, found.map(|(_, pod)| pod))
    }

    /// The labels of a proxy's pod, and where it is among them. Only the proxy says on which node that is.
    fn labels_of_pod(
        &self,
        reader: &Reader<'_>,
        proxy: &Proxy,
        (id, pod): (&ConfigId, &Pod),
    ) -> Option<Labels> {
        let node = reader.get(&self.inputs.nodes, &id.beside(Name::empty(), pod.node.clone()));
        let Locality { region, zone, subzone } = pod_locality(pod, node);
        let address = pod.ips.first().map_or_else(|| Address::Host(Name::empty()), |ip| Address::parse(ip));
        let network = namespaces::network_map(reader, self.inputs, id)?.network_of(&pod.labels, &address);
        let cluster = namespaces::cluster_of(reader, self.inputs, id)?.clone();
        let place = [(REGION, region), (ZONE, zone), (SUBZONE, subzone), (CLUSTER, cluster)];
        let place = place.into_iter().chain([(NODE, proxy.node.clone())]);
        let place = place.chain(network.map(|network| (NETWORK, network)));
        Some(over(&pod.labels, place.filter(|(_, value)| !value.is_empty())))
    }

    fn at_address<'a>(&self, reader: &Reader<'a>, proxy: &Proxy) -> Option<&'a Seat> {
        let cluster = namespaces::cluster_key(reader, self.inputs, &proxy.cluster)?;
        let here = proxy.ips.iter().filter_map(|ip| reader.get(&self.by_address, ip)).flatten();
        // Addresses may be used in several clusters.
        let mut own =
            here.filter(|((namespace, _, id), _)| *namespace == proxy.namespace && id.cluster == cluster);
        own.next().map(|(_, seat)| &**seat)
    }
}

fn owned(labels: &Labels) -> impl Iterator<Item = (Name, Name)> {
    labels.iter().map(|(key, value)| (key.clone(), value.clone()))
}

/// Labels, and others that count more.
fn over(labels: &Labels, more: impl Iterator<Item = (Name, Name)>) -> Labels {
    owned(labels).chain(more).collect()
}

/// A seat for an endpoint: one that another has already, if it has the same labels and stands at the same place.
fn seat_like<'a>(endpoint: &'a Endpoint, seats: &mut Vec<(&'a Endpoint, Arc<Seat>)>) -> Arc<Seat> {
    /// Workloads of one host come in few versions and zones; who has more of them does not search all.
    const FEW: usize = 16;
    let is_like = |other: &Endpoint| {
        let Endpoint { labels, locality, cluster, node, network, .. } = other;
        (labels, locality, cluster) == (&endpoint.labels, &endpoint.locality, &endpoint.cluster)
            && (node, network) == (&endpoint.node, &endpoint.network)
    };
    if let Some((_, seat)) = seats.iter().find(|(other, _)| is_like(other)) {
        return Arc::clone(seat);
    }
    let seat = Arc::new(Seat { labels: labels_of(endpoint) });
    if seats.len() < FEW {
        seats.push((endpoint, Arc::clone(&seat)));
    }
    seat
}

/// The labels of an endpoint's workload, and where it is among them.
fn labels_of(endpoint: &Endpoint) -> Labels {
    let place = [REGION, ZONE, SUBZONE, CLUSTER, NODE, NETWORK];
    let place = place.into_iter().filter_map(|key| Some((key.clone(), endpoint.label(&key)?.clone())));
    over(&endpoint.labels, place)
}

fn locality_of(labels: &Labels) -> Option<Locality> {
    let label = |key: &str| labels.get(key).cloned();
    let (region, zone, subzone) = (label(&REGION), label(&ZONE), label(&SUBZONE));
    if region.is_some() || zone.is_some() || subzone.is_some() {
        let or_empty = Option::unwrap_or_default;
        return Some(Locality { region: or_empty(region), zone: or_empty(zone), subzone: or_empty(subzone) });
    }
    let whole = label("topology.istio.io/locality").or_else(|| label("istio-locality"));
    whole.filter(|text| !text.is_empty()).map(|text| Locality::parse(&text))
}

fn with_place(proxy: &Proxy) -> Labels {
    let Locality { region, zone, subzone } = &proxy.locality;
    let own_network = proxy.labels.get(&NETWORK).filter(|network| !network.is_empty());
    let place = [
        (REGION, region),
        (ZONE, zone),
        (SUBZONE, subzone),
        (CLUSTER, &proxy.cluster),
        (NODE, &proxy.node),
        (NETWORK, own_network.unwrap_or(&proxy.network)),
    ];
    let place = place.into_iter().filter(|(_, value)| !value.is_empty());
    over(&proxy.labels, place.map(|(key, value)| (key, value.clone())))
}
