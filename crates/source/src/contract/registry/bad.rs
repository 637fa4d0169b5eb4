//! What is wrong with one instance.

use super::{GARBLED, Registered, RegistryRig, SILENCE, Started, Watched, cell, told};
use crate::contract::{Follower, Mirror};

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
    twins(rig, &mut watched).await;
    rig.deregister(&good).await;
    watched.tells("nothing", "good", None).await;
    watched.follower.stop().await;
    wrong_token(rig).await;
}

/// Two instances of one id are told, and one of them counts.
async fn twins(rig: &mut impl RegistryRig, watched: &mut Watched) {
    let what = "bad input: one id twice";
    let twin = Registered::new("good", "good-1", 8090).with("version", "v1");
    watched.follower.mirror.reports = 0;
    if !rig.add_twin(&twin).await {
        return cell(rig, what, "there is no way");
    }
    watched.follower.until(what, |mirror| !mirror.issues.is_empty()).await;
    watched.follower.rest(SILENCE).await;
    assert_eq!(watched.follower.mirror.reports, 1, "{what} is told once");
    assert_eq!(told(&watched.follower.mirror, "good", None).unwrap_or_default().len(), 1);
    rig.remove_twin(&twin).await;
    watched.all_is_well().await;
    watched.tells("the one that is left", "good", Some(&[(8081, "v1")])).await;
    cell(rig, what, "reported once");
}

async fn wrong_token(rig: &impl RegistryRig) {
    let Some((source, token)) = rig.with_wrong_token() else { return };
    let mut follower = Follower::start(source);
    follower.until("a refusal", |mirror| !mirror.issues.is_empty()).await;
    let issue = follower.mirror.issues.values().flatten().map(ToString::to_string).collect::<String>();
    assert!(issue.contains("is the token right?") && !issue.contains(token), "{issue}");
    assert!(!follower.mirror.ready, "what may not be seen is not nothing");
    follower.stop().await;
    cell(rig, "bad input: wrong token", "told without it");
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
        ("bad input: not UTF-8", bad("10.1.2.3", 8082).with("istio-host", &format!("{GARBLED}.example.com"))),
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
