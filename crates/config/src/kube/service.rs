use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Host, Labels, Name};
use pilot_model::{
    ExportTo, Kind, NodePorts, Protocol, Registry, Resolution, Service, ServicePort, TrafficDistribution,
    WorkloadPort,
};
use serde::Deserialize;

use crate::ReadOptions;
use crate::check::Check;
use crate::kube::read_part;
use crate::object::Meta;
use crate::yaml::Node;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    spec: Spec,
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    load_balancer: LoadBalancer,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct LoadBalancer {
    ingress: Vec<Ingress>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Ingress {
    ip: String,
    hostname: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    #[serde(rename = "clusterIPs")]
    cluster_ips: Vec<String>,
    ports: Vec<Port>,
    selector: BTreeMap<String, String>,
    external_name: String,
    publish_not_ready_addresses: bool,
    #[serde(rename = "externalIPs")]
    external_ips: Vec<String>,
    traffic_distribution: Option<String>,
    internal_traffic_policy: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: String,
    port: u32,
    protocol: String,
    app_protocol: Option<String>,
    target_port: TargetPort,
    node_port: u32,
}

#[derive(Deserialize, Default)]
#[serde(untagged)]
enum TargetPort {
    Number(i64),
    Name(String),
    #[default]
    Missing,
}

pub(crate) fn decode(
    meta: &Meta,
    node: &Node<'_>,
    options: &ReadOptions,
    check: &mut Check<'_>,
) -> Option<Service> {
    let Object { spec, status } = read_part(node, check)?;
    let balanced = status.load_balancer.ingress.into_iter().filter(|_| spec.kind == "LoadBalancer");
    let balanced = balanced.map(|ingress| if ingress.ip.is_empty() { ingress.hostname } else { ingress.ip });
    let outer = balanced.chain(spec.external_ips).filter(|address| !address.is_empty());
    let outer_addresses: Vec<Name> = outer.map(Name::from).collect();
    let headless = spec.cluster_ip == "None";
    let external_name = (spec.kind == "ExternalName" && !spec.external_name.is_empty())
        .then(|| Host::new(&spec.external_name));
    let of_spec = spec.traffic_distribution.as_deref().and_then(TrafficDistribution::parse);
    let of_spec = of_spec.filter(|distribution| *distribution != TrafficDistribution::Any);
    let annotation = meta.annotations.get("networking.istio.io/traffic-distribution");
    let distribution = of_spec.or_else(|| annotation.and_then(|text| TrafficDistribution::parse(text)));
    let ips = if spec.cluster_ips.is_empty() { vec![spec.cluster_ip] } else { spec.cluster_ips };
    let addresses: Vec<Name> =
        ips.into_iter().filter(|ip| !ip.is_empty() && ip != "None").map(Name::from).collect();
    let node_ports = node_ports(meta, &spec.kind, &spec.ports, check);
    let mut ports = Vec::new();
    let mut workload_ports = BTreeMap::new();
    for (i, port) in spec.ports.into_iter().enumerate() {
        let number = check.port(format!("spec.ports[{i}].port"), port.port);
        let transport = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
        let protocol = Protocol::of_kube_port(transport, port.app_protocol.as_deref(), &port.name, number);
        let name = Name::from(port.name);
        let path = format!("spec.ports[{i}].targetPort");
        workload_ports.insert(name.clone(), workload_port(port.target_port, number, &path, check));
        ports.push(ServicePort { name, number, protocol });
    }
    let export = meta
        .annotations
        .get("networking.istio.io/exportTo")
        .map(|list| ExportTo::parse(list.split(',').map(str::trim).filter(|entry| !entry.is_empty())));
    let id = &meta.id;
    Some(Service {
        host: Host::new(&format!("{}.{}.svc.{}", id.name, id.namespace, options.domain)),
        namespace: id.namespace.clone(),
        name: id.name.clone(),
        registry: Registry::Kubernetes,
        resolution: if headless { Resolution::Passthrough } else { Resolution::Static },
        ports,
        address: addresses.first().cloned(),
        cluster_addresses: [(options.cluster.clone(), addresses)].into(),
        outer_addresses,
        node_ports,
        mesh_external: external_name.is_some(),
        export_to: export.unwrap_or_default(),
        created: meta.created,
        labels: meta.labels.clone(),
        selector: (!spec.selector.is_empty()).then(|| Labels::new(spec.selector)),
        subject_alt_names: listed(meta, "alpha.istio.io/canonical-serviceaccounts"),
        more_accounts: listed(meta, "alpha.istio.io/kubernetes-serviceaccounts"),
        target_ports: BTreeMap::new(),
        publish_not_ready: spec.publish_not_ready_addresses,
        node_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
        auto_addresses: Vec::new(),
        traffic_distribution: distribution.unwrap_or_default(),
        distribution_of_namespace: distribution.is_none(),
        race_connect: false,
        external_name,
        aliases: Vec::new(),
        workload_ports,
        object: id.object(Kind::Service),
    })
}

/// An annotation that is a list.
fn listed(meta: &Meta, annotation: &str) -> Vec<Name> {
    let text = meta.annotations.get(annotation).map(Name::as_str).unwrap_or_default();
    text.split(',').filter(|entry| !entry.is_empty()).map(Name::new).collect()
}

fn workload_port(target: TargetPort, number: u16, path: &str, check: &mut Check<'_>) -> WorkloadPort {
    match target {
        TargetPort::Number(0) | TargetPort::Missing => WorkloadPort::Number(number),
        TargetPort::Number(target) => {
            let target = u32::try_from(target).unwrap_or(u32::MAX);
            WorkloadPort::Number(check.port(path, target))
        }
        TargetPort::Name(name) if name.is_empty() => WorkloadPort::Number(number),
        TargetPort::Name(name) => WorkloadPort::Named(name.into()),
    }
}

/// A service that is a gateway on nodes says which, as JSON.
fn node_ports(meta: &Meta, kind: &str, ports: &[Port], check: &mut Check<'_>) -> Option<Arc<NodePorts>> {
    const NODES: &str = "traffic.istio.io/nodeSelector";
    let text = meta.annotations.get(NODES).filter(|_| kind == "NodePort")?;
    let labels = match text.as_str() {
        "" => BTreeMap::new(),
        text => serde_json::from_str::<BTreeMap<String, String>>(text).unwrap_or_else(|_| {
            let path = format!("metadata.annotations[{NODES}]");
            let why = "is not a JSON object of labels, such as {\"role\": \"edge\"}; all nodes count";
            check.leave_out(path, format!("{text:?} {why}"));
            BTreeMap::new()
        }),
    };
    let port = |port: &Port| Some((u16::try_from(port.port).ok()?, u16::try_from(port.node_port).ok()?));
    let ports = ports.iter().filter_map(port).filter(|(_, on_node)| *on_node > 0).collect();
    Some(Arc::new(NodePorts { nodes: Labels::new(labels), ports }))
}
