//! Does an object that is known say what somebody has written? What others add to it does not count, and neither does what
//! nobody reads.

use pilot_model::{
    Config, EndpointSlice, Namespace, Node, NodePorts, Pod, Secret, Service, ServiceEntry, WorkloadEntry,
};

/// Annotations that have a say in what proxies are sent and are no part of what was made of an object.
const OF_RULES: [&str; 5] = [
    "istio.io/autoRegistrationGroup",
    "istio.io/connect-strategy",
    "istio.io/dry-run",
    OF_NAMESPACES,
    "proxy.istio.io/health-checks-enabled",
];
const OF_NAMESPACES: &str = "networking.istio.io/traffic-distribution";

pub(super) fn rule<S: PartialEq>(known: &Config<S>, written: &Config<S>) -> bool {
    is_same_meta(known, written) && known.spec == written.spec
}

/// Addresses are allocated by whoever watches over them, unless they stand in the text.
pub(super) fn service_entry(known: &Config<ServiceEntry>, written: &Config<ServiceEntry>) -> bool {
    let mut spec = written.spec.clone();
    if spec.auto_addresses.is_empty() {
        spec.auto_addresses.clone_from(&known.spec.auto_addresses);
    }
    is_same_meta(known, written) && known.spec == spec
}

/// Health is told by agents, unless it stands in the text.
pub(super) fn workload_entry(known: &Config<WorkloadEntry>, written: &Config<WorkloadEntry>) -> bool {
    let mut spec = written.spec.clone();
    spec.is_healthy = spec.is_healthy.or(known.spec.is_healthy);
    is_same_meta(known, written) && known.spec == spec
}

/// Tools add labels to what they install.
fn is_same_meta<S>(known: &Config<S>, written: &Config<S>) -> bool {
    written.labels.subset_of(&known.labels)
        && OF_RULES.iter().all(|name| known.annotations.get(name) == written.annotations.get(name))
}

pub(super) fn secret(known: &Secret, written: &Secret) -> bool {
    known == written
}

/// All but the addresses, which the cluster gives, and what the mesh makes of it later.
pub(super) fn service(known: &Service, written: &Service) -> bool {
    let Service {
        host: _,
        namespace: _,
        name: _,
        registry: _,
        resolution,
        ports,
        cluster_addresses: _,
        address: _,
        outer_addresses,
        node_ports,
        mesh_external: _,
        export_to,
        created: _,
        labels,
        selector,
        subject_alt_names,
        more_accounts,
        target_ports,
        publish_not_ready,
        node_local,
        auto_addresses: _,
        traffic_distribution,
        distribution_of_namespace,
        race_connect,
        external_name,
        aliases: _,
        workload_ports,
        object: _,
    } = written;
    known.resolution == *resolution
        && known.ports == *ports
        && outer_addresses.iter().all(|address| known.outer_addresses.contains(address))
        && are_same_node_ports(known.node_ports.as_deref(), node_ports.as_deref())
        && known.export_to == *export_to
        && labels.subset_of(&known.labels)
        && known.selector == *selector
        && known.subject_alt_names == *subject_alt_names
        && known.more_accounts == *more_accounts
        && known.target_ports == *target_ports
        && known.publish_not_ready == *publish_not_ready
        && known.node_local == *node_local
        && known.traffic_distribution == *traffic_distribution
        && known.distribution_of_namespace == *distribution_of_namespace
        && known.race_connect == *race_connect
        && known.external_name == *external_name
        && known.workload_ports == *workload_ports
}

/// A port on nodes that nobody chose is chosen by the cluster.
fn are_same_node_ports(known: Option<&NodePorts>, written: Option<&NodePorts>) -> bool {
    match (known, written) {
        (Some(known), Some(written)) => {
            let is_known = |(port, on_node): (&u16, &u16)| known.ports.get(port) == Some(on_node);
            known.nodes == written.nodes && written.ports.iter().all(is_known)
        }
        (known, written) => known.is_none() && written.is_none(),
    }
}

pub(super) fn slice(known: &EndpointSlice, written: &EndpointSlice) -> bool {
    known == written
}

/// API servers add a label to every namespace.
pub(super) fn namespace(known: &Namespace, written: &Namespace) -> bool {
    let Namespace { labels, annotations, on_demand } = written;
    labels.subset_of(&known.labels)
        && known.annotations.get(OF_NAMESPACES) == annotations.get(OF_NAMESPACES)
        && known.on_demand == *on_demand
}

/// Nearly everything else that counts of a pod or a node is said by the cluster.
pub(super) fn pod(known: &Pod, written: &Pod) -> bool {
    written.labels.subset_of(&known.labels)
}

pub(super) fn node(known: &Node, written: &Node) -> bool {
    written.labels.subset_of(&known.labels)
}
