//! What is done to a server and its proxies: one file per phase.

mod churn;
pub(crate) mod cold;
mod endpoint;
mod overtake;
pub(crate) mod reconnect;
mod route;
mod service;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::sleep;

use crate::fleet::Fleet;
use crate::folder::Folder;
use crate::marks::Marks;
use crate::measure::{Measure, Meter, Subject, median};
use crate::mesh::Mesh;
use crate::recording::Recording;
use crate::server::{Candidate, Server};
use crate::shape::{Phase, Shape};

/// A server at work, the folder it follows and the proxies that follow it.
pub(crate) struct Stage {
    subject: Subject,
    mesh: Mesh,
    folder: Folder,
    server: Server,
    fleet: Fleet,
    /// The next mark that nobody has seen.
    next_stamp: u32,
}

/// What came of a run.
pub struct Outcome {
    pub measures: Vec<Measure>,
    /// What the first proxy was sent in the beginning.
    pub recording: Option<Recording>,
    /// The last reason why a stream ended, if one did.
    pub trouble: String,
}

/// A saturated istiod takes minutes for a thousand proxies.
const COLD_PATIENCE: Duration = Duration::from_secs(600);
/// With files a real istiod takes seconds for one change.
const CHANGE_PATIENCE: Duration = Duration::from_secs(60);
/// What a server does on its own after a start or a change is over by then.
const SETTLE: Duration = Duration::from_secs(2);

/// Does everything that a shape asks for to one server, in a folder for scratch.
pub async fn run(
    name: &str,
    shape: &Shape,
    candidate: &Candidate,
    scratch: &Path,
) -> anyhow::Result<Outcome> {
    let subject =
        Subject { shape_name: name.to_owned(), shape: shape.clone(), server: candidate.name().to_owned() };
    let mesh = Mesh::new(shape);
    let folder = Folder::create(scratch, &mesh.files())?;
    let mut server = Server::start(candidate, folder.path(), &scratch.join("home")).await?;
    sleep(SETTLE).await;
    let mut measures = Vec::new();
    if shape.has(Phase::Start) {
        measures.push(Measure::of_start(&subject, &server)?);
    }
    let (fleet, cold) = cold::run(&subject, &mesh, &mut server).await?;
    measures.extend(cold);
    let recording = fleet.take_recording();
    let next_stamp = u32::try_from(shape.services).unwrap_or(u32::MAX);
    let mut stage = Stage { subject, mesh, folder, server, fleet, next_stamp };
    let changed = stage
        .changes()
        .await
        .with_context(|| format!("{}: {}", candidate.name(), stage.fleet.last_trouble()));
    let trouble = stage.fleet.last_trouble();
    stage.fleet.leave().await;
    stage.server.stop().await?;
    measures.extend(changed?);
    Ok(Outcome { measures, recording, trouble })
}

impl Stage {
    async fn changes(&mut self) -> anyhow::Result<Vec<Measure>> {
        let shape = self.subject.shape.clone();
        let mut measures = Vec::new();
        if shape.has(Phase::Endpoint) {
            measures.push(endpoint::run(self).await?);
        }
        if shape.has(Phase::Route) {
            measures.push(route::run(self).await?);
        }
        if shape.has(Phase::Overtake) {
            measures.push(overtake::run(self).await?);
        }
        if shape.has(Phase::Service) {
            measures.extend(service::run(self).await?);
        }
        if shape.has(Phase::Churn) {
            for churn in &shape.churn {
                measures.push(churn::run(self, *churn).await?);
            }
        }
        if shape.has(Phase::Reconnect) {
            measures.push(reconnect::run(self).await?);
        }
        Ok(measures)
    }

    fn take_stamps(&mut self, count: usize) -> u32 {
        let first = self.next_stamp;
        self.next_stamp += u32::try_from(count).unwrap_or(u32::MAX);
        first
    }

    /// Lets answers of proxies arrive, which belong to the cost of a change.
    async fn calm(&self) {
        self.fleet.until_quiet(SETTLE / 10, SETTLE).await;
    }

    fn meter(&mut self) -> anyhow::Result<Meter> {
        Meter::start(Some(&mut self.server.process), Some(&self.fleet))
    }

    fn measured(&mut self, meter: Meter, phase: Phase) -> anyhow::Result<Measure> {
        meter.stop(&self.subject, phase, Some(&mut self.server.process), &self.fleet)
    }

    /// Makes one change and waits until everybody has it: delays, and how many do not.
    async fn one_change(
        &mut self,
        marks: &Arc<Marks>,
        change: impl FnOnce(&Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<(Vec<u32>, usize)> {
        let expected = self.fleet.follow(marks);
        marks.made(0, self.fleet.shared.stopwatch.now());
        change(self)?;
        self.fleet.until(CHANGE_PATIENCE, |_| marks.arrived() >= expected).await;
        Ok(self.fleet.take_delays())
    }

    /// Single changes, one after the other: the cost of one, the median of when the last proxy had it.
    fn of_singles(
        &mut self,
        meter: Meter,
        phase: Phase,
        singles: Vec<(Vec<u32>, usize)>,
    ) -> anyhow::Result<Measure> {
        let measure = self.measured(meter, phase)?;
        let count = singles.len().max(1);
        let last =
            singles.iter().filter_map(|(delays, _)| delays.last()).map(|last| f64::from(*last) / 1_000.0);
        let last_ms = median(last.collect());
        let missing = singles.iter().map(|(_, missing)| *missing).max().unwrap_or(0);
        let mut delays: Vec<u32> = singles.into_iter().flat_map(|(delays, _)| delays).collect();
        delays.sort_unstable();
        let each = |all: f64| all / count as f64;
        Ok(Measure {
            changes: count,
            cpu_ms: measure.cpu_ms.map(each),
            received_mb: each(measure.received_mb),
            tool_cpu_ms: each(measure.tool_cpu_ms),
            last_ms,
            missing,
            ..measure.with_delays(&delays)
        })
    }
}
