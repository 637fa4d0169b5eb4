use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use pilot_base::{Issue, Name};
use pilot_incr::{Shard, Txn};
use pilot_model::{KeySet, KeySource, MeshOptions, Proxy, ProxyId, Span};
use pilot_pipeline::Pipeline;
use pilot_source::{Batch, CHANNEL_CAPACITY, Source};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::intake::{Intake, OWN_SHARD};
use crate::issues::{Ledger, Place};
use crate::metrics::Metrics;
use crate::publish::{Publisher, Seat};
use crate::refusal::Refusal;

/// What the engine is told. Streams tell little and must not wait; sources wait until what they told is committed.
enum Command {
    Source {
        shard: Shard,
        name: Name,
        batches: Vec<Batch>,
        done: oneshot::Sender<()>,
    },
    Connect {
        id: ProxyId,
        proxy: Arc<Proxy>,
        seat: oneshot::Sender<Seat>,
    },
    Disconnect(ProxyId),
    /// All that a proxy refuses now.
    Refusals(ProxyId, Vec<Refusal>),
    /// What came of asking for keys; nothing if nobody wants them any more.
    KeySet(KeySource, Option<KeySet>),
    Stop,
}

/// The thread that owns the pipeline.
pub struct Engine {
    thread: JoinHandle<()>,
    handle: EngineHandle,
}

/// How others reach the engine.
#[derive(Clone)]
pub struct EngineHandle {
    commands: mpsc::UnboundedSender<Command>,
    issues: watch::Receiver<Arc<Vec<Issue>>>,
    ready: watch::Receiver<bool>,
    wanted_keys: watch::Receiver<WantedKeys>,
    ids: Arc<AtomicU64>,
}

/// Where keys are asked for, and how long to wait for them.
pub(crate) type WantedKeys = BTreeMap<KeySource, Span>;

/// How many commands are committed together at most: a transaction should not grow without limit while proxies wait.
const COMMANDS_AT_ONCE: usize = 1024;

impl Engine {
    /// Starts the thread. It is ready once `sources` sources have told everything they had.
    pub fn start(options: MeshOptions, sources: usize, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let (ledger, issues) = Ledger::new();
        let (ready_sender, ready) = watch::channel(sources == 0);
        let (wanted_sender, wanted_keys) = watch::channel(WantedKeys::new());
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let mut worker = Worker {
                pipeline: Pipeline::new(),
                intake: Intake::default(),
                publisher: Publisher::default(),
                ledger,
                metrics,
                awaited: sources,
                complete: BTreeSet::new(),
                ready: ready_sender,
                wanted_keys: wanted_sender,
            };
            worker.begin(options);
            worker.work(receiver);
        })?;
        let ids = Arc::new(AtomicU64::new(1));
        Ok(Self { thread, handle: EngineHandle { commands, issues, ready, wanted_keys, ids } })
    }

    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// Ends the thread after what it was told before.
    pub fn stop(self) {
        // A thread that is gone has nothing left to stop.
        let _gone = self.handle.commands.send(Command::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the engine ended with a panic");
        }
    }
}

impl EngineHandle {
    /// Runs a source. Its batches are committed in order; what piles up meanwhile is committed together.
    pub fn run(&self, source: Box<dyn Source>, shard: u32, tasks: &mut JoinSet<()>) {
        let name = source.name();
        tracing::info!("following {name}");
        let (sink, mut incoming) = mpsc::channel(CHANNEL_CAPACITY);
        tasks.spawn(source.run(sink));
        let commands = self.commands.clone();
        // The engine's own rows have shard zero.
        let shard = Shard(OWN_SHARD.0 + 1 + shard);
        tasks.spawn(async move {
            while let Some(batch) = incoming.recv().await {
                let mut batches = vec![batch];
                while let Ok(batch) = incoming.try_recv() {
                    batches.push(batch);
                }
                let (done, committed) = oneshot::channel();
                let command = Command::Source { shard, name: name.clone(), batches, done };
                if commands.send(command).is_err() || committed.await.is_err() {
                    return;
                }
            }
        });
    }

    /// Waits until every source has told everything it had and that was committed.
    pub async fn ready(&self) {
        // An engine that is gone will never be ready.
        if self.ready.clone().wait_for(|ready| *ready).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the engine's thread has ended, which it should only do when it is told to.
    pub async fn gone(&self) {
        self.commands.closed().await;
    }

    /// Everything that is wrong now.
    pub fn issues(&self) -> Arc<Vec<Issue>> {
        Arc::clone(&self.issues.borrow())
    }

    pub(crate) fn wanted_keys(&self) -> watch::Receiver<WantedKeys> {
        self.wanted_keys.clone()
    }

    pub(crate) fn key_set(&self, source: KeySource, set: Option<KeySet>) {
        let _gone = self.commands.send(Command::KeySet(source, set));
    }

    pub(crate) fn next_id(&self) -> ProxyId {
        ProxyId(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes a proxy known. Nothing if the engine is gone.
    pub(crate) async fn connect(&self, id: ProxyId, proxy: Arc<Proxy>) -> Option<Seat> {
        let (seat, receiver) = oneshot::channel();
        self.commands.send(Command::Connect { id, proxy, seat }).ok()?;
        receiver.await.ok()
    }

    pub(crate) fn disconnect(&self, id: ProxyId) {
        let _gone = self.commands.send(Command::Disconnect(id));
    }

    pub(crate) fn refusals(&self, id: ProxyId, refusals: Vec<Refusal>) {
        let _gone = self.commands.send(Command::Refusals(id, refusals));
    }
}

struct Worker {
    pipeline: Pipeline,
    intake: Intake,
    publisher: Publisher,
    ledger: Ledger,
    metrics: Arc<Metrics>,
    awaited: usize,
    /// The sources that have told everything they had.
    complete: BTreeSet<Shard>,
    ready: watch::Sender<bool>,
    wanted_keys: watch::Sender<WantedKeys>,
}

/// What waits for a transaction to be committed.
#[derive(Default)]
struct Waiting {
    seats: Vec<(ProxyId, oneshot::Sender<Seat>)>,
    sources: Vec<oneshot::Sender<()>>,
    stop: bool,
}

impl Worker {
    fn begin(&mut self, options: MeshOptions) {
        let inputs = self.pipeline.inputs();
        let mut txn = Txn::new();
        txn.upsert(&inputs.options, OWN_SHARD, (), options);
        txn.upsert(&inputs.mesh, OWN_SHARD, (), pilot_model::MeshConfig::default());
        self.pipeline.commit(txn);
    }

    fn work(&mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        while let Some(command) = commands.blocking_recv() {
            let (mut txn, mut waiting) = (Txn::new(), Waiting::default());
            self.take(command, &mut txn, &mut waiting);
            // Nothing waits for more to come; but what has already come is done in one step.
            for _ in 1..COMMANDS_AT_ONCE {
                match commands.try_recv() {
                    Ok(command) => self.take(command, &mut txn, &mut waiting),
                    Err(_) => break,
                }
            }
            self.commit(txn, waiting.seats);
            for done in waiting.sources {
                let _gone = done.send(());
            }
            if waiting.stop {
                return;
            }
        }
    }

    fn take(&mut self, command: Command, txn: &mut Txn, waiting: &mut Waiting) {
        let inputs = self.pipeline.inputs();
        match command {
            Command::Source { shard, name, batches, done } => {
                for batch in batches {
                    self.metrics.note_events(&batch.events);
                    if self.intake.take(shard, batch.events, inputs, txn) {
                        self.complete.insert(shard);
                    }
                    for (place, issues) in batch.issues {
                        self.ledger.set(&Place::Source(name.clone(), place), issues);
                    }
                }
                waiting.sources.push(done);
            }
            Command::Connect { id, proxy, seat } => {
                txn.upsert(&inputs.proxies, OWN_SHARD, id, proxy);
                waiting.seats.push((id, seat));
            }
            Command::Disconnect(id) => {
                txn.remove(&inputs.proxies, OWN_SHARD, id);
                self.publisher.leave(id);
                self.ledger.set(&Place::Proxy(id.0), Vec::new());
            }
            Command::Refusals(id, refusals) => {
                let pipeline = &mut self.pipeline;
                let mut behind = |name: &Name| pipeline.behind(id, name);
                let issues = refusals.iter().flat_map(|refusal| refusal.issues(&mut behind)).collect();
                self.ledger.set(&Place::Proxy(id.0), issues);
            }
            Command::KeySet(source, Some(set)) => txn.upsert(&inputs.key_sets, OWN_SHARD, source, set),
            Command::KeySet(source, None) => txn.remove(&inputs.key_sets, OWN_SHARD, source),
            Command::Stop => waiting.stop = true,
        }
    }

    fn commit(&mut self, txn: Txn, seats: Vec<(ProxyId, oneshot::Sender<Seat>)>) {
        if !txn.is_empty() {
            let changes = self.pipeline.commit(txn);
            self.publisher.publish(&changes);
            for (object, issues) in &changes.issues {
                self.ledger.set(&Place::Object(object.clone()), issues.clone());
            }
            self.want(changes.wanted_keys);
        }
        for (id, waiting) in seats {
            // A stream that left before it was seated has no audience any more.
            let seat = self.pipeline.audience_of(id).and_then(|a| self.publisher.seat(id, &a));
            if let Some(seat) = seat {
                let _left = waiting.send(seat);
            }
        }
        self.ledger.publish();
        self.metrics.note_issues(self.ledger.count());
        if self.complete.len() >= self.awaited {
            self.ready.send_if_modified(|ready| !std::mem::replace(ready, true));
        }
    }

    fn want(&self, changes: Vec<(KeySource, Option<Span>)>) {
        if changes.is_empty() {
            return;
        }
        self.wanted_keys.send_modify(|wanted| {
            for (source, wait) in changes {
                match wait {
                    Some(wait) => wanted.insert(source, wait),
                    None => wanted.remove(&source),
                };
            }
        });
    }
}
