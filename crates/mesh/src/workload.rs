//! Workloads that services select by their labels: WorkloadEntries and pods.

use std::collections::BTreeMap;

use pilot_base::{Labels, Name};
use pilot_model::{
    Address, Config, ConfigId, Endpoint, Health, Locality, Node, Pod, Protocol, Service, ServicePort,
    TlsSupport, WorkloadEntry, WorkloadPort,
};

/// Something that can be selected, before anybody says at which port.
#[derive(Clone, PartialEq, Debug)]
pub struct Selectable {
    /// The endpoint, without its port.
    pub endpoint: Endpoint,
    /// Where it listens for the service's port of a name.
    pub ports: BTreeMap<Name, u16>,
}

/// The order of workloads behind a service: pods before WorkloadEntries, then by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WorkloadId {
    /// With its cluster, as far as that is not ours.
    Pod(Name, Name),
    Entry(Name, Name),
}

/// Under what a workload is filed: its namespace, and one of its labels or none of them. Who selects by labels asks for
/// one of these and looks at what is found there.
pub type WorkloadKey = (Name, Option<(Name, Name)>);

impl Selectable {
    /// A WorkloadEntry that is known to be ill is none.
    pub fn of_entry(entry: &Config<WorkloadEntry>, cluster: &Name) -> Option<Self> {
        let checked = entry.annotations.get("proxy.istio.io/health-checks-enabled");
        let is_checked =
            checked.is_some_and(|on| matches!(on.as_str(), "true" | "True" | "TRUE" | "t" | "T" | "1"));
        if is_checked && entry.spec.is_healthy != Some(true) {
            return None;
        }
        let labels: Labels = entry.spec.labels.iter().chain(entry.labels.iter()).map(owned).collect();
        let name = entry
            .annotations
            .get("istio.io/autoRegistrationGroup")
            .or_else(|| entry.labels.get("service.istio.io/workload-name"))
            .unwrap_or(&entry.id.name);
        let endpoint = workload_endpoint(&entry.spec, labels, (name, &entry.id.namespace), cluster);
        Some(Self { endpoint, ports: entry.spec.ports.clone() })
    }

    /// A pod that can be called and has an address.
    pub fn of_pod(id: &ConfigId, pod: &Pod, node: Option<&Node>, cluster: &Name) -> Option<Self> {
        let (first, rest) = pod.ips.split_first().filter(|_| pod.ready)?;
        let tls = pod.labels.get("security.istio.io/tlsMode").map(|mode| TlsSupport::parse(mode));
        let endpoint = Endpoint {
            address: Address::parse(first),
            more_addresses: rest.iter().map(|ip| Address::parse(ip)).collect(),
            port: 0,
            port_name: Name::empty(),
            entry_port: None,
            labels: pod.labels.clone(),
            service_account: pod.service_account.clone(),
            locality: pod_locality(pod, node),
            network: pod.labels.get("topology.istio.io/network").cloned().unwrap_or_default(),
            cluster: cluster.clone(),
            weight: 1,
            tls: tls.unwrap_or_default(),
            health: Health::Healthy,
            workload: pod.workload.clone(),
            namespace: id.namespace.clone(),
            node: pod.node.clone(),
            dns_name: None,
        };
        Some(Self { endpoint, ports: pod.ports.clone() })
    }

    /// Every key under which somebody may look for it.
    pub fn keys(&self) -> impl Iterator<Item = WorkloadKey> {
        let namespace = &self.endpoint.namespace;
        let labels = self.endpoint.labels.iter().map(|label| (namespace.clone(), Some(owned(label))));
        labels.chain([(namespace.clone(), None)])
    }

    /// The key under which everything stands that a selector could select.
    pub fn key_of(namespace: &Name, selector: &Labels) -> WorkloadKey {
        (namespace.clone(), selector.iter().next().map(owned))
    }

    /// Only a cluster whose names are looked up can use an address that is none.
    pub(crate) fn needs_lookup(&self) -> bool {
        !matches!(&self.endpoint.address, Address::Ip(_))
            && !matches!(&self.endpoint.address, Address::Host(name) if name.is_empty())
    }
}

/// The endpoints of a Kubernetes service behind a workload outside Kubernetes that it selects.
pub fn workload_endpoints(service: &Service, workload: &Selectable) -> Vec<Endpoint> {
    if workload.needs_lookup() {
        return Vec::new();
    }
    let at = |port: &ServicePort| match service.workload_ports.get(&port.name)? {
        WorkloadPort::Number(number) => Some(workload.ports.get(&port.name).copied().unwrap_or(*number)),
        WorkloadPort::Named(name) => workload.ports.get(name).copied(),
    };
    let ports = service.ports.iter().filter(|port| port.protocol != Protocol::Udp);
    let each = ports.filter_map(|port| {
        let port_name = port.name.clone();
        Some(Endpoint { port: at(port)?, port_name, ..workload.endpoint.clone() })
    });
    each.collect()
}

fn owned((key, value): (&Name, &Name)) -> (Name, Name) {
    (key.clone(), value.clone())
}

/// An endpoint without its port.
pub(crate) fn workload_endpoint(
    entry: &WorkloadEntry,
    labels: Labels,
    (workload, namespace): (&Name, &Name),
    cluster: &Name,
) -> Endpoint {
    let tls = match labels.get("security.istio.io/tlsMode") {
        Some(mode) => TlsSupport::parse(mode),
        None if entry.service_account.is_empty() => TlsSupport::None,
        None => TlsSupport::Istio,
    };
    Endpoint {
        address: Address::parse(&entry.address),
        more_addresses: Vec::new(),
        port: 0,
        port_name: Name::empty(),
        entry_port: None,
        service_account: entry.service_account.clone(),
        locality: locality(entry, &labels),
        labels,
        network: entry.network.clone(),
        cluster: cluster.clone(),
        weight: entry.weight.max(1),
        tls,
        health: Health::Unknown,
        workload: workload.clone(),
        namespace: namespace.clone(),
        node: Name::empty(),
        dns_name: None,
    }
}

/// The field, or a label, in which dots may stand for slashes.
fn locality(entry: &WorkloadEntry, labels: &Labels) -> Locality {
    if !entry.locality.is_empty() {
        return Locality::parse(&entry.locality);
    }
    let label = labels.get("topology.istio.io/locality").or_else(|| labels.get("istio-locality"));
    match label {
        Some(text) if text.contains('/') => Locality::parse(text),
        Some(text) => Locality::parse(&text.replace('.', "/")),
        None => Locality::default(),
    }
}

/// Where a pod is: where it says that it is, else where its node is.
pub fn pod_locality(pod: &Pod, node: Option<&Node>) -> Locality {
    let own = pod.labels.get("topology.istio.io/locality").or_else(|| pod.labels.get("istio-locality"));
    if let Some(own) = own.filter(|text| !text.is_empty()) {
        return Locality::parse(&if own.contains('/') { own.to_string() } else { own.replace('.', "/") });
    }
    let label =
        |key: &str| node.and_then(|node| node.labels.get(key)).filter(|value| !value.is_empty()).cloned();
    // Kubernetes called them otherwise once.
    let zone = label("topology.kubernetes.io/zone");
    let region = label("topology.kubernetes.io/region");
    Locality {
        region: region.or_else(|| label("failure-domain.beta.kubernetes.io/region")).unwrap_or_default(),
        zone: zone.or_else(|| label("failure-domain.beta.kubernetes.io/zone")).unwrap_or_default(),
        subzone: label("topology.istio.io/subzone").unwrap_or_default(),
    }
}
