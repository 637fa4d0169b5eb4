use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Host, Labels, Name};
use pilot_model::{
    Address, Config, Endpoint, EntryEndpoint, Health, Kind, Locality, Location, Registry, Resolution,
    Service, ServiceEntry, ServicePort, TlsSupport,
};

/// What a ServiceEntry stands for.
#[derive(Clone, PartialEq, Debug)]
pub struct EntryPlan {
    /// One for each host and address.
    pub services: Vec<Arc<Service>>,
    /// The endpoints of each host.
    pub endpoints: Vec<(Host, Arc<[Endpoint]>)>,
}

pub fn expand_entry(entry: &Config<ServiceEntry>, cluster: &Name) -> EntryPlan {
    let spec = &entry.spec;
    let addresses: Vec<Option<Name>> = match &spec.addresses[..] {
        [] => vec![None],
        addresses => addresses.iter().cloned().map(Some).collect(),
    };
    let service = |host: &Host, address: &Option<Name>| Arc::new(service(entry, host, address.clone()));
    let services = spec
        .hosts
        .iter()
        .flat_map(|host| addresses.iter().map(move |address| service(host, address)))
        .collect();
    let shared: Arc<[Endpoint]> = listed_endpoints(entry, cluster).into();
    let endpoints = spec.hosts.iter().map(|host| {
        let own = if resolves_itself(spec) {
            host_endpoints(entry, host, cluster).into()
        } else {
            Arc::clone(&shared)
        };
        (host.clone(), own)
    });
    EntryPlan { services, endpoints: endpoints.collect() }
}

fn service(entry: &Config<ServiceEntry>, host: &Host, address: Option<Name>) -> Service {
    let spec = &entry.spec;
    let port = |port: &pilot_model::EntryPort| ServicePort {
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
    Service {
        host: host.clone(),
        namespace: entry.id.namespace.clone(),
        name: host.name().clone(),
        registry: Registry::External,
        resolution: spec.resolution,
        ports: spec.ports.iter().map(port).collect(),
        cluster_addresses: BTreeMap::new(),
        address,
        mesh_external: spec.location == Location::External,
        export_to: spec.export_to.clone(),
        created: entry.created,
        labels: entry.labels.clone(),
        selector: spec.workload_selector.clone(),
        subject_alt_names: spec.subject_alt_names.clone(),
        target_ports,
        publish_not_ready: false,
        object: entry.id.object(Kind::ServiceEntry),
    }
}

/// A name that the proxy looks up is its own endpoint when no other was given.
fn resolves_itself(spec: &ServiceEntry) -> bool {
    let by_name = matches!(spec.resolution, Resolution::Dns | Resolution::DnsRoundRobin);
    by_name && spec.endpoints.is_empty() && spec.workload_selector.is_none()
}

fn host_endpoints(entry: &Config<ServiceEntry>, host: &Host, cluster: &Name) -> Vec<Endpoint> {
    let of_port = |port: &pilot_model::EntryPort| Endpoint {
        address: Address::Host(host.name().clone()),
        more_addresses: Vec::new(),
        port: port.target_port.unwrap_or(port.number),
        port_name: port.name.clone(),
        labels: Labels::default(),
        service_account: Name::empty(),
        locality: Locality::default(),
        network: Name::empty(),
        cluster: cluster.clone(),
        weight: 1,
        tls: TlsSupport::None,
        health: Health::Healthy,
        workload: entry.id.name.clone(),
        namespace: entry.id.namespace.clone(),
        node: Name::empty(),
    };
    entry.spec.ports.iter().map(of_port).collect()
}

fn listed_endpoints(entry: &Config<ServiceEntry>, cluster: &Name) -> Vec<Endpoint> {
    let mut out = Vec::with_capacity(entry.spec.endpoints.len() * entry.spec.ports.len());
    for (i, endpoint) in entry.spec.endpoints.iter().enumerate() {
        let workload = Name::from(format!("{}-{i}", entry.id.name));
        let base = workload_endpoint(endpoint, workload, &entry.id.namespace, cluster);
        for port in &entry.spec.ports {
            let declared =
                endpoint.ports.get(&port.name).copied().or(port.target_port).unwrap_or(port.number);
            // A socket file has no port.
            let number = if matches!(base.address, Address::Pipe(_)) { 0 } else { declared };
            out.push(Endpoint { port: number, port_name: port.name.clone(), ..base.clone() });
        }
    }
    out
}

/// An endpoint without its port.
fn workload_endpoint(endpoint: &EntryEndpoint, workload: Name, namespace: &Name, cluster: &Name) -> Endpoint {
    let tls = match endpoint.labels.get("security.istio.io/tlsMode") {
        Some(mode) => TlsSupport::parse(mode),
        None if endpoint.service_account.is_empty() => TlsSupport::None,
        None => TlsSupport::Istio,
    };
    Endpoint {
        address: Address::parse(&endpoint.address),
        more_addresses: Vec::new(),
        port: 0,
        port_name: Name::empty(),
        labels: endpoint.labels.clone(),
        service_account: endpoint.service_account.clone(),
        locality: locality(endpoint),
        network: endpoint.network.clone(),
        cluster: cluster.clone(),
        weight: endpoint.weight.max(1),
        tls,
        health: Health::Healthy,
        workload,
        namespace: namespace.clone(),
        node: Name::empty(),
    }
}

/// The field, or an old label in which dots stand for slashes.
fn locality(endpoint: &EntryEndpoint) -> Locality {
    let label = || endpoint.labels.get("istio-locality").cloned().unwrap_or_default();
    let text = if endpoint.locality.is_empty() { label() } else { endpoint.locality.clone() };
    if text.contains('/') { Locality::parse(&text) } else { Locality::parse(&text.replace('.', "/")) }
}
