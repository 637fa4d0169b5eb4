use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_model::Pod;
use serde::Deserialize;

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
struct Spec {
    node_name: String,
    service_account_name: String,
    hostname: String,
    subdomain: String,
    containers: Vec<Container>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Container {
    ports: Vec<ContainerPort>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort {
    name: String,
    container_port: u32,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    #[serde(rename = "podIP")]
    pod_ip: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodIp {
    ip: String,
}

pub(crate) fn decode(meta: &Meta, node: &Node<'_>, check: &mut Check<'_>) -> Option<Pod> {
    let object: Object = read_part(node, check)?;
    let mut ports = BTreeMap::new();
    for port in object.spec.containers.into_iter().flat_map(|c| c.ports).filter(|p| !p.name.is_empty()) {
        if let Ok(number) = u16::try_from(port.container_port) {
            ports.insert(Name::from(port.name), number);
        }
    }
    let mut ips: Vec<Name> = object.status.pod_ips.into_iter().map(|ip| ip.ip.into()).collect();
    if ips.is_empty() && !object.status.pod_ip.is_empty() {
        ips.push(object.status.pod_ip.into());
    }
    let account = object.spec.service_account_name;
    let (hostname, subdomain) = (object.spec.hostname, object.spec.subdomain);
    let hostname = if hostname.is_empty() { meta.id.name.to_string() } else { hostname };
    Some(Pod {
        labels: meta.labels.clone(),
        annotations: meta.annotations.clone(),
        service_account: if account.is_empty() { Name::new("default") } else { account.into() },
        node: object.spec.node_name.into(),
        ips,
        workload: workload(meta),
        dns_name: (!subdomain.is_empty()).then(|| Name::from(format!("{hostname}.{subdomain}"))),
        ports,
    })
}

/// What made the pod. A ReplicaSet's name ends in its template's hash; what stands before is the Deployment's.
fn workload(meta: &Meta) -> Name {
    let Some(owner) = &meta.owner else { return meta.id.name.clone() };
    match (owner.kind.as_str(), meta.labels.get("pod-template-hash")) {
        ("ReplicaSet", Some(hash)) => match owner.name.strip_suffix(&format!("-{hash}")) {
            Some(deployment) => Name::new(deployment),
            None => Name::new(&owner.name),
        },
        _ => Name::new(&owner.name),
    }
}
