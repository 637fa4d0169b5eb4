//! A route of a VirtualService changes, which is a large push to everybody; while it is under way an endpoint gets another
//! address. What counts is when the endpoint arrives: word of one that is gone must not wait behind tables of routes.

use std::time::Duration;

use tokio::time::sleep;

use super::Stage;
use crate::marks::{Marks, What};
use crate::measure::Measure;
use crate::shape::Phase;

/// By then a server has begun to push, and with a hundred proxies none has ended.
const HEAD_START: Duration = Duration::from_millis(10);

pub(super) async fn run(stage: &mut Stage) -> anyhow::Result<Measure> {
    let cluster = stage.fleet.shared.names.id(stage.mesh.services[0].cluster().as_bytes());
    let meter = stage.meter()?;
    let mut singles = Vec::new();
    for _ in 0..stage.subject.shape.repeats {
        let route = stage.take_stamps(1);
        stage.mesh.services[0].route = route;
        stage.folder.put_rules(&stage.mesh, &stage.mesh.services[0])?;
        sleep(HEAD_START).await;
        let stamp = stage.take_stamps(1);
        let marks = Marks::new(What::Endpoints([(cluster, 0)].into_iter().collect()), stamp, 1);
        stage.mesh.services[0].address = stamp;
        let made = stage.one_change(&marks, |s| s.folder.put_entry(&s.mesh, &s.mesh.services[0])).await?;
        singles.push(made);
        stage.calm().await;
    }
    stage.of_singles(meter, Phase::Overtake, singles)
}
