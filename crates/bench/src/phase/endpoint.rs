//! One endpoint of one service gets another address, and again.

use super::Stage;
use crate::marks::{Marks, What};
use crate::measure::Measure;
use crate::shape::Phase;

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<Measure> {
    let cluster = stage.fleet.shared.names.id(stage.mesh.services[0].cluster().as_bytes());
    let meter = stage.meter()?;
    let mut singles = Vec::new();
    for _ in 0..stage.subject.shape.repeats {
        let stamp = stage.take_stamps(1);
        let marks = Marks::new(What::Endpoints([(cluster, 0)].into_iter().collect()), stamp, 1);
        stage.mesh.services[0].address = stamp;
        let made = stage.one_change(&marks, |s| s.folder.put_entry(&s.mesh, &s.mesh.services[0])).await?;
        singles.push(made);
    }
    stage.calm().await;
    stage.of_singles(meter, Phase::Endpoint, singles)
}
