//! One route of a VirtualService gets another name, and again.

use super::Stage;
use crate::marks::{Marks, What};
use crate::measure::Measure;
use crate::shape::Phase;

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<Measure> {
    let (table, virtual_host) = stage.mesh.services[0].route_place();
    let table = stage.fleet.shared.names.id(table.as_bytes());
    let meter = stage.meter()?;
    let mut singles = Vec::new();
    for _ in 0..stage.subject.shape.repeats {
        let stamp = stage.take_stamps(1);
        let service = stage.mesh.services[0].name();
        let what = What::Route { table, virtual_host: virtual_host.clone().into(), service };
        let marks = Marks::new(what, stamp, 1);
        stage.mesh.services[0].route = stamp;
        let made = stage.one_change(&marks, |s| s.folder.put_rules(&s.mesh, &s.mesh.services[0])).await?;
        singles.push(made);
    }
    stage.calm().await;
    stage.of_singles(meter, Phase::Route, singles)
}
