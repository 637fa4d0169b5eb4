//! Very many services.

use pilot_model::Object;

use super::{Registered, RegistryRig, Started, Watched, cell, told};
use crate::contract::Mirror;

/// How long it takes to learn of very many, and what it costs; how many is said by `PILOT_LOAD`, such as `5000x10`.
#[allow(clippy::disallowed_methods, reason = "a measurement, of which nothing depends")]
pub async fn check_load(rig: &mut impl RegistryRig) {
    let (services, instances) = load_wanted();
    let (started, server) = (rig.started(), rig.server());
    if started == Started::Before {
        rig.fill(services, instances).await;
    }
    let before = resident();
    let began = std::time::Instant::now();
    let mut watched = Watched::start(rig, server);
    if started == Started::WithSource {
        watched.follower.until("that there is nothing", |mirror| mirror.ready).await;
        rig.fill(services, instances).await;
    }
    let complete = |mirror: &Mirror| {
        let entries = mirror.objects().filter(|object| match object {
            Object::ServiceEntry(config) => config.spec.endpoints.len() == instances,
            _ => false,
        });
        mirror.ready && entries.count() >= services
    };
    watched.follower.until("all services", complete).await;
    let (took, memory) = (began.elapsed(), resident().saturating_sub(before));
    let row = |what: &str| format!("{services} x {instances}: {what}");
    cell(rig, &row("known after"), format_args!("{:.1} s", took.as_secs_f64()));
    cell(rig, &row("memory"), format_args!("{} MB", memory >> 20));
    watched.follower.mirror.rows = 0;
    let one = Registered::new("one-more", "one-more-1", 8081).with("version", "v1");
    let began = std::time::Instant::now();
    rig.register(&one).await;
    watched.tells("one more", "one-more", Some(&[(8081, "v1")])).await;
    let took = began.elapsed();
    watched.one_row("one change among many").await;
    cell(rig, &row("one change, one row"), format_args!("after {} ms", took.as_millis()));
    let more = Registered::new("svc-7", "svc-7-more", 8081).with("version", "v1");
    let began = std::time::Instant::now();
    rig.register(&more).await;
    let has_more = |mirror: &Mirror| {
        told(mirror, "svc-7", None).is_some_and(|all| all.iter().any(|(port, _)| *port == 8081))
    };
    watched.follower.until("an instance more", has_more).await;
    cell(rig, &row("an instance more"), format_args!("after {} ms", began.elapsed().as_millis()));
    watched.follower.stop().await;
}

/// How many services or documents, and how many instances of each.
#[allow(clippy::disallowed_methods, reason = "tests are told by the environment how much to do")]
pub fn load_wanted() -> (usize, usize) {
    let wanted = std::env::var("PILOT_LOAD").unwrap_or_default();
    let sizes = wanted.split_once('x').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    sizes.unwrap_or((200, 5))
}

/// Bytes of memory that this process has.
pub fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|count| count.parse::<usize>().ok()).unwrap_or_default() * 4096
}
