//! All proxies connect at once, and ask for everything.

use std::net::SocketAddr;
use std::time::Duration;

use super::COLD_PATIENCE;
use crate::fleet::Fleet;
use crate::measure::{Measure, Meter, Subject};
use crate::mesh::Mesh;
use crate::server::Server;
use crate::shape::{Phase, Shape};

/// A server that sends its first answer in several messages makes a proxy whole more than once; the last time counts.
const CALM: Duration = Duration::from_millis(300);

pub(super) async fn run(
    subject: &Subject,
    mesh: &Mesh,
    server: &mut Server,
) -> anyhow::Result<(Fleet, Option<Measure>)> {
    let meter = Meter::start(Some(&mut server.process), None)?;
    let fleet = connect(&subject.shape, mesh, server.grpc).await;
    let measure = meter.stop(subject, Phase::Cold, Some(&mut server.process), &fleet)?;
    let measure = subject.shape.has(Phase::Cold).then(|| told(&fleet, measure));
    Ok((fleet, measure))
}

/// Proxies that have everything, or have waited for it long enough.
pub(crate) async fn connect(shape: &Shape, mesh: &Mesh, server: SocketAddr) -> Fleet {
    let fleet = Fleet::launch(mesh, server, shape.proxies, |_| shape.protocol);
    let all = |fleet: &Fleet| fleet.synced() == fleet.proxies.len();
    while fleet.until(COLD_PATIENCE, all).await {
        if fleet.until_quiet(CALM, COLD_PATIENCE).await && all(&fleet) {
            break;
        }
    }
    fleet
}

/// The line with when each proxy had everything, and how many do not.
pub(crate) fn told(fleet: &Fleet, measure: Measure) -> Measure {
    let synced = fleet.proxies.iter().filter_map(|proxy| proxy.state.lock().synced_at);
    let mut delays: Vec<u32> = synced.map(|at| u32::try_from(at / 1_000).unwrap_or(u32::MAX)).collect();
    delays.sort_unstable();
    let missing = fleet.proxies.len() - delays.len();
    Measure { missing, ..measure.with_delays(&delays) }
}
