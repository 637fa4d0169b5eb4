//! What must hold in settings about localities.

use std::collections::BTreeMap;

use pilot_api::networking as api;

use crate::check::Check;

const TOPOLOGY: [&str; 3] =
    ["topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"];

pub(crate) fn check(
    setting: &api::LocalityLoadBalancerSetting,
    outlier: Option<&api::OutlierDetection>,
    path: &str,
    check: &mut Check<'_>,
) {
    let at = |field: &str| format!("{path}.{field}");
    if !setting.distribute.is_empty() && !setting.failover.is_empty() {
        check.reject(path, "distribute and failover exclude each other");
    }
    let topology = setting.failover_priority.iter().position(|label| TOPOLOGY.contains(&label.as_str()));
    if let Some(i) = topology.filter(|_| !setting.failover.is_empty()) {
        check.reject(
            at(&format!("failoverPriority[{i}]")),
            "where regions fail over, labels for places cannot be compared too",
        );
    }
    for (i, rule) in setting.distribute.iter().enumerate() {
        let path = at(&format!("distribute[{i}].to"));
        if rule.to.values().any(|weight| !(1..=100).contains(weight)) {
            check.reject(&path, "a share is from 1 to 100");
        } else if rule.to.values().sum::<u32>() != 100 {
            check.reject(&path, format!("shares add up to {}, not to 100", rule.to.values().sum::<u32>()));
        }
        places(rule.to.keys().map(String::as_str), &path, check);
    }
    places(setting.distribute.iter().map(|rule| rule.from.as_str()), &at("distribute"), check);
    let fails_over = !setting.failover.is_empty() || !setting.failover_priority.is_empty();
    if fails_over && outlier.is_none() {
        check.warn(path, "failover needs outlierDetection: without it nobody finds out that a place is down");
    }
    for (i, rule) in setting.failover.iter().enumerate() {
        failover(&rule.from, &rule.to, &at(&format!("failover[{i}]")), check);
    }
}

pub(super) fn check_zone_aware(
    setting: &api::ZoneAwareLoadBalancerSetting,
    outlier: Option<&api::OutlierDetection>,
    path: &str,
    check: &mut Check<'_>,
) {
    let at = |field: &str| format!("{path}.{field}");
    for (i, label) in setting.failover_priority.iter().enumerate() {
        if TOPOLOGY.contains(&label.as_str()) {
            check.reject(at(&format!("failoverPriority[{i}]")), "places are compared anyway");
        }
    }
    let fails_over = !setting.failover.is_empty() || !setting.failover_priority.is_empty();
    if fails_over && outlier.is_none() {
        check.warn(path, "failover needs outlierDetection: without it nobody finds out that a place is down");
    }
    for (i, rule) in setting.failover.iter().enumerate() {
        failover(&rule.from, &rule.to, &at(&format!("failover[{i}]")), check);
    }
}

fn failover(from: &str, to: &str, path: &str, check: &mut Check<'_>) {
    if from == to {
        check.reject(path, "leads to the region it comes from");
    }
    if from.contains('/') || to.contains('/') {
        check.reject(path, "is between regions: zones cannot be named");
    }
    if from.contains('*') || to.contains('*') {
        check.reject(path, "is between two regions: wildcards cannot be given");
    }
}

/// Places, of which none may lie within one that stands before it.
fn places<'a>(places: impl Iterator<Item = &'a str>, path: &str, check: &mut Check<'_>) {
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    for place in places {
        let stars = place.matches('*').count();
        if stars > 1 || (stars == 1 && !place.ends_with('*')) {
            check.reject(path, format!("{place:?}: a wildcard stands at the end, and only once"));
            return;
        }
        let parts: Vec<&str> = place.splitn(3, '/').collect();
        if parts.iter().any(|part| part.is_empty()) {
            check.reject(path, format!("{place:?}: region, zone and sub-zone cannot be empty"));
            return;
        }
        // Without its wildcard a place covers everything that begins like it.
        let covers = place.trim_end_matches('*').trim_end_matches('/');
        let within = |inner: &str, outer: &str| {
            outer.is_empty()
                || inner == outer
                || inner.strip_prefix(outer).is_some_and(|r| r.starts_with('/'))
        };
        // A wider place may follow narrower ones, as the rest of a region; a whole region may not.
        let whole = parts.len() == 1;
        if let Some(other) = known.iter().find(|(k, _)| within(covers, k) || (whole && within(k, covers))) {
            check.reject(path, format!("{place:?} overlaps with {:?}", other.1));
            return;
        }
        known.insert(covers, place);
    }
}
