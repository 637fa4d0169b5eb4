//! Endpoints that have the client's labels first.

use std::collections::{BTreeMap, BTreeSet};

use pilot_base::{Labels, Name};
use pilot_model::Endpoint;

use super::Group;

const NETWORK: &str = "topology.istio.io/network";

/// Splits groups by how many of the labels, from the first on, an endpoint shares with the client.
pub(super) fn by_labels<'e>(groups: Vec<Group<'e>>, client: &Labels, labels: &[Name]) -> Vec<Group<'e>> {
    let mut out: Vec<Group<'e>> = groups.into_iter().flat_map(|group| split(group, client, labels)).collect();
    without_gaps(&mut out);
    out
}

fn split<'e>(group: Group<'e>, client: &Labels, labels: &[Name]) -> Vec<Group<'e>> {
    let mut by_priority: BTreeMap<u32, Group<'e>> = BTreeMap::new();
    let Group { message, members } = group;
    let locality = message.locality.clone();
    for (endpoint, told) in members.into_iter().zip(message.lb_endpoints) {
        let priority = priority(&endpoint, client, labels);
        let part = by_priority.entry(priority).or_insert_with(|| {
            let mut part = Group { message: Default::default(), members: Vec::new() };
            part.message.locality.clone_from(&locality);
            part.message.priority = priority;
            part
        });
        let weight = part.message.load_balancing_weight.unwrap_or(0);
        let own = told.load_balancing_weight.unwrap_or(0);
        part.message.load_balancing_weight = Some(weight.saturating_add(own));
        part.message.lb_endpoints.push(told);
        part.members.push(endpoint);
    }
    by_priority.into_values().collect()
}

fn priority(endpoint: &Endpoint, client: &Labels, labels: &[Name]) -> u32 {
    let lowest = u32::try_from(labels.len()).unwrap_or(u32::MAX);
    // Another network is worse than anything else, but what follows still counts within it.
    let by_network = labels.first().is_some_and(|label| label == NETWORK);
    let mut abroad = 0;
    for (at, label) in labels.iter().enumerate() {
        let (key, wanted) = match label.split_once('=') {
            Some((key, value)) if !value.contains('=') => (key, Some(value)),
            Some((key, _)) => (key, client.get(key).map(|v| v.as_str())),
            None => (label.as_str(), client.get(label).map(|v| v.as_str())),
        };
        if wanted.unwrap_or_default() == endpoint.label(key).map(|v| v.as_str()).unwrap_or_default() {
            continue;
        }
        if at == 0 && by_network {
            abroad = lowest;
            continue;
        }
        return abroad + lowest - u32::try_from(at).unwrap_or(0);
    }
    abroad
}

/// Envoy wants priorities without gaps.
pub(super) fn without_gaps(groups: &mut [Group<'_>]) {
    let used: BTreeSet<u32> = groups.iter().map(|group| group.message.priority).collect();
    for group in groups {
        let rank = used.iter().position(|priority| *priority == group.message.priority).unwrap_or(0);
        group.message.priority = u32::try_from(rank).unwrap_or(u32::MAX);
    }
}
