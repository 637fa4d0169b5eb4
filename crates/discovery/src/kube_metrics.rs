//! What is counted of API servers, in the exposition format of Prometheus and under istiod's names.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pilot_model::Kind;
use pilot_source::{ClusterStates, Sync};
use pilot_source_kube::{Heard, RULES, Tally};

/// What there is to tell of the clusters that are followed.
pub(crate) fn text(tally: &Tally, clusters: &ClusterStates) -> String {
    let mut families = BTreeMap::<&str, Vec<String>>::new();
    let mut sample = |name: &'static str, labels: &[(&str, &str)], value: u64| {
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        families.entry(name).or_default().push(format!("{name}{{{}}} {value}", labels.join(",")));
    };
    for (heard, times) in tally.all() {
        match heard {
            Heard::Object(kind, became) => {
                let (name, kind) = event(kind);
                sample(name, &[("event", became.as_str()), ("type", kind)], times);
            }
            Heard::Secret(became) => sample(SECRETS, &[("event", became.as_str())], times),
            Heard::Late(cluster) => sample(TIMEOUTS, &[("cluster", &cluster)], times),
        }
    }
    let clusters = clusters.borrow().clone();
    let others = clusters.iter().filter(|cluster| !cluster.secret.is_empty());
    let home = clusters.len() - others.clone().count();
    sample(CLUSTERS, &[("cluster_type", "local")], home as u64);
    sample(CLUSTERS, &[("cluster_type", "remote")], others.clone().count() as u64);
    for cluster in others {
        for sync in [Sync::Synced, Sync::Syncing, Sync::Timeout, Sync::Closed] {
            let labels = [("cluster", &*cluster.id), ("cluster_type", "remote"), ("status", sync.as_str())];
            sample(SYNC, &labels, u64::from(cluster.sync == sync));
        }
    }
    let mut out = String::new();
    for (name, kind, help) in FAMILIES {
        if let Some(samples) = families.get(name) {
            // Writing to memory does not fail.
            let _written =
                writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{}", samples.join("\n"));
        }
    }
    out
}

const RULE_EVENTS: &str = "pilot_k8s_cfg_events";
const REGISTRY_EVENTS: &str = "pilot_k8s_reg_events";
const CLUSTERS: &str = "istiod_managed_clusters";
const SYNC: &str = "istiod_remote_cluster_sync_status";
const SECRETS: &str = "remote_cluster_secret_events_total";
const TIMEOUTS: &str = "remote_cluster_sync_timeouts_total";
const FAMILIES: [(&str, &str, &str); 6] = [
    (CLUSTERS, "gauge", "Clusters that are followed."),
    (SYNC, "gauge", "How far other clusters are known."),
    (RULE_EVENTS, "counter", "Rules that API servers told of."),
    (REGISTRY_EVENTS, "counter", "Other objects that API servers told of."),
    (SECRETS, "counter", "Secrets that say how other clusters are reached."),
    (TIMEOUTS, "counter", "Other clusters that were not waited for any longer."),
];

/// Which family counts a kind, and under which name.
fn event(kind: Kind) -> (&'static str, &'static str) {
    let name = match kind {
        Kind::Service => "Services",
        Kind::Pod => "Pods",
        Kind::Node => "Nodes",
        Kind::Namespace => "Namespaces",
        kind => kind.name(),
    };
    let is_rule = RULES.iter().any(|(rule, ..)| *rule == kind);
    (if is_rule { RULE_EVENTS } else { REGISTRY_EVENTS }, name)
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;
    use pilot_source::{ClusterState, Sync};
    use pilot_source_kube::Tally;

    use super::text;

    #[test]
    fn clusters_are_counted_in_istiods_words() {
        let state = |id: &str, secret: &str, sync| ClusterState {
            id: Name::new(id),
            secret: secret.to_owned(),
            sync,
        };
        let states = vec![state("here", "", Sync::Synced), state("a\"b", "s", Sync::Timeout)];
        let (_, clusters) = tokio::sync::watch::channel(states);
        let text = text(&Tally::default(), &clusters);
        for line in [
            "istiod_managed_clusters{cluster_type=\"local\"} 1",
            "istiod_managed_clusters{cluster_type=\"remote\"} 1",
            "istiod_remote_cluster_sync_status{cluster=\"a\\\"b\",cluster_type=\"remote\",status=\"timeout\"} 1",
            "istiod_remote_cluster_sync_status{cluster=\"a\\\"b\",cluster_type=\"remote\",status=\"synced\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(!text.contains("pilot_k8s"), "nothing was heard");
    }
}
