//! What Consul's HTTP interface answers, as far as it is used.

use std::collections::BTreeMap;

use pilot_source::{Instance, InstancePort};
use serde::Deserialize;

/// A check, in the list of all.
#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Check {
    #[serde(rename = "CheckID")]
    pub(crate) id: String,
    pub(crate) node: String,
    pub(crate) service_name: String,
    pub(crate) status: String,
}

/// A node, in the list of all.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Listed {
    pub(crate) node: String,
    #[serde(default)]
    pub(crate) modify_index: u64,
}

/// An instance of a service with its checks.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Entry {
    pub(crate) node: Node,
    pub(crate) service: Service,
    #[serde(default)]
    pub(crate) checks: Option<Vec<Check>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Node {
    pub(crate) node: String,
    pub(crate) address: String,
    #[serde(default)]
    pub(crate) datacenter: String,
    #[serde(default)]
    pub(crate) meta: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Service {
    #[serde(rename = "ID")]
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) address: String,
    pub(crate) port: u32,
    #[serde(default)]
    pub(crate) tags: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) meta: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pub(crate) weights: Weights,
    #[serde(default)]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) modify_index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Weights {
    passing: u32,
    warning: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Self { passing: 1, warning: 1 }
    }
}

impl Entry {
    /// Consul's own proxies and gateways are no instances of a service.
    pub(crate) fn is_instance(&self) -> bool {
        self.service.kind.is_empty()
    }

    pub(crate) fn instance(self) -> Instance {
        let Self { node, service, checks } = self;
        let status = worst(checks.as_deref().unwrap_or_default());
        let Weights { passing, warning } = service.weights;
        let weight = if status == Status::Warning { warning } else { passing };
        let node_meta = node.meta.unwrap_or_default();
        let mut metadata = BTreeMap::new();
        for tag in service.tags.unwrap_or_default() {
            match tag.split_once(['=', '|']) {
                Some((key, value)) => metadata.insert(key.to_owned(), value.to_owned()),
                None => metadata.insert(tag, "true".to_owned()),
            };
        }
        // What is said in a field of its own counts over tags.
        metadata.extend(service.meta.unwrap_or_default());
        let locality = metadata.get("locality").or_else(|| node_meta.get("locality")).cloned();
        Instance {
            // An id is unique only on its node.
            id: format!("{}/{}", node.node, service.id),
            address: if service.address.is_empty() { node.address } else { service.address },
            ports: vec![InstancePort { number: service.port, ..InstancePort::default() }],
            metadata,
            locality: locality.unwrap_or(node.datacenter),
            network: node_meta.get("network").cloned().unwrap_or_default(),
            weight,
            // Who has no weight while it warns is not to be called while it does.
            is_unhealthy: status == Status::Critical || (status == Status::Warning && weight == 0),
            ..Instance::default()
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Status {
    Passing,
    Warning,
    Critical,
}

/// Those of the node count as well; a node in maintenance has one that is critical.
fn worst(checks: &[Check]) -> Status {
    let status = |check: &Check| match check.status.as_str() {
        "passing" => Status::Passing,
        "warning" => Status::Warning,
        _ => Status::Critical,
    };
    checks.iter().map(status).max().unwrap_or(Status::Passing)
}

#[cfg(test)]
mod tests {
    use super::Entry;
    use serde_json::json;

    #[test]
    fn tags_meta_and_checks_make_an_instance() {
        let entry = |status: &str| {
            json!({
                "Node": {"Node": "n1", "Address": "10.0.0.9", "Datacenter": "dc1", "Meta": {"network": "net1"}},
                "Service": {"ID": "shop-1", "Address": "", "Port": 80, "Tags": ["primary", "version=v1", "zone|b"],
                    "Meta": {"version": "v2"}, "Weights": {"Passing": 10, "Warning": 1}},
                "Checks": [{"Status": "passing"}, {"Status": status}],
            })
        };
        let read = |status| serde_json::from_value::<Entry>(entry(status)).unwrap().instance();
        let instance = read("warning");
        assert_eq!(
            (instance.id.as_str(), instance.address.as_str(), instance.weight),
            ("n1/shop-1", "10.0.0.9", 1)
        );
        let labels: Vec<_> = instance.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(labels, ["primary=true", "version=v2", "zone=b"]);
        assert_eq!((instance.locality.as_str(), instance.network.as_str()), ("dc1", "net1"));
        assert!(read("critical").is_unhealthy && !read("passing").is_unhealthy);
    }
}
