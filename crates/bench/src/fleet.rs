//! All proxies of a run, and what they have in common.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_base::Hasher64;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::grpc::{self, Ended};
use crate::marks::Marks;
use crate::mesh::Mesh;
use crate::names::Names;
use crate::node;
use crate::recording::Recording;
use crate::shape::Protocol;
use crate::state::{Contents, State};
use crate::stopwatch::Stopwatch;

/// What all proxies share.
pub struct Shared {
    pub names: Names,
    pub stopwatch: Stopwatch,
    pub counters: Counters,
    /// How many have everything.
    pub(crate) synced: AtomicUsize,
    pub(crate) last_message_at: AtomicU64,
    /// The last reason why a stream ended.
    pub(crate) last_trouble: Mutex<Option<String>>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            names: Names::default(),
            stopwatch: Stopwatch::start(),
            counters: Counters::default(),
            synced: AtomicUsize::new(0),
            last_message_at: AtomicU64::new(0),
            last_trouble: Mutex::new(None),
        }
    }
}

/// What happened since the start, to all proxies together.
#[derive(Default)]
pub struct Counters {
    /// Bytes of messages.
    pub received: AtomicU64,
    pub messages: AtomicU64,
    pub resources: AtomicU64,
    pub opened: AtomicU64,
    pub refused: AtomicU64,
    pub lost: AtomicU64,
}

/// The same at one moment.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Counts {
    pub received: u64,
    pub messages: u64,
    pub resources: u64,
    pub opened: u64,
    pub refused: u64,
    pub lost: u64,
}

impl Counters {
    pub fn read(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            received: read(&self.received),
            messages: read(&self.messages),
            resources: read(&self.resources),
            opened: read(&self.opened),
            refused: read(&self.refused),
            lost: read(&self.lost),
        }
    }
}

impl Counts {
    pub fn since(self, before: Self) -> Self {
        Self {
            received: self.received - before.received,
            messages: self.messages - before.messages,
            resources: self.resources - before.resources,
            opened: self.opened - before.opened,
            refused: self.refused - before.refused,
            lost: self.lost - before.lost,
        }
    }
}

/// One proxy: who it is and what it has.
pub struct Proxy {
    index: usize,
    pub(crate) protocol: Protocol,
    pub(crate) node: Bytes,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Mutex<State>,
}

pub struct Fleet {
    pub shared: Arc<Shared>,
    pub proxies: Vec<Arc<Proxy>>,
    tasks: JoinSet<()>,
    /// Each number tells the proxies whose turn it is to come back once more.
    returns: watch::Sender<Return>,
}

/// Who is to close its stream and come back.
#[derive(Clone, Copy, Default)]
struct Return {
    number: u64,
    /// Every so-manieth.
    every: usize,
    from: usize,
}

impl Return {
    fn concerns(self, proxy: usize) -> bool {
        self.every > 0 && proxy % self.every == self.from % self.every
    }
}

/// The waits between tries, doubled from the first to the last.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LAST_WAIT: Duration = Duration::from_secs(5);

impl Fleet {
    /// Proxies that connect at once. `protocol` says what each of them speaks.
    pub fn launch(
        mesh: &Mesh,
        server: SocketAddr,
        proxies: usize,
        protocol: impl Fn(usize) -> Protocol,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let make = |index: usize| {
            let mut state = State::new(Arc::clone(&shared), protocol(index));
            state.recording = (index == 0).then(Recording::default);
            Arc::new(Proxy {
                index,
                protocol: protocol(index),
                node: node::encode(mesh, index).into(),
                shared: Arc::clone(&shared),
                state: Mutex::new(state),
            })
        };
        let proxies: Vec<Arc<Proxy>> = (0..proxies).map(make).collect();
        let (returns, turns) = watch::channel(Return::default());
        let mut tasks = JoinSet::new();
        for proxy in &proxies {
            tasks.spawn(live(Arc::clone(proxy), server, turns.clone()));
        }
        Self { shared, proxies, tasks, returns }
    }

    pub fn synced(&self) -> usize {
        self.shared.synced.load(Ordering::Relaxed)
    }

    /// Lets every so-manieth proxy, or all with 1, close its stream and come back with what it has.
    pub fn come_back(&self, every: usize, from: usize) {
        self.returns.send_modify(|last| *last = Return { number: last.number + 1, every, from });
    }

    /// Has everybody look for these changes, and tells how many are to be seen by all together.
    pub fn follow(&self, marks: &Arc<Marks>) -> u64 {
        let expect = |proxy: &Arc<Proxy>| {
            let mut state = proxy.state.lock();
            state.follow(marks);
            state.progress.as_ref().map_or(0, |progress| progress.expected() as u64)
        };
        self.proxies.iter().map(expect).sum()
    }

    /// All delays in microseconds, in order, and how many proxies have not seen everything.
    pub fn take_delays(&self) -> (Vec<u32>, usize) {
        let (mut delays, mut missing) = (Vec::new(), 0);
        for proxy in &self.proxies {
            if let Some(progress) = proxy.state.lock().progress.take() {
                missing += usize::from(progress.delays.len() < progress.expected());
                delays.extend(progress.delays);
            }
        }
        delays.sort_unstable();
        (delays, missing)
    }

    pub fn take_recording(&self) -> Option<Recording> {
        self.proxies.first()?.state.lock().recording.take()
    }

    pub fn contents(&self) -> impl Iterator<Item = Contents> {
        self.proxies.iter().map(|proxy| proxy.state.lock().contents())
    }

    /// Waits until something holds, looking often; `false` if it does not within the time.
    pub async fn until(&self, patience: Duration, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let watch = Stopwatch::start();
        while !holds(self) {
            if watch.elapsed() > patience {
                return false;
            }
            sleep(Duration::from_millis(1)).await;
        }
        true
    }

    /// Waits until nothing has come for a while.
    pub async fn until_quiet(&self, silence: Duration, patience: Duration) -> bool {
        let start = self.shared.stopwatch.now();
        let silence = u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX);
        self.until(patience, |fleet| {
            let last = fleet.shared.last_message_at.load(Ordering::Relaxed).max(start);
            fleet.shared.stopwatch.now().saturating_sub(last) >= silence
        })
        .await
    }

    /// Why the last stream ended, for whoever has to find out.
    pub fn last_trouble(&self) -> String {
        self.shared.last_trouble.lock().clone().unwrap_or_else(|| "no stream ended".to_owned())
    }

    pub async fn leave(mut self) {
        self.tasks.shutdown().await;
    }
}

/// Connects, again and again, until the fleet is gone.
async fn live(proxy: Arc<Proxy>, server: SocketAddr, mut turns: watch::Receiver<Return>) {
    let mut failures = 0;
    loop {
        let heard = proxy.state.lock().last_message_at;
        let called = async {
            loop {
                if turns.changed().await.is_err() {
                    // The fleet is gone, and this task will be too.
                    std::future::pending::<()>().await;
                }
                if turns.borrow_and_update().concerns(proxy.index) {
                    return;
                }
            }
        };
        let ended = tokio::select! {
            ended = grpc::run(&proxy, server) => ended,
            () = called => {
                failures = 0;
                continue;
            }
        };
        let Err(ended) = ended else { continue };
        let counter = match ended {
            Ended::Refused(_) => &proxy.shared.counters.refused,
            Ended::Lost(_) => &proxy.shared.counters.lost,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        *proxy.shared.last_trouble.lock() = Some(ended.to_string());
        // A stream on which something came was no failure.
        failures = if proxy.state.lock().last_message_at > heard { 0 } else { failures + 1 };
        sleep(wait(proxy.index, failures)).await;
    }
}

/// Grows with each failure, and differs from proxy to proxy by up to a half in both directions.
fn wait(proxy: usize, failures: u32) -> Duration {
    let full = FIRST_WAIT.saturating_mul(1 << failures.min(10)).min(LAST_WAIT);
    let drawn = Hasher64::default().write_u64(proxy as u64).write_u64(u64::from(failures)).finish().0;
    full.mul_f64(0.5 + (drawn % 1_000) as f64 / 1_000.0)
}
