//! Proxies for a server that somebody else started, anywhere: what can be measured without changing what it knows.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use crate::compare::Lines;
use crate::measure::{Measure, Meter, Subject};
use crate::mesh::Mesh;
use crate::phase::{cold, reconnect};
use crate::proc::Process;
use crate::shape::{Phase, Shape};

/// Whom to load, and how.
pub struct Load {
    pub address: SocketAddr,
    /// Says who the proxies are, and which phases are wanted.
    pub shape: Shape,
    /// Where to keep what the first proxy is sent.
    pub record: Option<PathBuf>,
}

/// A server that takes longer to accept a connection is not there.
const PATIENCE: Duration = Duration::from_secs(5);

pub async fn run(load: &Load, lines: &Lines) -> anyhow::Result<Vec<Measure>> {
    load.shape.check()?;
    std::net::TcpStream::connect_timeout(&load.address, PATIENCE)
        .with_context(|| format!("nobody listens at {}; start the server first", load.address))?;
    let server = load.address.to_string();
    let subject = Subject { shape_name: "load".to_owned(), shape: load.shape.clone(), server };
    let mut process = Process::listening_at(load.address)
        .inspect_err(|error| eprintln!("   neither processor time nor memory can be told: {error}"))
        .ok();
    let meter = Meter::start(process.as_mut(), None)?;
    let fleet = cold::connect(&load.shape, &Mesh::new(&load.shape), load.address).await;
    let measure = meter.stop(&subject, Phase::Cold, process.as_mut(), &fleet)?;
    let mut measures = vec![cold::told(&fleet, measure)];
    if let Some(path) = &load.record {
        fleet.take_recording().context("a fleet has a first proxy")?.save(path)?;
    }
    if load.shape.has(Phase::Reconnect) {
        let meter = Meter::start(process.as_mut(), Some(&fleet))?;
        let (delays, missing) = reconnect::come_back(&fleet).await;
        let measure = meter.stop(&subject, Phase::Reconnect, process.as_mut(), &fleet)?.with_delays(&delays);
        measures.push(Measure { missing, ..measure });
    }
    if measures.iter().any(|measure| measure.missing > 0) {
        eprintln!("   some proxies did not get everything; {}", fleet.last_trouble());
    }
    fleet.leave().await;
    lines.tell(&measures)?;
    Ok(measures)
}
