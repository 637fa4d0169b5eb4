//! A service comes, until everybody has its endpoints; then it goes, until nobody has its cluster.

use super::{SETTLE, Stage};
use crate::marks::{Marks, What};
use crate::measure::Measure;
use crate::shape::Phase;

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<Vec<Measure>> {
    let guest = stage.mesh.guest(0);
    let cluster = stage.fleet.shared.names.id(guest.cluster().as_bytes());
    let (mut comes, mut goes) = (Vec::new(), Vec::new());
    for _ in 0..stage.subject.shape.repeats {
        let meter = stage.meter()?;
        let marks = Marks::new(What::Present(cluster), 0, 1);
        let made = stage.one_change(&marks, |s| s.folder.put_entry(&s.mesh, &guest)).await?;
        stage.fleet.until_quiet(SETTLE / 4, SETTLE).await;
        comes.push(stage.of_singles(meter, Phase::Service, vec![made])?);

        let meter = stage.meter()?;
        let marks = Marks::new(What::Absent(cluster), 0, 1);
        let made = stage.one_change(&marks, |s| s.folder.remove_service(&guest)).await?;
        stage.fleet.until_quiet(SETTLE / 4, SETTLE).await;
        goes.push(stage.of_singles(meter, Phase::Service, vec![made])?);
    }
    Ok([("comes", comes), ("goes", goes)].into_iter().filter_map(|(what, all)| joined(what, all)).collect())
}

/// The one whose last proxy had it in the middle of all, with the mean of the costs.
fn joined(detail: &str, mut all: Vec<Measure>) -> Option<Measure> {
    all.sort_by(|a, b| a.last_ms.unwrap_or(f64::MAX).total_cmp(&b.last_ms.unwrap_or(f64::MAX)));
    let count = all.len();
    let cpu_ms = Some(all.iter().filter_map(|measure| measure.cpu_ms).sum::<f64>() / count as f64);
    let missing = all.iter().map(|measure| measure.missing).max()?;
    let middle = all.into_iter().nth(count / 2)?;
    Some(Measure { detail: detail.to_owned(), changes: count, cpu_ms, missing, ..middle })
}
