//! Very many documents.

use std::net::SocketAddr;

use pilot_source::contract::{Follower, Mirror, Started, load_wanted, resident};

use super::{StoreRig, cell, one_row, values, write};

/// How long it takes to learn of very many, and what it costs; how many is said by `PILOT_LOAD`, such as `5000x10`, of
/// which the first number counts.
#[allow(clippy::disallowed_methods, reason = "a measurement, of which nothing depends")]
pub async fn check_store_load(rig: &mut impl StoreRig) {
    let (documents, _) = load_wanted();
    let server = rig.server().unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
    if rig.started() == Started::Before {
        fill(rig, documents).await;
    }
    let before = resident();
    let began = std::time::Instant::now();
    let mut follower = Follower::start(rig.source(server));
    if rig.started() == Started::WithSource {
        follower.until("that there is nothing", |mirror| mirror.ready).await;
        fill(rig, documents).await;
    }
    let complete = |mirror: &Mirror| mirror.ready && mirror.objects().count() >= documents;
    follower.until("all documents", complete).await;
    let (took, memory) = (began.elapsed(), resident().saturating_sub(before));
    cell(rig, &format!("{documents} documents: known after"), format_args!("{:.1} s", took.as_secs_f64()));
    cell(rig, &format!("{documents} documents: memory"), format_args!("{} MB", memory >> 20));
    follower.mirror.rows = 0;
    let began = std::time::Instant::now();
    write(rig, "rule-7", 1_000_000).await;
    follower.until("a change", |mirror| values(mirror)["rule-7"] == 1_000_000).await;
    let took = began.elapsed();
    one_row(&mut follower, "one change among many").await;
    let row = format!("{documents} documents: one change, one row");
    cell(rig, &row, format_args!("after {} ms", took.as_millis()));
    follower.stop().await;
}

async fn fill(rig: &mut impl StoreRig, documents: usize) {
    for (number, value) in (0..documents).zip(1..) {
        write(rig, &format!("rule-{number}"), value).await;
    }
}
