//! Who a proxy is, as far as the registry knows: the workload at its address lends it labels and a place.

use std::net::IpAddr;
use std::sync::Arc;

use pilot_base::{Host, Labels, Name, SharedMap, name};
use pilot_incr::{Graph, Reader, Table};
use pilot_mesh::EntryPlan;
use pilot_model::{Address, ConfigId, Endpoint, Locality, Pod, Proxy};

use super::inputs::Inputs;

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

/// The namespace, and who says that somebody is there: pods before ServiceEntries with a host.
type SeatKey = (Name, Option<Host>, ConfigId);

#[derive(Clone, Copy)]
pub(super) struct Seats {
    inputs: Inputs,
    by_address: Table<IpAddr, SharedMap<SeatKey, Arc<Seat>>>,
}

impl Seats {
    pub(super) fn declare(graph: &mut Graph, inputs: Inputs, entries: &Table<ConfigId, EntryPlan>) -> Self {
        let by_address = graph.group("workloads by address", |feeds| {
            feeds.from(&inputs.pods, |id: &ConfigId, pod: &Pod, out| {
                let seat = Arc::new(Seat { labels: pod.labels.clone() });
                for ip in pod.ips.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()) {
                    out.emit(ip, (id.namespace.clone(), None, id.clone()), Arc::clone(&seat));
                }
            });
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
                        out.emit(ip, (id.namespace.clone(), Some(host.clone()), id.clone()), seat);
                    }
                }
            });
        });
        Self { inputs, by_address }
    }

    /// The proxy with the labels and the locality that count for it.
    pub(super) fn seated(&self, reader: &Reader<'_>, proxy: &Proxy) -> Proxy {
        let mut out = proxy.clone();
        if let Some(seat) = self.seat(reader, proxy) {
            out.labels = seat.labels.clone();
        }
        out.locality = locality_of(&out.labels).unwrap_or(out.locality);
        out.labels = with_place(&out);
        out
    }

    /// Does somebody say who is at the proxy's address?
    pub(super) fn is_known(&self, reader: &Reader<'_>, proxy: &Proxy) -> bool {
        self.seat(reader, proxy).is_some()
    }

    fn seat<'a>(&self, reader: &Reader<'a>, proxy: &Proxy) -> Option<&'a Seat> {
        let options = reader.get(&self.inputs.options, &())?;
        let is_here = proxy.cluster.is_empty() || proxy.cluster == options.cluster;
        let cluster = if is_here { Name::empty() } else { proxy.cluster.clone() };
        let here = proxy.ips.iter().filter_map(|ip| reader.get(&self.by_address, ip)).flatten();
        // Addresses may be used in several clusters.
        let mut own =
            here.filter(|((namespace, _, id), _)| *namespace == proxy.namespace && id.cluster == cluster);
        own.next().map(|(_, seat)| &**seat)
    }
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
    endpoint.labels.iter().map(|(key, value)| (key.clone(), value.clone())).chain(place).collect()
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
    let own = proxy.labels.iter().map(|(key, value)| (key.clone(), value.clone()));
    own.chain(place.map(|(key, value)| (key, value.clone()))).collect()
}
