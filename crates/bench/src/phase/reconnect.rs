//! All streams close and come back with all they have, while nothing changes. Then one change must reach everybody.

use std::sync::atomic::Ordering;

use super::{CHANGE_PATIENCE, SETTLE, Stage, endpoint};
use crate::fleet::Fleet;
use crate::measure::Measure;
use crate::shape::Phase;

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<Measure> {
    let meter = stage.meter()?;
    let (delays, missing) = come_back(&stage.fleet).await;
    let measure = stage.measured(meter, Phase::Reconnect)?.with_delays(&delays);
    // Not part of the cost: does everybody still follow?
    let repeats = std::mem::replace(&mut stage.subject.shape.repeats, 1);
    let after = endpoint::run(stage).await?;
    stage.subject.shape.repeats = repeats;
    Ok(Measure { missing: missing.max(after.missing), ..measure })
}

/// Lets everybody come back: when each heard the last, in microseconds, and how many are not back.
pub(crate) async fn come_back(fleet: &Fleet) -> (Vec<u32>, usize) {
    let opened = |fleet: &Fleet| fleet.shared.counters.opened.load(Ordering::Relaxed);
    let (before, start) = (opened(fleet), fleet.shared.stopwatch.now());
    fleet.come_back(1, 0);
    let all = fleet.proxies.len() as u64;
    fleet.until(CHANGE_PATIENCE, |fleet| opened(fleet) >= before + all).await;
    fleet.until_quiet(SETTLE, CHANGE_PATIENCE).await;
    let heard = fleet.proxies.iter().map(|proxy| proxy.state.lock().last_message_at);
    let mut delays: Vec<u32> =
        heard.map(|at| u32::try_from(at.saturating_sub(start) / 1_000).unwrap_or(u32::MAX)).collect();
    delays.sort_unstable();
    let missing = all.saturating_sub(opened(fleet) - before) as usize;
    (delays, missing + fleet.proxies.len() - fleet.synced())
}
