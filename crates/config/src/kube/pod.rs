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
    init_containers: Vec<Container>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    ports: Vec<ContainerPort>,
    restart_policy: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ContainerPort {
    name: String,
    container_port: u32,
    protocol: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
    conditions: Vec<Condition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PodIp {
    ip: String,
}

/// A pod that has failed is none any more.
pub(crate) fn decode(meta: &Meta, node: &Node<'_>, check: &mut Check<'_>) -> Option<Pod> {
    let Object { spec, status } = read_part(node, check)?;
    if status.phase == "Failed" {
        return None;
    }
    let ports = ports(spec.containers, spec.init_containers);
    let mut ips: Vec<Name> = status.pod_ips.into_iter().map(|ip| ip.ip.into()).collect();
    if ips.is_empty() && !status.pod_ip.is_empty() {
        ips.push(status.pod_ip.into());
    }
    let is_ready = status.conditions.iter().any(|c| c.kind == "Ready" && c.status == "True");
    let account = spec.service_account_name;
    let hostname = if spec.hostname.is_empty() { meta.id.name.to_string() } else { spec.hostname };
    let dns_name = (!spec.subdomain.is_empty()).then(|| Name::from(format!("{hostname}.{}", spec.subdomain)));
    Some(Pod {
        ready: is_ready && !ips.is_empty() && !meta.is_going && status.phase != "Succeeded",
        labels: meta.labels.clone(),
        annotations: meta.annotations.clone(),
        service_account: if account.is_empty() { Name::new("default") } else { account.into() },
        node: spec.node_name.into(),
        ips,
        workload: workload(meta),
        dns_name,
        ports,
    })
}

/// Of ports with one name the first counts, and those of what runs beside the containers come last.
fn ports(containers: Vec<Container>, init_containers: Vec<Container>) -> BTreeMap<Name, u16> {
    let beside = init_containers.into_iter().filter(|container| container.restart_policy == "Always");
    let named = |port: &ContainerPort| !port.name.is_empty() && matches!(port.protocol.as_str(), "" | "TCP");
    let mut out = BTreeMap::new();
    for port in containers.into_iter().chain(beside).flat_map(|container| container.ports).filter(named) {
        if let Ok(number) = u16::try_from(port.container_port) {
            out.entry(Name::from(port.name)).or_insert(number);
        }
    }
    out
}

/// What made the pod, unless a label says how to call it.
fn workload(meta: &Meta) -> Name {
    if let Some(name) = meta.labels.get("service.istio.io/workload-name") {
        return name.clone();
    }
    let Some(owner) = meta.owner.as_ref().filter(|owner| !owner.name.is_empty()) else {
        return meta.id.name.clone();
    };
    // The name of what a Deployment made ends in the hash of its template, that of a CronJob's in a time.
    let without = |label: &str| {
        let hash = meta.labels.get(label).filter(|hash| !hash.is_empty())?;
        owner.name.strip_suffix(&format!("-{hash}")).map(Name::new)
    };
    let found = match owner.kind.as_str() {
        "ReplicaSet" => without("pod-template-hash").or_else(|| without("rollouts-pod-template-hash")),
        "ReplicationController" => {
            meta.labels.get("deploymentconfig").cloned().filter(|name| !name.is_empty())
        }
        "Job" => owner.name.rsplit_once('-').and_then(|(name, time)| is_time(time).then(|| Name::new(name))),
        _ => None,
    };
    found.unwrap_or_else(|| Name::new(&owner.name))
}

fn is_time(text: &str) -> bool {
    (8..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}
