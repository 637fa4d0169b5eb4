//! What is wrong with one instance.

use super::{Registered, RegistryRig, Started, Watched, cell, told};
use crate::contract::Mirror;

/// What is wrong with an instance is told once, under the name of the source; everything else flows, and its siblings
/// stay where they are.
pub async fn check_bad(rig: &mut impl RegistryRig) {
    let mut watched = Watched::start(rig, rig.server());
    if rig.started() == Started::WithSource {
        watched.follower.until("that there is nothing", |mirror| mirror.ready).await;
    }
    let good = Registered::new("good", "good-1", 8081).with("version", "v1");
    rig.register(&good).await;
    watched.tells("what is right", "good", Some(&[(8081, "v1")])).await;
    for service in ["bad", "good"] {
        for (port, (what, bad)) in (9001..).zip(cases(service)) {
            let seen = one_is_bad(rig, &mut watched, (what, &bad, port)).await;
            if service == "good" {
                cell(rig, what, seen);
            }
        }
    }
    let own =
        Registered::new("good", "good-3", 8083).with("version", "v1").with("istio-host", "own.example.com");
    rig.register(&own).await;
    watched.tells("a host of its own", "own", Some(&[(8083, "v1")])).await;
    watched.tells("its sibling where it was", "good", Some(&[(8081, "v1")])).await;
    rig.deregister(&own).await;
    watched.tells("that it is gone", "own", None).await;
    rig.deregister(&good).await;
    watched.tells("nothing", "good", None).await;
    watched.follower.stop().await;
}

/// Alone in its service, or beside a sibling with which nothing is wrong.
fn cases(service: &str) -> Vec<(&'static str, Registered)> {
    let bad = |address: &str, port: u16| {
        let address = address.to_owned();
        Registered { address, ..Registered::new(service, "bad-1", port).with("version", "v1") }
    };
    // Longer than metadata may be anywhere, for registries that allow much.
    let long = "x".repeat(1 << 20);
    vec![
        ("bad input: host name", bad("10.1.2.3", 8082).with("istio-host", "no host!")),
        ("bad input: address", bad("no address!", 8082)),
        ("bad input: port", bad("10.1.2.3", 0)),
        ("bad input: 1 MB of metadata", bad("10.1.2.3", 8082).with("notes", &long)),
    ]
}

async fn one_is_bad(
    rig: &mut impl RegistryRig,
    watched: &mut Watched,
    (what, bad, port): (&str, &Registered, u16),
) -> &'static str {
    let name = watched.name.clone();
    watched.follower.mirror.reports = 0;
    if !rig.try_register(bad).await {
        return "the registry refuses it";
    }
    let is_reported = |mirror: &Mirror| {
        let mut all = mirror.issues.values().flatten();
        let found = all.any(|issue| issue.to_string().starts_with(name.as_str()));
        found && mirror.ready
    };
    let later = Registered::new("later", "later-1", port).with("version", "v1");
    rig.register(&later).await;
    watched.tells(&format!("what comes after {what}"), "later", Some(&[(port, "v1")])).await;
    watched.follower.until(what, is_reported).await;
    let text: usize = watched.follower.mirror.issues.values().flatten().map(|i| i.to_string().len()).sum();
    assert!(text < 4096, "an issue is short, however long what it is about is: {text}");
    let good = told(&watched.follower.mirror, "good", None).unwrap_or_default();
    assert!(good.iter().any(|(port, _)| *port == 8081), "{what} takes no sibling along: {good:?}");
    rig.deregister(&later).await;
    watched.tells("that it is gone", "later", None).await;
    assert_eq!(watched.follower.mirror.reports, 1, "{what} is told once");
    rig.deregister(bad).await;
    watched.all_is_well().await;
    watched.tells("what is right", "good", Some(&[(8081, "v1")])).await;
    "reported once"
}
