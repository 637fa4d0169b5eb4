use pilot_api::networking as api;
use pilot_model::WorkloadEntry;

use crate::check::Check;
use crate::de;
use crate::kinds::service_entry::{rules, workload};
use crate::yaml::Node;

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

pub(crate) fn decode(message: api::WorkloadEntry, check: &mut Check<'_>) -> WorkloadEntry {
    if message.address.is_empty() {
        if message.network.is_empty() {
            check.reject(
                "spec.address",
                "is missing; only a workload behind another network's gateway has none",
            );
        }
    } else if !rules::is_reachable(&message.address) {
        check.reject("spec.address", format!("{:?} is neither an IP nor a host name", message.address));
    }
    rules::endpoint(&message, None, "spec", check);
    workload(message, "spec", check)
}

/// What the last health check said.
pub(crate) fn health(status: &Node<'_>) -> Option<bool> {
    let status = de::read::<Status>(status, "status").ok()?.value;
    let healthy = status.conditions.into_iter().find(|condition| condition.kind == "Healthy")?;
    match healthy.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    }
}
