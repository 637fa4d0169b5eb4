//! Endpoints change at a rate, service after service. Whoever keeps up has every change in the end; a newer one of the
//! same service counts for older ones.

use std::time::Duration;

use tokio::time::sleep;

use super::{CHANGE_PATIENCE, Stage};
use crate::marks::{Marks, What};
use crate::measure::Measure;
use crate::shape::{Churn, Phase};
use crate::stopwatch::Stopwatch;

pub(super) async fn run(stage: &mut Stage, churn: Churn) -> anyhow::Result<Measure> {
    let changing = stage.mesh.changing();
    let count = (churn.rate * churn.seconds) as usize;
    let names = &stage.fleet.shared.names;
    let cluster = |index: &usize| names.id(stage.mesh.services[*index].cluster().as_bytes());
    let clusters = changing.iter().map(cluster).zip(0..).collect();
    let first = stage.take_stamps(count);
    let marks = Marks::new(What::Endpoints(clusters), first, count);
    let expected = stage.fleet.follow(&marks);
    let meter = stage.meter()?;
    let watch = Stopwatch::start();
    for change in 0..count {
        let due = Duration::from_secs_f64(change as f64 / f64::from(churn.rate));
        // Whoever is late makes up for it.
        if let Some(early) = due.checked_sub(watch.elapsed()) {
            sleep(early).await;
        }
        let index = changing[change % changing.len()];
        stage.mesh.services[index].address = marks.stamp(change);
        marks.made(change, stage.fleet.shared.stopwatch.now());
        stage.folder.put_entry(&stage.mesh, &stage.mesh.services[index])?;
    }
    let achieved_rate = Some(count as f64 / watch.elapsed().as_secs_f64().max(f64::from(churn.seconds)));
    stage.fleet.until(CHANGE_PATIENCE, |_| marks.arrived() >= expected).await;
    let measure = stage.measured(meter, Phase::Churn)?;
    let (delays, missing) = stage.fleet.take_delays();
    let cpu_ms = measure.cpu_ms.map(|all| all / count.max(1) as f64);
    let detail = format!("{}/s", churn.rate);
    let measure = measure.with_delays(&delays);
    Ok(Measure { detail, changes: count, cpu_ms, missing, achieved_rate, ..measure })
}
