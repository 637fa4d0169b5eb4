use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Host, Labels, Name};
use pilot_model::{
    Address, Config, Endpoint, EntryPort, EntryVisibility, ExportTo, Health, Kind, Locality, Location,
    Registry, Resolution, Service, ServiceEntry, ServicePort, TlsSupport, TrafficDistribution,
};

use crate::workload::{Selectable, workload_endpoint};

/// What a ServiceEntry stands for.
#[derive(Clone, PartialEq, Debug)]
pub struct EntryPlan {
    /// One for each host and address.
    pub services: Vec<Arc<Service>>,
    /// The endpoints of each host.
    pub endpoints: Vec<(Host, Arc<[Endpoint]>)>,
    /// The rank of the registry that says it.
    pub rank: u16,
}

/// What of its surroundings a ServiceEntry depends on.
pub struct EntrySurroundings<'a> {
    /// The cluster that its endpoints count as part of.
    pub cluster: &'a Name,
    /// Annotations of its namespace.
    pub namespace: Option<&'a Labels>,
    /// How far its hosts may be seen at most, and by whom if it does not say.
    pub visibility: EntryVisibility,
    pub default_export: &'a ExportTo,
    /// Are addresses in the entry's status used?
    pub allocated: bool,
    /// What its selector selects, in order.
    pub workloads: Vec<Arc<Selectable>>,
}

pub fn expand_entry(entry: &Config<ServiceEntry>, around: &EntrySurroundings<'_>) -> EntryPlan {
    let spec = &entry.spec;
    let addresses: Vec<Option<Name>> = match &spec.addresses[..] {
        [] => vec![None],
        addresses => addresses.iter().cloned().map(Some).collect(),
    };
    let service =
        |host: &Host, address: &Option<Name>| Arc::new(service(entry, host, address.clone(), around));
    let services = spec
        .hosts
        .iter()
        .flat_map(|host| addresses.iter().map(move |address| service(host, address)))
        .collect();
    let shared: Arc<[Endpoint]> = match spec.workload_selector {
        Some(_) => selected_endpoints(spec, &around.workloads).into(),
        None => listed_endpoints(entry, around.cluster).into(),
    };
    // Every address is a service of its own, with the same endpoints again.
    let copies = addresses.len();
    let endpoints = spec.hosts.iter().map(|host| {
        let own: Arc<[Endpoint]> = if resolves_itself(spec) {
            host_endpoints(entry, host, around.cluster).into()
        } else {
            Arc::clone(&shared)
        };
        (host.clone(), repeated(own, if spec.resolution == Resolution::DnsRoundRobin { 1 } else { copies }))
    });
    let rank = spec.registry.as_ref().map_or(0, |registry| registry.rank);
    EntryPlan { services, endpoints: endpoints.collect(), rank }
}

fn repeated(endpoints: Arc<[Endpoint]>, times: usize) -> Arc<[Endpoint]> {
    if times == 1 {
        return endpoints;
    }
    std::iter::repeat_n(&endpoints, times).flat_map(|all| all.iter().cloned()).collect()
}

fn service(
    entry: &Config<ServiceEntry>,
    host: &Host,
    address: Option<Name>,
    around: &EntrySurroundings<'_>,
) -> Service {
    let spec = &entry.spec;
    let port = |port: &EntryPort| ServicePort {
        name: port.name.clone(),
        number: port.number,
        protocol: port.protocol,
    };
    let target_ports = match spec.resolution {
        Resolution::Passthrough => {
            spec.ports.iter().filter_map(|port| Some((port.number, port.target_port?))).collect()
        }
        _ => BTreeMap::new(),
    };
    let race = entry.annotations.get("istio.io/connect-strategy");
    Service {
        host: host.clone(),
        namespace: entry.id.namespace.clone(),
        name: host.name().clone(),
        registry: Registry::External,
        resolution: spec.resolution,
        ports: spec.ports.iter().map(port).collect(),
        cluster_addresses: BTreeMap::new(),
        address,
        outer_addresses: Vec::new(),
        node_ports: None,
        mesh_external: spec.location == Location::External,
        export_to: spec.export_to.within(around.visibility, around.default_export, &entry.id.namespace),
        created: entry.created,
        labels: entry.labels.clone(),
        selector: spec.workload_selector.clone(),
        subject_alt_names: spec.subject_alt_names.clone(),
        target_ports,
        publish_not_ready: false,
        node_local: false,
        more_accounts: Vec::new(),
        auto_addresses: if around.allocated { allocated(entry, host) } else { Vec::new() },
        traffic_distribution: distribution(&entry.annotations, around.namespace),
        distribution_of_namespace: false,
        race_connect: race.is_some_and(|how| how.eq_ignore_ascii_case("RACE_FIRST_TCP_CONNECT")),
        external_name: None,
        aliases: Vec::new(),
        workload_ports: BTreeMap::new(),
        object: entry.id.object(Kind::ServiceEntry),
    }
}

const TRAFFIC_DISTRIBUTION: &str = "networking.istio.io/traffic-distribution";

/// The service's own annotation, or its namespace's.
pub(crate) fn distribution(own: &Labels, namespace: Option<&Labels>) -> TrafficDistribution {
    let of =
        |labels: &Labels| labels.get(TRAFFIC_DISTRIBUTION).and_then(|text| TrafficDistribution::parse(text));
    of(own).or_else(|| namespace.and_then(of)).unwrap_or_default()
}

/// What a namespace prefers for services that say nothing themselves.
pub fn namespace_distribution(annotations: Option<&Labels>) -> TrafficDistribution {
    distribution(&Labels::default(), annotations)
}

/// The last IPv4 address that was allocated to a host, and the last IPv6 address.
fn allocated(entry: &Config<ServiceEntry>, host: &Host) -> Vec<Name> {
    let off = entry.labels.get("networking.istio.io/enable-autoallocate-ip");
    let off = off.is_some_and(|text| text.eq_ignore_ascii_case("false"));
    let spec = &entry.spec;
    if off || spec.resolution == Resolution::Passthrough || !spec.addresses.is_empty() {
        return Vec::new();
    }
    let of_host = || spec.auto_addresses.iter().filter(|(of, _)| of == host).map(|(_, ip)| ip);
    let v4 = of_host().rfind(|ip| ip.is_ipv4());
    let v6 = of_host().rfind(|ip| ip.is_ipv6());
    v4.into_iter().chain(v6).map(|ip| Name::from(ip.to_string())).collect()
}

/// A name that the proxy looks up is its own endpoint when no other was given.
fn resolves_itself(spec: &ServiceEntry) -> bool {
    let by_name = matches!(spec.resolution, Resolution::Dns | Resolution::DnsRoundRobin);
    by_name && spec.endpoints.is_empty() && spec.workload_selector.is_none()
}

fn host_endpoints(entry: &Config<ServiceEntry>, host: &Host, cluster: &Name) -> Vec<Endpoint> {
    let of_port = |port: &EntryPort| Endpoint {
        address: Address::Host(host.name().clone()),
        more_addresses: Vec::new(),
        port: port.target_port.unwrap_or(port.number),
        port_name: port.name.clone(),
        entry_port: Some(port.number),
        labels: Labels::default(),
        service_account: Name::empty(),
        locality: Locality::default(),
        network: Name::empty(),
        cluster: cluster.clone(),
        weight: 1,
        tls: TlsSupport::None,
        health: Health::Unknown,
        workload: entry.id.name.clone(),
        namespace: entry.id.namespace.clone(),
        node: Name::empty(),
        dns_name: None,
    };
    entry.spec.ports.iter().map(of_port).collect()
}

/// So many endpoints are looked at for one in the same place.
const NEAR: usize = 8;

fn listed_endpoints(entry: &Config<ServiceEntry>, cluster: &Name) -> Vec<Endpoint> {
    let mut out: Vec<Endpoint> = Vec::with_capacity(entry.spec.endpoints.len() * entry.spec.ports.len());
    for (i, endpoint) in entry.spec.endpoints.iter().enumerate() {
        let workload = Name::from(format!("{}-{i}", entry.id.name));
        let place = (&workload, &entry.id.namespace);
        let mut base = workload_endpoint(endpoint, endpoint.labels.clone(), place, cluster);
        // Endpoints are in few places, and there are many endpoints.
        if let Some(near) = out.iter().rev().take(NEAR).find(|other| other.locality == base.locality) {
            base.locality.clone_from(&near.locality);
        }
        let mut ports = at_ports(&base, &endpoint.ports, &entry.spec.ports);
        if entry.spec.registry.is_some() {
            // A registry says all ports that an instance has: it does not serve the others.
            ports.retain(|port| endpoint.ports.contains_key(&port.port_name));
        }
        out.extend(ports);
    }
    out
}

fn selected_endpoints(spec: &ServiceEntry, workloads: &[Arc<Selectable>]) -> Vec<Endpoint> {
    let looks_up = matches!(spec.resolution, Resolution::Dns | Resolution::DnsRoundRobin);
    let usable = workloads.iter().filter(|workload| looks_up || !workload.needs_lookup());
    usable.flat_map(|workload| at_ports(&workload.endpoint, &workload.ports, &spec.ports)).collect()
}

/// An endpoint for each port of a service: where the workload says, else where the service says.
fn at_ports(base: &Endpoint, own: &BTreeMap<Name, u16>, ports: &[EntryPort]) -> Vec<Endpoint> {
    let each = ports.iter().map(|port| {
        let declared = own.get(&port.name).copied().or(port.target_port).unwrap_or(port.number);
        // A socket file has no port.
        let number = if matches!(base.address, Address::Pipe(_)) { 0 } else { declared };
        let (port_name, entry_port) = (port.name.clone(), Some(port.number));
        Endpoint { port: number, port_name, entry_port, ..base.clone() }
    });
    each.collect()
}
