mod inbox;
mod leavers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use pilot_base::{Clock, Issue, Micros, Name, ObjectRef};
use pilot_config::ReadOptions;
use pilot_incr::{Shard, Txn};
use pilot_model::{HostAddresses, KeySet, KeySource, Kind, MeshConfig, MeshOptions, Proxy, ProxyId, Span};
use pilot_pipeline::Pipeline;
use pilot_source::{CHANNEL_CAPACITY, Contact, Event, Source};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use self::inbox::{Inbox, Incoming};
use self::leavers::Leavers;
use crate::bill::{Bill, Committed};
use crate::clock::thread_nanos;
use crate::debounce::{Debounce, Gate, Lane, Told};
use crate::intake::{Intake, OWN_SHARD};
use crate::issues::{Issues, IssuesOfObjects, Ledger, Place};
use crate::metrics::{Metrics, Times};
use crate::publish::{Publisher, Seat};
use crate::refusal::Refusal;
use crate::sources::{RegistryView, SourceBook};
use crate::standing::Standings;
use crate::suspects::Suspects;

/// What the engine is told. Streams tell little and must not wait; sources wait until what they told is committed.
enum Command {
    Source(Told, oneshot::Sender<()>),
    /// A source is about to run.
    Follow(Shard, Name, Option<Contact>),
    Connect {
        id: ProxyId,
        proxy: Arc<Proxy>,
        seat: oneshot::Sender<Seat>,
    },
    Disconnect(ProxyId, Name),
    /// All that a proxy refuses now.
    Refusals(ProxyId, Vec<Refusal>),
    /// What registries have is asked for.
    Registry(oneshot::Sender<RegistryView>),
    /// What came of asking for keys; nothing if nobody wants them any more.
    KeySet(KeySource, Option<KeySet>),
    HostAddresses(Name, Option<HostAddresses>),
    /// Somebody wants to see the tables as they are.
    Look(Look),
    Stop,
}

type Look = Box<dyn FnOnce(&Pipeline, &Publisher) + Send>;

/// How the engine works.
pub struct EngineOptions {
    pub mesh: MeshOptions,
    /// It is ready once so many sources have told everything they had.
    pub sources: usize,
    pub debounce: Option<Debounce>,
    /// Who wants to know the settings of the mesh listens there.
    pub settings: watch::Sender<Arc<MeshConfig>>,
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
    issues: Issues,
    issues_of_objects: IssuesOfObjects,
    /// The sources that have told everything they had, and how many of them there are.
    complete: watch::Receiver<BTreeSet<Shard>>,
    awaited: usize,
    wanted_keys: watch::Receiver<WantedKeys>,
    wanted_names: watch::Receiver<BTreeSet<Name>>,
    trust: watch::Receiver<TrustDomains>,
    mesh: watch::Receiver<Arc<MeshConfig>>,
    ids: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    bill: Arc<Bill>,
    standings: Arc<Standings>,
    commits: watch::Receiver<u64>,
    reading: Arc<ReadOptions>,
}

/// Whose identities count: our own trust domain, and names that it had or is to have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrustDomains {
    pub own: Name,
    pub aliases: Vec<Name>,
}

impl TrustDomains {
    fn of(mesh: &MeshConfig) -> Self {
        Self { own: mesh.trust_domain.clone(), aliases: mesh.trust_domain_aliases.clone() }
    }

    pub(crate) fn include(&self, name: &str) -> bool {
        self.own.as_str() == name || self.aliases.iter().any(|alias| alias.as_str() == name)
    }
}

/// Where keys are asked for, and how long to wait for them.
pub(crate) type WantedKeys = BTreeMap<KeySource, Span>;

/// How many commands are committed together at most: a transaction should not grow without limit while proxies wait.
const COMMANDS_AT_ONCE: usize = 1024;

impl Engine {
    /// Starts the thread.
    pub fn start(
        options: EngineOptions,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let EngineOptions { mesh, sources, debounce, settings } = options;
        let (domain, cluster) = (mesh.domain.clone(), mesh.cluster.clone());
        let reading = Arc::new(ReadOptions { domain, cluster, platform: true });
        let (commands, receiver) = mpsc::unbounded_channel();
        let mut inbox = Inbox::new(receiver)?;
        let bill = Arc::new(Bill::default());
        let parts = (Arc::clone(&clock), Arc::clone(&bill));
        let ledger = Ledger::new();
        let (issues, issues_of_objects) = ledger.subscribe();
        let (complete_sender, complete) = watch::channel(BTreeSet::new());
        let (wanted_sender, wanted_keys) = watch::channel(WantedKeys::new());
        let (names_sender, wanted_names) = watch::channel(BTreeSet::new());
        let mesh_told = settings.subscribe();
        let (trust_sender, trust) = watch::channel(TrustDomains::of(&MeshConfig::default()));
        let (epoch, commits) = watch::channel(0);
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let mut worker = Worker {
                pipeline: Pipeline::new(),
                intake: Intake::default(),
                publisher: Publisher::default(),
                ledger,
                metrics,
                complete: BTreeSet::new(),
                complete_told: complete_sender,
                wanted_keys: wanted_sender,
                wanted_names: names_sender,
                trust: trust_sender,
                mesh: settings,
                clock: parts.0,
                bill: parts.1,
                gate: Gate::new(debounce),
                leavers: Leavers::default(),
                sources: SourceBook::default(),
                suspects: Suspects::default(),
                epoch,
            };
            worker.begin(mesh);
            worker.work(&mut inbox);
        })?;
        let ids = Arc::new(AtomicU64::new(1));
        let standings = Arc::default();
        let handle = EngineHandle {
            commands,
            issues,
            issues_of_objects,
            complete,
            awaited: sources,
            wanted_keys,
            wanted_names,
            trust,
            mesh: mesh_told,
            ids,
            clock,
            bill,
            standings,
            commits,
            reading,
        };
        Ok(Self { thread, handle })
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
        let shard = shard_of(shard);
        // An engine that is gone follows nobody.
        let _gone = self.commands.send(Command::Follow(shard, name.clone(), source.contact()));
        let (sink, mut incoming) = mpsc::channel(CHANNEL_CAPACITY);
        tasks.spawn(source.run(sink));
        let (commands, clock) = (self.commands.clone(), Arc::clone(&self.clock));
        tasks.spawn(async move {
            while let Some(batch) = incoming.recv().await {
                let at = clock.micros();
                let mut batches = vec![batch];
                while let Ok(batch) = incoming.try_recv() {
                    batches.push(batch);
                }
                let (done, committed) = oneshot::channel();
                let command = Command::Source(Told { shard, name: name.clone(), batches, at }, done);
                if commands.send(command).is_err() || committed.await.is_err() {
                    return;
                }
            }
        });
    }

    /// Waits until every source has told everything it had and that was committed.
    pub async fn ready(&self) {
        self.until(|complete| complete.len() >= self.awaited).await;
    }

    /// The same for some of them, as they were numbered when they were [run](Self::run).
    pub async fn told(&self, shards: &[u32]) {
        self.until(|complete| shards.iter().all(|shard| complete.contains(&shard_of(*shard)))).await;
    }

    async fn until(&self, is_enough: impl Fn(&BTreeSet<Shard>) -> bool) {
        // An engine that is gone will never be ready.
        if self.complete.clone().wait_for(is_enough).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the engine's thread has ended, which it should only do when it is told to.
    pub async fn gone(&self) {
        self.commands.closed().await;
    }

    /// Everything that is wrong now.
    pub fn issues(&self) -> Vec<Issue> {
        self.issues.all()
    }

    /// Why some objects are wrong, for each of them.
    pub(crate) fn errors_of(&self, objects: &[ObjectRef]) -> Vec<Vec<Issue>> {
        self.issues.errors_of(objects)
    }

    /// What is wrong with objects, whenever it changes: without what proxies refuse.
    pub fn issues_as_they_change(&self) -> watch::Receiver<Arc<Vec<Issue>>> {
        self.issues_of_objects.clone()
    }

    /// What each source has; nothing if the engine is gone.
    pub(crate) async fn registry(&self) -> Option<RegistryView> {
        let (answer, view) = oneshot::channel();
        self.commands.send(Command::Registry(answer)).ok()?;
        view.await.ok()
    }

    pub(crate) fn bill(&self) -> &Bill {
        &self.bill
    }

    /// How far each connected proxy has come.
    pub(crate) fn standings(&self) -> &Arc<Standings> {
        &self.standings
    }

    /// Tells the epoch of each commit, and that nothing is older than what was seen.
    pub(crate) fn commits(&self) -> watch::Receiver<u64> {
        let mut commits = self.commits.clone();
        commits.mark_unchanged();
        commits
    }

    /// How objects are read that people send.
    pub(crate) fn reading(&self) -> &ReadOptions {
        &self.reading
    }

    /// Looks at the tables between two commits. Nothing if the engine is gone.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Pipeline, &Publisher) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, seen) = oneshot::channel();
        let look: Look = Box::new(move |pipeline, publisher| {
            // Who asked may have gone.
            let _gone = sender.send(look(pipeline, publisher));
        });
        self.commands.send(Command::Look(look)).ok()?;
        seen.await.ok()
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The settings of the mesh, whenever they change.
    pub fn mesh_config(&self) -> watch::Receiver<Arc<MeshConfig>> {
        self.mesh.clone()
    }

    pub fn trust_domains(&self) -> watch::Receiver<TrustDomains> {
        self.trust.clone()
    }

    pub(crate) fn wanted_keys(&self) -> watch::Receiver<WantedKeys> {
        self.wanted_keys.clone()
    }

    pub(crate) fn key_set(&self, source: KeySource, set: Option<KeySet>) {
        let _gone = self.commands.send(Command::KeySet(source, set));
    }

    /// Names of gateways between networks that somebody is to look up.
    pub(crate) fn wanted_names(&self) -> watch::Receiver<BTreeSet<Name>> {
        self.wanted_names.clone()
    }

    pub(crate) fn host_addresses(&self, name: Name, found: Option<HostAddresses>) {
        let _gone = self.commands.send(Command::HostAddresses(name, found));
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

    /// `name` is the one that the proxy comes back under, if it does.
    pub(crate) fn disconnect(&self, id: ProxyId, name: Name) {
        let _gone = self.commands.send(Command::Disconnect(id, name));
    }

    pub(crate) fn refusals(&self, id: ProxyId, refusals: Vec<Refusal>) {
        let _gone = self.commands.send(Command::Refusals(id, refusals));
    }
}

/// The engine's own rows have shard zero.
fn shard_of(source: u32) -> Shard {
    Shard(OWN_SHARD.0 + 1 + source)
}

struct Worker {
    pipeline: Pipeline,
    intake: Intake,
    publisher: Publisher,
    ledger: Ledger,
    metrics: Arc<Metrics>,
    /// The sources that have told everything they had, and those of which it is committed.
    complete: BTreeSet<Shard>,
    complete_told: watch::Sender<BTreeSet<Shard>>,
    wanted_keys: watch::Sender<WantedKeys>,
    wanted_names: watch::Sender<BTreeSet<Name>>,
    trust: watch::Sender<TrustDomains>,
    mesh: watch::Sender<Arc<MeshConfig>>,
    clock: Arc<dyn Clock>,
    bill: Arc<Bill>,
    gate: Gate,
    leavers: Leavers,
    sources: SourceBook,
    suspects: Suspects,
    epoch: watch::Sender<u64>,
}

/// A transaction, and who waits for it to be committed.
#[derive(Default)]
struct Round {
    txn: Txn,
    /// When the first change of a source in it was told.
    told: Option<Micros>,
    seats: Vec<(ProxyId, oneshot::Sender<Seat>)>,
    sources: Vec<oneshot::Sender<()>>,
    /// Sources that told something, and when.
    shards: Vec<(Shard, Micros)>,
    stop: bool,
}

impl Worker {
    fn begin(&mut self, options: MeshOptions) {
        self.pipeline.measure(thread_nanos);
        let inputs = self.pipeline.inputs();
        let mut txn = Txn::new();
        txn.upsert(&inputs.options, OWN_SHARD, (), options);
        txn.upsert(&inputs.mesh, OWN_SHARD, (), MeshConfig::default());
        self.pipeline.commit(txn);
    }

    fn work(&mut self, inbox: &mut Inbox) {
        loop {
            let mut round = Round::default();
            match inbox.next(self.patience()) {
                Incoming::Command(command) => self.take(command, &mut round),
                Incoming::Silence => {}
                Incoming::Over => return,
            }
            // Nothing waits for more to come, unless it is told to; but what has already come is done in one step.
            for _ in 1..COMMANDS_AT_ONCE {
                match inbox.waiting() {
                    Some(command) => self.take(command, &mut round),
                    None => break,
                }
            }
            let now = self.clock.now();
            if round.stop || self.gate.is_due(now) {
                self.open_gate(&mut round);
            }
            let gone = self.leavers.gone(now);
            self.forget(gone, &mut round.txn);
            let Round { txn, told, seats, sources, shards, stop } = round;
            self.commit(txn, told, seats);
            self.sources.committed(&shards, self.clock.micros(), &self.metrics.sources);
            for done in sources {
                let _gone = done.send(());
            }
            if stop {
                return;
            }
        }
    }

    /// How long to wait for the next command; without end if nothing is to be done without one.
    fn patience(&self) -> Option<Duration> {
        if self.suspects.are_sought() {
            return Some(Duration::ZERO);
        }
        let due = [self.gate.due_at(), self.leavers.due_at()].into_iter().flatten().min()?;
        Some(Duration::from_millis(due.saturating_sub(self.clock.now())))
    }

    fn open_gate(&mut self, round: &mut Round) {
        for told in self.gate.open() {
            self.intake(told, round);
        }
    }

    fn take(&mut self, command: Command, round: &mut Round) {
        let inputs = self.pipeline.inputs();
        let txn = &mut round.txn;
        match command {
            Command::Source(told, done) => self.told(told, done, round),
            Command::Follow(shard, name, contact) => {
                self.sources.follow(shard, name, contact, &self.metrics.sources);
            }
            Command::Connect { id, proxy, seat } => {
                // In one step, so that what both are sent is there all the time.
                let left = self.leavers.come(&proxy.name);
                txn.upsert(&inputs.proxies, OWN_SHARD, id, proxy);
                round.seats.push((id, seat));
                self.forget(left, txn);
            }
            Command::Disconnect(id, name) => {
                self.publisher.leave(id);
                self.suspects.leave(id);
                self.ledger.set(&Place::Proxy(id.0), &[]);
                let over = self.leavers.leave(id, name, self.clock.now());
                self.forget(over, txn);
            }
            Command::Refusals(id, refusals) => {
                let issues = self.suspects.note(&self.pipeline, id, refusals);
                self.ledger.set(&Place::Proxy(id.0), &issues);
            }
            Command::KeySet(source, Some(set)) => txn.upsert(&inputs.key_sets, OWN_SHARD, source, set),
            Command::KeySet(source, None) => txn.remove(&inputs.key_sets, OWN_SHARD, source),
            Command::HostAddresses(name, Some(found)) => {
                txn.upsert(&inputs.host_addresses, OWN_SHARD, name, found);
            }
            Command::HostAddresses(name, None) => txn.remove(&inputs.host_addresses, OWN_SHARD, name),
            Command::Registry(answer) => {
                // Who asked may have gone.
                let _gone = answer.send(self.registry());
            }
            Command::Look(look) => look(&self.pipeline, &self.publisher),
            Command::Stop => round.stop = true,
        }
    }

    /// What each source has, for people.
    fn registry(&self) -> RegistryView {
        let intake = &self.intake;
        let entries = self.pipeline.service_entries().into_iter().map(|entry| {
            let source = match &entry.spec.registry {
                Some(registry) => Some(&registry.name),
                None => intake.owner(&(Kind::ServiceEntry, entry.id.clone())),
            };
            (source.cloned().unwrap_or_default(), entry)
        });
        let has = |shard| (intake.count(shard), intake.amount(shard));
        RegistryView { sources: self.sources.all(has), entries: entries.collect() }
    }

    /// Takes the rows of proxies away that are not waited for.
    fn forget(&self, proxies: impl IntoIterator<Item = ProxyId>, txn: &mut Txn) {
        let inputs = self.pipeline.inputs();
        proxies.into_iter().for_each(|id| txn.remove(&inputs.proxies, OWN_SHARD, id));
    }

    /// A source that is to wait for silence may go on talking, or there would be silence at once.
    fn told(&mut self, told: Told, done: oneshot::Sender<()>, round: &mut Round) {
        for batch in &told.batches {
            self.metrics.commits.note_events(&batch.events);
        }
        match self.gate.lane(&told) {
            Lane::Wait => {
                self.gate.wait(told, self.clock.now());
                let _gone = done.send(());
                return;
            }
            Lane::Flush => self.open_gate(round),
            Lane::Pass => {}
        }
        self.intake(told, round);
        round.sources.push(done);
    }

    fn intake(&mut self, told: Told, round: &mut Round) {
        let Told { shard, name, batches, at } = told;
        round.shards.push((shard, at));
        round.told = Some(round.told.map_or(at, |first| first.min(at)));
        for batch in batches {
            for event in &batch.events {
                if let Event::Mesh(mesh) = event {
                    self.trust.send_replace(TrustDomains::of(mesh));
                    self.mesh.send_replace(Arc::new(MeshConfig::clone(mesh)));
                }
            }
            let inputs = self.pipeline.inputs();
            self.sources.told(shard, &name, &batch, self.clock.now());
            let taken = self.intake.take((shard, &name), batch.events, inputs, &mut round.txn);
            if taken.is_complete {
                self.complete.insert(shard);
            }
            for (place, issues) in taken.overlaps {
                self.ledger.set(&Place::Overlap(place), &issues);
            }
            for (place, issues) in batch.issues {
                self.ledger.set(&Place::Source(name.clone(), place), &issues);
            }
        }
    }

    fn commit(&mut self, txn: Txn, told: Option<Micros>, seats: Vec<(ProxyId, oneshot::Sender<Seat>)>) {
        if !txn.is_empty() {
            self.run(txn, told);
        }
        for (id, waiting) in seats {
            // A stream that left before it was seated has no audience any more.
            let seat = self.pipeline.audience_of(id).and_then(|a| self.publisher.seat(id, &a));
            // Or it left in this very round, and then its seat was given free before it was there.
            if seat.is_some_and(|seat| waiting.send(seat).is_err()) {
                self.publisher.leave(id);
            }
        }
        for (proxy, issues) in self.suspects.find(&self.pipeline) {
            self.ledger.set(&Place::Proxy(proxy.0), &issues);
        }
        if self.ledger.publish() {
            self.metrics.clients.note_refused(self.ledger.refused_objects());
        }
        self.metrics.commits.note_issues(self.ledger.count(), self.ledger.rejected());
        if self.complete_told.borrow().len() < self.complete.len() {
            self.complete_told.send_replace(self.complete.clone());
        }
    }

    /// Commits, tells who must know, and writes down what it cost.
    fn run(&mut self, txn: Txn, told: Option<Micros>) {
        let began = self.clock.micros();
        let mut changes = self.pipeline.commit(txn);
        let ended = self.clock.micros();
        let objects = std::mem::take(&mut changes.objects);
        let (epoch, nanos) = (changes.commit.epoch, changes.commit.spent);
        let arrived = told.unwrap_or(began);
        let cause = self.bill.committed(Committed { epoch, objects, nanos, arrived, now: ended });
        self.publisher.publish(&changes, &cause);
        for (object, issues) in &changes.issues {
            self.ledger.set(&Place::Object(object.clone()), issues);
        }
        self.metrics.commits.committed(Times { told, began, ended }, &changes.commit, &cause.shares);
        self.want(changes.wanted_keys);
        self.want_names(changes.wanted_names);
        self.metrics.commits.note_state(&self.pipeline);
        self.epoch.send_replace(epoch);
        self.bill.note_population(self.pipeline.proxies(), self.pipeline.audiences());
    }

    fn want_names(&self, changes: Vec<(Name, bool)>) {
        if changes.is_empty() {
            return;
        }
        self.wanted_names.send_modify(|wanted| {
            for (name, is_wanted) in changes {
                if is_wanted {
                    wanted.insert(name)
                } else {
                    wanted.remove(&name)
                };
            }
        });
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

#[cfg(test)]
mod tests;
