//! One cluster as a source.

mod collections;
mod definitions;
mod parting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Millis, Name};
use pilot_config::ReadOptions;
use pilot_model::{ConfigId, Kind, MeshConfig, Object, ObjectKey};
use pilot_source::{Batch, Event, Running, Sink, Source};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::parting::Parting;
use crate::client::{CallError, Client};
use crate::crds::{self, CrdLook};
use crate::follow::{Follow, Update};
use crate::known::{Change, Look, What};
use crate::mesh_maps::{MeshMaps, MeshPlace, TextLook, Texts};
use crate::objects::ObjectLook;
use crate::resource::{PLATFORM, RULES, Resource, platform};
use crate::selection::Selection;
use crate::sight::Sight;
use crate::tally::{Became, Heard, Tally};
use crate::tasks;
use crate::troubles::Troubles;

/// What of a cluster is followed.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    pub read: ReadOptions,
    pub role: Role,
    /// Only objects of this namespace count.
    pub only_namespace: Option<Name>,
    /// The settings of the mesh, if they come from elsewhere.
    pub settings: Option<watch::Receiver<Arc<MeshConfig>>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// The cluster that we belong to.
    Home {
        /// Rules for this revision are read, if they come from there at all.
        rules: Option<Name>,
        mesh: Option<MeshPlace>,
    },
    /// Only who runs there.
    Remote {
        /// `PILOT_ENABLE_CROSS_CLUSTER_WORKLOAD_ENTRY`: WorkloadEntries for this revision are somebody who runs there, too.
        workloads: Option<Name>,
    },
}

impl Role {
    /// For which revision rules are read, and which of them.
    fn rules(&self) -> Option<(&Name, Vec<Kind>)> {
        match self {
            Self::Home { rules, .. } => Some((rules.as_ref()?, RULES.map(|(kind, ..)| kind).to_vec())),
            Self::Remote { workloads } => Some((workloads.as_ref()?, vec![Kind::WorkloadEntry])),
        }
    }
}

/// Updates wait here for the hub; who lists a large collection waits too.
const CAPACITY: usize = 256;
/// So many are told together at most.
const AT_ONCE: usize = 256;

/// Where rules of each kind stand, as far as the API server serves them.
pub type RulePlaces = watch::Receiver<BTreeMap<Kind, watch::Receiver<Resource>>>;

/// Waits until the API server serves a kind. Nothing if that will never be known.
pub async fn place_of(places: &mut RulePlaces, kind: Kind) -> Option<watch::Receiver<Resource>> {
    places.wait_for(|places| places.contains_key(&kind)).await.ok()?.get(&kind).cloned()
}

pub struct KubeSource {
    client: Client,
    options: ClusterOptions,
    found: watch::Sender<BTreeMap<Kind, watch::Receiver<Resource>>>,
    before: Option<BTreeMap<ObjectKey, u32>>,
    selection: Selection,
    synced: watch::Sender<bool>,
    tally: Tally,
}

impl KubeSource {
    pub fn new(client: Client, options: ClusterOptions) -> Self {
        let (found, synced) = (watch::Sender::default(), watch::Sender::new(false));
        let (selection, tally) = (Selection::default(), Tally::default());
        Self { client, options, found, before: None, selection, synced, tally }
    }

    /// The same where somebody counts what is heard.
    #[must_use]
    pub fn counted(self, tally: Tally) -> Self {
        Self { tally, ..self }
    }

    /// Whose rules count, for those who follow or change them themselves.
    pub fn selection(&self) -> Selection {
        self.selection.clone()
    }

    /// Whether everything in the cluster is known.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.synced.subscribe()
    }

    /// The same cluster over another client: what was told over the first, and how much would be lost with each. It begins
    /// with what is different, and `InitDone` after that; a kind that it may not see stays as it was.
    #[must_use]
    pub(crate) fn knowing(self, before: BTreeMap<ObjectKey, u32>) -> Self {
        Self { before: Some(before), ..self }
    }

    /// Where rules stand, for those who follow or change them themselves.
    pub fn places(&self) -> RulePlaces {
        self.found.subscribe()
    }
}

impl Source for KubeSource {
    fn name(&self) -> Name {
        Name::from(format!("cluster {}", self.options.read.cluster))
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(Hub::new(*self).run(sink))
    }

    fn is_vital(&self) -> bool {
        true
    }
}

/// Who has not told yet what there is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Kind(Kind),
    Crds,
    /// In which version a kind is kept.
    Crd(Kind),
    Map(usize),
}

enum Message {
    Objects(Kind, Update<Object>),
    Crds(Update<Kind>),
    Crd(Kind, Result<Option<Resource>, CallError>),
    /// The same as the API server tells everybody.
    Served(Kind, Result<Option<Resource>, CallError>),
    Map(usize, Update<Texts>),
}

/// Puts together what all collections tell.
struct Hub {
    client: Client,
    options: ClusterOptions,
    tasks: JoinSet<()>,
    messages: (mpsc::Sender<Message>, mpsc::Receiver<Message>),
    /// Empty once everything is known that there was at the beginning.
    pending: BTreeSet<Who>,
    /// Kinds of which everything was told, as of which epoch of what counts.
    whole: BTreeMap<Kind, u64>,
    /// What is told when it is; nothing in the place of what is gone.
    initial: Option<BTreeMap<ObjectKey, Option<Object>>>,
    /// What somebody told of this cluster before, by kind.
    before: Option<BTreeMap<Kind, Vec<(ConfigId, u32)>>>,
    batch: Batch,
    troubles: Troubles,
    /// Where something is wrong.
    troubled: BTreeSet<Name>,
    /// Kinds whose definitions are there.
    defined: BTreeSet<Kind>,
    /// Those of them whose definitions we may not read, and since when.
    unread: BTreeMap<Kind, Millis>,
    /// Where rules stand, by kind.
    places: BTreeMap<Kind, watch::Sender<Resource>>,
    /// The same, for others.
    found: watch::Sender<BTreeMap<Kind, watch::Receiver<Resource>>>,
    mesh: Option<MeshMaps>,
    /// Whose rules count.
    selection: Selection,
    synced: watch::Sender<bool>,
    tally: Tally,
    sight: Sight,
    parting: Parting,
}

impl Hub {
    fn new(source: KubeSource) -> Self {
        let KubeSource { client, options, found, before, selection, synced, tally } = source;
        let by_kind = |before: BTreeMap<ObjectKey, u32>| {
            let mut kinds: BTreeMap<Kind, Vec<(ConfigId, u32)>> = BTreeMap::new();
            for ((kind, id), weight) in before {
                kinds.entry(kind).or_default().push((ConfigId { cluster: Name::empty(), ..id }, weight));
            }
            kinds
        };
        Self {
            before: before.map(by_kind),
            client,
            options,
            found,
            tasks: JoinSet::new(),
            messages: mpsc::channel(CAPACITY),
            pending: BTreeSet::new(),
            whole: BTreeMap::new(),
            initial: Some(BTreeMap::new()),
            batch: Batch::default(),
            troubles: Troubles::default(),
            troubled: BTreeSet::new(),
            defined: BTreeSet::new(),
            unread: BTreeMap::new(),
            places: BTreeMap::new(),
            mesh: None,
            selection,
            synced,
            tally,
            sight: Sight::default(),
            parting: Parting::default(),
        }
    }

    async fn run(mut self, sink: Sink) {
        let mut settings = self.options.settings.clone();
        self.select(settings.as_ref());
        self.begin();
        loop {
            let message = tokio::select! {
                message = self.messages.1.recv() => message,
                () = changed(&mut settings) => {
                    self.select(settings.as_ref());
                    continue;
                }
                Some(outcome) = self.tasks.join_next() => {
                    tasks::ended(outcome);
                    continue;
                }
                () = then(self.parting.due()) => None,
                () = sink.closed() => return,
            };
            message.into_iter().for_each(|message| self.take(message));
            for _ in 1..AT_ONCE {
                match self.messages.1.try_recv() {
                    Ok(message) => self.take(message),
                    Err(_) => break,
                }
            }
            self.settle();
            let batch = std::mem::take(&mut self.batch);
            if !batch.is_empty() && sink.send(batch).await.is_err() {
                return;
            }
        }
    }

    /// What is said elsewhere about whose rules count.
    fn select(&self, settings: Option<&watch::Receiver<Arc<MeshConfig>>>) {
        if let Some(told) = settings {
            self.selection.select(&told.borrow().discovery_selectors);
        }
    }

    fn begin(&mut self) {
        for kind in PLATFORM {
            let mut resource = platform(kind);
            if !matches!(kind, Kind::Node | Kind::Namespace) {
                resource.namespace.clone_from(&self.options.only_namespace);
            }
            // Nobody moves Kubernetes' own kinds.
            let (_, place) = watch::channel(resource);
            self.follow_kind(kind, place);
        }
        if let Some((_, kinds)) = self.options.role.rules() {
            self.pending.insert(Who::Crds);
            self.follow(crds::resource(), CrdLook(kinds), Message::Crds);
        }
        if let Role::Home { mesh: Some(place), .. } = self.options.role.clone() {
            for (i, map) in place.maps.iter().enumerate() {
                self.pending.insert(Who::Map(i));
                self.follow(place.resource(map), TextLook, move |update| Message::Map(i, update));
            }
            self.mesh = Some(MeshMaps::new(place));
        }
    }

    fn follow<L: Look>(
        &mut self,
        resource: Resource,
        look: L,
        wrap: impl Fn(Update<L::Value>) -> Message + Send + Sync + 'static,
    ) {
        let follow = Follow::fixed(self.client.clone(), resource, look);
        self.tasks.spawn(follow.run(self.messages.0.clone(), wrap));
    }

    fn follow_kind(&mut self, kind: Kind, place: watch::Receiver<Resource>) {
        self.pending.insert(Who::Kind(kind));
        let rules = self.options.role.rules().filter(|_| !PLATFORM.contains(&kind));
        let revision = rules.map(|(revision, _)| revision.clone());
        let is_remote = matches!(self.options.role, Role::Remote { .. });
        let remote = is_remote.then(|| self.options.read.cluster.clone());
        // What services are made of is told all the same: who needs it knows the namespaces as well.
        let selection = Some(self.selection.clone()).filter(|_| !PLATFORM.contains(&kind));
        let (options, sight) = (self.options.read.clone(), self.sight.clone());
        let look = ObjectLook { kind, options, revision, remote, selection, sight };
        let before = self.before.as_mut().and_then(|before| before.remove(&kind)).unwrap_or_default();
        let follow = Follow::new(self.client.clone(), place, look).knowing(before);
        self.tasks.spawn(follow.run(self.messages.0.clone(), move |update| Message::Objects(kind, update)));
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Objects(kind, update) => {
                let lists = matches!(update, Update::Changed { whole: true, .. });
                let Some(mut changes) = self.changes(Who::Kind(kind), update) else { return };
                if kind == Kind::Pod {
                    changes.iter().for_each(|change| self.parting.forget(&change.id));
                    if lists && self.initial.is_none() {
                        changes = self.parting.keep(changes);
                    }
                }
                changes.into_iter().for_each(|change| self.object(kind, change));
            }
            Message::Crds(update) => {
                if let Some(changes) = self.changes(Who::Crds, update) {
                    self.definitions(changes);
                }
            }
            Message::Crd(kind, found) => self.definition(kind, found),
            Message::Served(kind, found) => self.served(kind, found),
            Message::Map(i, update) => self.map(i, update),
        }
    }

    fn map(&mut self, i: usize, update: Update<Texts>) {
        let was_awaited = self.pending.contains(&Who::Map(i));
        let changes = self.changes(Who::Map(i), update);
        let is_awaited = self.pending.iter().any(|who| matches!(who, Who::Map(_)));
        let news = changes.is_some() || (was_awaited && !self.pending.contains(&Who::Map(i)));
        let Some(mesh) = &mut self.mesh else { return };
        changes.into_iter().for_each(|changes| mesh.take(i, changes));
        // Before all of them are known, as far as we may see them, nothing is told of any.
        if is_awaited || !news {
            return;
        }
        mesh.tell(&mut self.batch);
        if let Some(settings) = mesh.settings() {
            self.selection.select(&settings.discovery_selectors);
        }
    }

    fn object(&mut self, kind: Kind, change: Change<Object>) {
        if let Some(became) = Became::of(&change) {
            self.tally.note(Heard::Object(kind, became));
        }
        let Change { id, what, mut issues, .. } = change;
        let place = Name::from(id.object(kind).to_string());
        let mut key = (kind, id);
        if matches!(self.options.role, Role::Remote { .. }) {
            key.1.cluster = self.options.read.cluster.clone();
            // There may be another of the same name in our own cluster.
            issues.iter_mut().for_each(|issue| issue.object = key.1.object(kind));
        }
        if kind == Kind::Namespace {
            let labels = match &what {
                What::Put(Object::Namespace(_, namespace)) => Some(Some(namespace.labels.clone())),
                What::Put(_) | What::Same => None,
                What::Gone => Some(None),
            };
            if let Some(labels) = labels {
                self.selection.label(&key.1.name, labels);
            }
        }
        match (what, &mut self.initial) {
            (What::Put(object), Some(initial)) => {
                initial.insert(key, Some(object));
            }
            (What::Put(object), None) => self.batch.events.push(Event::Apply(object)),
            (What::Gone, Some(initial)) => {
                initial.insert(key, None);
            }
            (What::Gone, None) => self.batch.events.push(Event::Delete(key)),
            (What::Same, _) => {}
        }
        self.note(place, issues);
    }

    /// Everything is told at once, as soon as everything is known.
    fn settle(&mut self) {
        self.parting.gone().into_iter().for_each(|change| self.object(Kind::Pod, change));
        if self.initial.is_none() || !self.pending.iter().all(|who| self.is_known(*who)) {
            return;
        }
        self.pending.clear();
        let Some(initial) = self.initial.take() else { return };
        self.synced.send_replace(true);
        tracing::info!("cluster {}: {} objects", self.options.read.cluster, initial.len());
        let events = &mut self.batch.events;
        if self.before.take().is_some() {
            let event = |(key, object)| match object {
                Some(object) => Event::Apply(object),
                None => Event::Delete(key),
            };
            events.extend(initial.into_iter().map(event));
        } else {
            events.push(Event::Init);
            events.extend(initial.into_values().flatten().map(Event::InitApply));
        }
        events.push(Event::InitDone);
    }

    /// What was listed before it was known what counts is listed again.
    fn is_known(&self, who: Who) -> bool {
        let Who::Kind(kind) = who else { return false };
        let epoch = if kind == Kind::EndpointSlice { self.sight.looks() } else { &self.selection }.epoch();
        self.whole.get(&kind).is_some_and(|as_of| *as_of >= epoch)
    }
}

/// Waits until then; for ever if nothing is due.
async fn then(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Waits until settings that come from elsewhere are others; for ever if none do.
async fn changed(settings: &mut Option<watch::Receiver<Arc<MeshConfig>>>) {
    let will_not = match settings {
        Some(settings) => settings.changed().await.is_err(),
        None => true,
    };
    if will_not {
        std::future::pending::<()>().await;
    }
}
