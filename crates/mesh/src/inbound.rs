use std::net::IpAddr;
use std::sync::Arc;

use pilot_base::{Host, Labels, Name, ObjectRef};
use pilot_model::{
    CaptureMode, ConfigId, ConnectionPool, Created, DefaultEndpoint, ExportTo, IngressListener, Protocol,
    Registry, Resolution, ServerTls, Service, Sidecar, TrafficDistribution,
};

/// A port that a workload serves.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    pub service: Arc<Service>,
    /// The port by which clients call it.
    pub port: u16,
    pub protocol: Protocol,
    /// The port at which the workload listens.
    pub target_port: u16,
    /// Limits that a Sidecar sets, whatever rules say.
    pub pool: Option<ConnectionPool>,
    /// What a Sidecar says about it, if it is there because of one.
    pub ingress: Option<Ingress>,
}

/// An ingress listener, for one workload.
#[derive(Clone, PartialEq, Debug)]
pub struct Ingress {
    /// The Sidecar, in the namespace for which it counts.
    pub sidecar: ConfigId,
    /// Where to listen; everywhere if it is empty.
    pub bind: Option<Name>,
    pub capture: CaptureMode,
    /// Where the application listens, if not where it was called: an address or `unix://` and a path, and a port.
    pub endpoint: Option<(Name, u16)>,
    pub tls: Option<Arc<ServerTls>>,
    pub port_name: Name,
}

impl Target {
    /// What telemetry calls whoever serves the port.
    pub fn name(&self) -> String {
        match &self.ingress {
            Some(ingress) => format!("{}.{}", ingress.sidecar.name, ingress.sidecar.namespace),
            None => self.service.host.to_string(),
        }
    }
}

impl Target {
    /// What the Sidecar, or the service, calls the port.
    pub fn port_name(&self) -> &str {
        if let Some(ingress) = &self.ingress {
            return &ingress.port_name;
        }
        self.service.port(self.port).map(|port| port.name.as_str()).unwrap_or_default()
    }
}

/// The order in which services claim a workload's port: older first, then by host, and each as it lists its ports.
pub fn order_targets(targets: &mut [(usize, Target)]) {
    targets.sort_by(|(place, a), (other, b)| {
        let key = |t: &Target| (t.service.created, t.service.host.clone());
        (key(a), place, a.target_port).cmp(&(key(b), other, b.target_port))
    });
}

/// What a Sidecar has a workload with these addresses serve. `services` are the ports of services that it serves.
pub fn ingress_targets(
    sidecar: &Sidecar,
    id: &ConfigId,
    addresses: &[IpAddr],
    services: &[Target],
) -> Vec<Target> {
    let own =
        addresses.iter().find(|address| is_global(address)).map(|address| Name::from(address.to_string()));
    let target = |listener: &IngressListener| {
        let known = services.iter().find(|target| target.target_port == listener.port);
        Target {
            service: known.map_or_else(|| stand_in(id), |target| Arc::clone(&target.service)),
            port: listener.port,
            protocol: listener.protocol,
            target_port: listener.port,
            pool: pool_for(sidecar, listener.port),
            ingress: Some(Ingress {
                sidecar: id.clone(),
                bind: if listener.bind.is_empty() { own.clone() } else { Some(listener.bind.clone()) },
                capture: listener.capture,
                endpoint: listener.default_endpoint.as_ref().map(|to| endpoint(to, addresses)),
                tls: listener.tls.clone(),
                port_name: listener.port_name.clone(),
            }),
        }
    };
    sidecar.ingress.iter().map(target).collect()
}

/// Limits for a port that the workload serves.
pub fn pool_for(sidecar: &Sidecar, port: u16) -> Option<ConnectionPool> {
    let own = sidecar.ingress.iter().filter(|listener| listener.port == port);
    let mut own = own.filter_map(|listener| listener.connection_pool.clone());
    own.next().or_else(|| sidecar.inbound_connection_pool.clone())
}

/// Nobody registered the port, but whoever reads metrics wants a name.
pub fn stand_in(id: &ConfigId) -> Arc<Service> {
    Arc::new(Service {
        host: Host::new(&format!("{}.{}", id.name, id.namespace)),
        namespace: id.namespace.clone(),
        name: id.name.clone(),
        registry: Registry::External,
        resolution: Resolution::Static,
        ports: Vec::new(),
        cluster_addresses: std::collections::BTreeMap::new(),
        address: None,
        outer_addresses: Vec::new(),
        node_ports: None,
        mesh_external: true,
        export_to: ExportTo::default(),
        created: Created(0),
        labels: Labels::default(),
        selector: None,
        subject_alt_names: Vec::new(),
        target_ports: std::collections::BTreeMap::new(),
        publish_not_ready: false,
        node_local: false,
        more_accounts: Vec::new(),
        auto_addresses: Vec::new(),
        traffic_distribution: TrafficDistribution::default(),
        distribution_of_namespace: false,
        race_connect: false,
        external_name: None,
        aliases: Vec::new(),
        workload_ports: std::collections::BTreeMap::new(),
        object: ObjectRef::new("Sidecar", id.namespace.clone(), id.name.clone()),
    })
}

fn endpoint(to: &DefaultEndpoint, addresses: &[IpAddr]) -> (Name, u16) {
    let has = |v6: bool| addresses.iter().any(|address| address.is_ipv6() == v6);
    let localhost = |v6: bool| if v6 { "::1" } else { "127.0.0.1" };
    match to {
        DefaultEndpoint::Unix(path) => (Name::from(format!("unix://{path}")), 0),
        // The other family is better than none.
        DefaultEndpoint::Local { v6, port } => {
            let v6 = if has(*v6) || addresses.is_empty() { *v6 } else { !*v6 };
            (Name::new(localhost(v6)), *port)
        }
        DefaultEndpoint::Instance { v6, port } => {
            let own = addresses.iter().find(|address| address.is_ipv6() == *v6);
            (own.map_or_else(|| Name::new(localhost(*v6)), |address| Name::from(address.to_string())), *port)
        }
    }
}

/// Can others reach it under this address?
fn is_global(address: &IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}
