use std::collections::BTreeMap;

use pilot_base::{Host, Labels, Name};
use pilot_model::{
    ExportTo, Kind, Protocol, Registry, Resolution, Service, ServicePort, TrafficDistribution,
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
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    name: String,
    port: u32,
    protocol: String,
    app_protocol: Option<String>,
}

pub(crate) fn decode(
    meta: &Meta,
    node: &Node<'_>,
    options: &ReadOptions,
    check: &mut Check<'_>,
) -> Option<Service> {
    let Object { spec } = read_part(node, check)?;
    let headless = spec.cluster_ip == "None";
    let external = spec.kind == "ExternalName";
    if external {
        check.warn("spec.type", "ExternalName is not supported yet: calls to it are not routed");
    }
    let ips = if spec.cluster_ips.is_empty() { vec![spec.cluster_ip] } else { spec.cluster_ips };
    let addresses: Vec<Name> =
        ips.into_iter().filter(|ip| !ip.is_empty() && ip != "None").map(Name::from).collect();
    let mut ports = Vec::new();
    for (i, port) in spec.ports.into_iter().enumerate() {
        let number = check.port(format!("spec.ports[{i}].port"), port.port);
        let transport = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
        let protocol = Protocol::of_kube_port(transport, port.app_protocol.as_deref(), &port.name, number);
        ports.push(ServicePort { name: port.name.into(), number, protocol });
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
        mesh_external: external,
        export_to: export.unwrap_or_default(),
        created: meta.created,
        labels: meta.labels.clone(),
        selector: (!spec.selector.is_empty()).then(|| Labels::new(spec.selector)),
        subject_alt_names: Vec::new(),
        target_ports: BTreeMap::new(),
        publish_not_ready: spec.publish_not_ready_addresses,
        auto_addresses: Vec::new(),
        traffic_distribution: TrafficDistribution::Any,
        race_connect: false,
        external_name: None,
        object: id.object(Kind::Service),
    })
}
