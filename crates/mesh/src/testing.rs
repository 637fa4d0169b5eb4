use std::sync::Arc;

use pilot_base::{Host, Labels, Name, ObjectRef};
use pilot_model::{
    Created, ExportTo, Protocol, Registry, Resolution, Service, ServicePort, TrafficDistribution,
};

/// A service with one HTTP port, changed as the test needs it.
pub(crate) fn service(host: &str, namespace: &str, change: impl FnOnce(&mut Service)) -> Arc<Service> {
    let mut service = Service {
        host: Host::new(host),
        namespace: Name::new(namespace),
        name: Name::new(host),
        registry: Registry::External,
        resolution: Resolution::Static,
        ports: vec![ServicePort { name: Name::new("http"), number: 80, protocol: Protocol::Http }],
        cluster_addresses: [].into(),
        address: None,
        outer_addresses: Vec::new(),
        node_ports: None,
        mesh_external: false,
        export_to: ExportTo::default(),
        created: Created(0),
        labels: Labels::default(),
        selector: None,
        subject_alt_names: vec![],
        target_ports: [].into(),
        publish_not_ready: false,
        node_local: false,
        more_accounts: Vec::new(),
        auto_addresses: vec![],
        traffic_distribution: TrafficDistribution::Any,
        distribution_of_namespace: false,
        race_connect: false,
        external_name: None,
        aliases: Vec::new(),
        workload_ports: std::collections::BTreeMap::new(),
        object: ObjectRef::new("ServiceEntry", namespace, host),
    };
    change(&mut service);
    Arc::new(service)
}
