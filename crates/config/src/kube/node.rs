use pilot_base::Name;
use pilot_model::Node;
use serde::Deserialize;

use crate::check::Check;
use crate::kube::read_part;
use crate::object::Meta;
use crate::yaml;

#[derive(Deserialize, Default)]
#[serde(default)]
struct Object {
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    addresses: Vec<NodeAddress>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NodeAddress {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

pub(crate) fn decode(meta: &Meta, node: &yaml::Node<'_>, check: &mut Check<'_>) -> Option<Node> {
    let object: Object = read_part(node, check)?;
    let outer = |address: &NodeAddress| address.kind == "ExternalIP" && !address.address.is_empty();
    let outer_address = object.status.addresses.into_iter().find(outer);
    Some(Node {
        labels: meta.labels.clone(),
        outer_address: outer_address.map(|address| Name::from(address.address)),
    })
}
