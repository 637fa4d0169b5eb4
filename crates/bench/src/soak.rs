//! Everything changes at random for a while, and proxies come and go. In the end each of them must have exactly what a
//! server that was started afresh on the same files sends, and the server must need no more memory than before.

mod turmoil;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::sleep;

use crate::fleet::Fleet;
use crate::folder::Folder;
use crate::mesh::Mesh;
use crate::resource::Kind;
use crate::server::{Candidate, Server};
use crate::shape::{Protocol, Shape};
use crate::stopwatch::Stopwatch;
use turmoil::Turmoil;

/// How long and how hard.
#[derive(Clone, Debug)]
pub struct Plan {
    pub shape: Shape,
    pub duration: Duration,
    /// Changes a second.
    pub rate: u32,
    /// Every second one proxy of so many comes back.
    pub turns: usize,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub changes: u64,
    /// Streams that were opened by proxies that came back.
    pub returns: u64,
    /// What proxies have that a fresh server would not send, or the other way round; the first of it.
    pub differences: Vec<String>,
    /// Memory of the server before the first change, at most, and after all was put back, in bytes.
    pub memory: [u64; 3],
    /// What the server had allocated before the first change, and after all was put back, if it tells.
    pub live: Option<[f64; 2]>,
}

impl Verdict {
    /// Is more allocated for the same mesh than before? Sets of names and bytes of responses come and go, so a tenth does
    /// not count.
    pub fn leaks(&self) -> bool {
        const SLACK: f64 = 4e6;
        self.live.is_some_and(|[before, after]| after > before * 1.1 + SLACK)
    }
}

const COLD_PATIENCE: Duration = Duration::from_secs(300);
/// A server may keep things back for some seconds, until proxies have accepted what comes before.
const EQUAL_PATIENCE: Duration = Duration::from_secs(60);
/// Allocators give memory back after some seconds.
const MEMORY_SETTLES: Duration = Duration::from_secs(10);
const PROGRESS: Duration = Duration::from_secs(30);

/// Runs a server through it. Half of the proxies speak each protocol.
pub async fn run(plan: &Plan, candidate: &Candidate, scratch: &Path) -> anyhow::Result<Verdict> {
    plan.shape.check()?;
    let mesh = Mesh::new(&plan.shape);
    let folder = Folder::create(scratch, &mesh.files())?;
    let server = Server::start(candidate, folder.path(), &scratch.join("home")).await?;
    let fleet = gather(&mesh, plan, &server).await?;
    let resting = MEMORY_SETTLES.min(plan.duration);
    sleep(resting).await;
    server.process.forget_peak()?;
    let (before, live_before) = (server.process.memory()?, server.live());
    let opened = fleet.shared.counters.read().opened;
    let mut turmoil = Turmoil::new(mesh.clone(), plan.shape.seed);
    churn(plan, &mut turmoil, &folder, &fleet).await?;
    let returns = fleet.shared.counters.read().opened.saturating_sub(opened);
    let peak = server.process.peak()?;
    let differences = compare(plan, candidate, &mesh, (&folder, &fleet), &scratch.join("fresh")).await?;
    turmoil.put_back(&folder)?;
    fleet.until_quiet(Duration::from_secs(2), EQUAL_PATIENCE).await;
    sleep(resting).await;
    let after = server.process.memory()?;
    let live = live_before.zip(server.live()).map(|(before, after)| [before, after]);
    fleet.leave().await;
    server.stop().await?;
    Ok(Verdict { changes: turmoil.changes(), returns, differences, memory: [before, peak, after], live })
}

async fn gather(mesh: &Mesh, plan: &Plan, server: &Server) -> anyhow::Result<Fleet> {
    let protocol = |index| if index % 2 == 0 { Protocol::Delta } else { Protocol::Sotw };
    let fleet = Fleet::launch(mesh, server.grpc, plan.shape.proxies, protocol);
    let all = fleet.until(COLD_PATIENCE, |fleet| fleet.synced() == fleet.proxies.len()).await;
    anyhow::ensure!(
        all,
        "only {} of {} proxies got everything: {}",
        fleet.synced(),
        fleet.proxies.len(),
        fleet.last_trouble()
    );
    Ok(fleet)
}

async fn churn(plan: &Plan, turmoil: &mut Turmoil, folder: &Folder, fleet: &Fleet) -> anyhow::Result<()> {
    let watch = Stopwatch::start();
    let (mut seconds, mut told) = (0, PROGRESS);
    while watch.elapsed() < plan.duration {
        turmoil.change(folder)?;
        let elapsed = watch.elapsed();
        if elapsed.as_secs() > seconds {
            seconds = elapsed.as_secs();
            fleet.come_back(plan.turns.clamp(1, fleet.proxies.len()), usize::try_from(seconds)?);
        }
        if elapsed >= told {
            told += PROGRESS;
            eprintln!("   {} s, {} changes, {} in sync", seconds, turmoil.changes(), fleet.synced());
        }
        let due = Duration::from_secs_f64(turmoil.changes() as f64 / f64::from(plan.rate.max(1)));
        if let Some(early) = due.checked_sub(watch.elapsed()) {
            sleep(early).await;
        }
    }
    Ok(())
}

/// What differs from a server that was started now. Servers are given time to tell the last.
async fn compare(
    plan: &Plan,
    candidate: &Candidate,
    mesh: &Mesh,
    (folder, fleet): (&Folder, &Fleet),
    home: &Path,
) -> anyhow::Result<Vec<String>> {
    let server = Server::start(candidate, folder.path(), home).await.context("the fresh server")?;
    let fresh = gather(mesh, plan, &server).await.context("at the fresh server")?;
    let watch = Stopwatch::start();
    let differences = loop {
        let differences = differences(fleet, &fresh);
        if differences.is_empty() || watch.elapsed() > EQUAL_PATIENCE {
            break differences;
        }
        sleep(Duration::from_millis(500)).await;
    };
    fresh.leave().await;
    server.stop().await?;
    Ok(differences)
}

/// More of them help nobody.
const MOST_TOLD: usize = 20;

/// What two fleets of the same proxies have that is not the same.
pub fn differences(one: &Fleet, other: &Fleet) -> Vec<String> {
    let mut told = Vec::new();
    for (proxy, (mine, its)) in one.contents().zip(other.contents()).enumerate() {
        for kind in Kind::ALL {
            let (mine, its) = (&mine[kind.index()], &its[kind.index()]);
            for (name, content) in mine {
                let what = match its.get(name) {
                    None => "should be gone",
                    Some(right) if right != content => "is not the newest",
                    Some(_) => continue,
                };
                told.push(format!("proxy {proxy}: {kind:?} {} {what}", String::from_utf8_lossy(name)));
            }
            for name in its.keys().filter(|name| !mine.contains_key(*name)) {
                told.push(format!("proxy {proxy}: {kind:?} {} is missing", String::from_utf8_lossy(name)));
            }
            if told.len() > MOST_TOLD {
                return told;
            }
        }
    }
    told
}
