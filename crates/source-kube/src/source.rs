//! One cluster as a source.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Issue, Name};
use pilot_config::ReadOptions;
use pilot_model::{ConfigId, Kind, MeshConfig, Object, ObjectKey};
use pilot_source::{Batch, Event, Running, Sink, Source};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::client::{CallError, Client};
use crate::crds::{self, CrdLook};
use crate::follow::{Follow, Trouble, Update};
use crate::known::{Change, Look, What};
use crate::mesh_maps::{MeshMaps, MeshPlace, TextLook, Texts};
use crate::objects::ObjectLook;
use crate::resource::{PLATFORM, Resource, platform};
use crate::selection::Selection;
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
    Remote,
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
}

impl KubeSource {
    pub fn new(client: Client, options: ClusterOptions) -> Self {
        Self { client, options, found: watch::Sender::default() }
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
    /// Kinds of rules of which everything was told, as of which epoch of the selection.
    whole: BTreeMap<Kind, u64>,
    /// What is told when it is.
    initial: Option<BTreeMap<ObjectKey, Object>>,
    batch: Batch,
    troubles: Troubles,
    /// Where something is wrong.
    troubled: BTreeSet<Name>,
    /// Kinds whose definitions are there.
    defined: BTreeSet<Kind>,
    /// Where rules stand, by kind.
    places: BTreeMap<Kind, watch::Sender<Resource>>,
    /// The same, for others.
    found: watch::Sender<BTreeMap<Kind, watch::Receiver<Resource>>>,
    mesh: Option<MeshMaps>,
    /// Whose rules count.
    selection: Selection,
}

impl Hub {
    fn new(source: KubeSource) -> Self {
        let KubeSource { client, options, found } = source;
        Self {
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
            places: BTreeMap::new(),
            mesh: None,
            selection: Selection::default(),
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
                () = sink.closed() => return,
            };
            // We hold a sender ourselves, so there is always more to come.
            let Some(message) = message else { return };
            self.take(message);
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
        let Role::Home { rules, mesh } = self.options.role.clone() else { return };
        if rules.is_some() {
            self.pending.insert(Who::Crds);
            self.follow(crds::resource(), CrdLook, Message::Crds);
        }
        if let Some(place) = mesh {
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
        let (_, place) = watch::channel(resource);
        let follow = Follow { client: self.client.clone(), place, look: Arc::new(look) };
        self.tasks.spawn(follow.run(self.messages.0.clone(), wrap));
    }

    fn follow_kind(&mut self, kind: Kind, place: watch::Receiver<Resource>) {
        self.pending.insert(Who::Kind(kind));
        let (revision, remote) = match &self.options.role {
            Role::Home { rules, .. } => (rules.clone().filter(|_| !PLATFORM.contains(&kind)), None),
            Role::Remote => (None, Some(self.options.read.cluster.clone())),
        };
        // What services are made of is told all the same: who needs it knows the namespaces as well.
        let selection = Some(self.selection.clone()).filter(|_| !PLATFORM.contains(&kind));
        let options = self.options.read.clone();
        let look = Arc::new(ObjectLook { kind, options, revision, remote, selection });
        let follow = Follow { client: self.client.clone(), place, look };
        self.tasks.spawn(follow.run(self.messages.0.clone(), move |update| Message::Objects(kind, update)));
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Objects(kind, update) => {
                let who = Who::Kind(kind);
                if let Some(changes) = self.changes(who, update) {
                    changes.into_iter().for_each(|change| self.object(kind, change));
                }
            }
            Message::Crds(update) => {
                if let Some(changes) = self.changes(Who::Crds, update) {
                    self.definitions(changes);
                }
            }
            Message::Crd(kind, found) => self.definition(kind, found),
            Message::Map(i, update) => {
                if let (Some(changes), Some(mesh)) = (self.changes(Who::Map(i), update), &mut self.mesh) {
                    mesh.take(i, changes);
                    // Before all of them are known nothing is told of any.
                    if !self.pending.iter().any(|who| matches!(who, Who::Map(_))) {
                        mesh.tell(&mut self.batch);
                        if let Some(settings) = mesh.settings() {
                            self.selection.select(&settings.discovery_selectors);
                        }
                    }
                }
            }
        }
    }

    /// What is different in a collection; what is wrong with it is noted.
    fn changes<T>(&mut self, who: Who, update: Update<T>) -> Option<Vec<Change<T>>> {
        let name = self.name_of(who);
        match update {
            Update::Changed { whole, epoch, changes } => {
                if whole {
                    match who {
                        // What it has told may be of no use, if it was not known then whose rules count.
                        Who::Kind(kind) if !PLATFORM.contains(&kind) => drop(self.whole.insert(kind, epoch)),
                        _ => drop(self.pending.remove(&who)),
                    }
                }
                return Some(changes);
            }
            Update::Well => {
                if self.troubles.well(&name) {
                    self.tell_troubles();
                }
            }
            Update::Trouble(trouble) => {
                let is_missing = matches!(&trouble, Trouble::Call(error) if error.status() == Some(404));
                let is_forbidden = matches!(trouble, Trouble::Forbidden(_));
                let is_undefined = is_missing
                    && matches!(who, Who::Kind(kind) if !PLATFORM.contains(&kind) && !self.defined.contains(&kind));
                // What we may not see does not keep the rest from being served; nor do rules of a kind that is not there.
                if is_forbidden || is_undefined {
                    self.pending.remove(&who);
                }
                if is_forbidden && who == Who::Crds {
                    self.assume_definitions();
                }
                if !is_undefined && self.troubles.note(name, &trouble) {
                    self.tell_troubles();
                }
            }
        }
        None
    }

    fn name_of(&self, who: Who) -> String {
        match who {
            Who::Kind(kind) => match self.places.get(&kind) {
                Some(place) => place.borrow().name(),
                None => platform(kind).name(),
            },
            Who::Crds | Who::Crd(_) => crds::resource().name(),
            Who::Map(_) => "configmaps".to_owned(),
        }
    }

    fn tell_troubles(&mut self) {
        let issues = self.troubles.issues(&self.options.read.cluster, &self.client);
        self.note(Name::new("API server"), issues);
    }

    /// What is well and was well is not worth a word.
    fn note(&mut self, place: Name, issues: Vec<Issue>) {
        let was_troubled = self.troubled.contains(&place);
        if issues.is_empty() {
            self.troubled.remove(&place);
        } else {
            self.troubled.insert(place.clone());
        }
        if was_troubled || !issues.is_empty() {
            self.batch.issues.push((place, issues));
        }
    }

    fn object(&mut self, kind: Kind, change: Change<Object>) {
        let Change { id, what, issues } = change;
        let place = Name::from(id.object(kind).to_string());
        let cluster = match &self.options.role {
            Role::Remote => self.options.read.cluster.clone(),
            Role::Home { .. } => Name::empty(),
        };
        let key = (kind, ConfigId { cluster, ..id });
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
                initial.insert(key, object);
            }
            (What::Put(object), None) => self.batch.events.push(Event::Apply(object)),
            (What::Gone, Some(initial)) => {
                initial.remove(&key);
            }
            (What::Gone, None) => self.batch.events.push(Event::Delete(key)),
            (What::Same, _) => {}
        }
        self.note(place, issues);
    }

    fn definitions(&mut self, changes: Vec<Change<Kind>>) {
        for change in changes {
            match change.what {
                What::Put(kind) => {
                    self.defined.insert(kind);
                    // Rules of a kind that comes later are not waited for.
                    if self.initial.is_some() {
                        self.pending.insert(Who::Crd(kind));
                    }
                    self.ask_for_definition(kind);
                }
                What::Gone => {
                    self.defined.retain(|kind| crds::kind_of(&change.id.name) != Some(*kind));
                }
                What::Same => {}
            }
        }
        let missing = crds::missing(&self.defined, &self.options.read.cluster);
        self.note(Name::new("CRDs"), missing);
    }

    /// Who may not see definitions tries what Istio serves today.
    fn assume_definitions(&mut self) {
        for (kind, resource) in crds::usual() {
            if !self.places.contains_key(&kind) {
                self.definition(kind, Ok(Some(resource)));
            }
        }
    }

    fn ask_for_definition(&mut self, kind: Kind) {
        let (client, teller) = (self.client.clone(), self.messages.0.clone());
        self.tasks.spawn(async move {
            let found = crds::stored(&client, kind).await;
            // A hub that is gone does not want to know.
            let _gone = teller.send(Message::Crd(kind, found)).await;
        });
    }

    fn definition(&mut self, kind: Kind, found: Result<Option<Resource>, CallError>) {
        match found {
            Ok(Some(mut resource)) => {
                resource.namespace.clone_from(&self.options.only_namespace);
                self.pending.remove(&Who::Crd(kind));
                match self.places.get(&kind) {
                    Some(place) => {
                        place.send_if_modified(|known| {
                            let is_new = *known != resource;
                            known.clone_from(&resource);
                            is_new
                        });
                    }
                    None => {
                        let (sender, place) = watch::channel(resource);
                        self.places.insert(kind, sender);
                        self.found.send_modify(|found| drop(found.insert(kind, place.clone())));
                        self.follow_kind(kind, place);
                        if self.initial.is_none() {
                            self.pending.remove(&Who::Kind(kind));
                        }
                    }
                }
            }
            // It will say so when it is served; until then it is as if it were not there.
            Ok(None) => {
                self.pending.remove(&Who::Crd(kind));
            }
            Err(error) if matches!(error.status(), Some(403 | 404)) => {
                self.pending.remove(&Who::Crd(kind));
            }
            Err(_) if self.defined.contains(&kind) => self.ask_again(kind),
            Err(_) => {}
        }
    }

    fn ask_again(&mut self, kind: Kind) {
        let (client, teller) = (self.client.clone(), self.messages.0.clone());
        self.tasks.spawn(async move {
            tokio::time::sleep(crate::pace::jitter(std::time::Duration::from_secs(1))).await;
            let found = crds::stored(&client, kind).await;
            let _gone = teller.send(Message::Crd(kind, found)).await;
        });
    }

    /// Everything is told at once, as soon as everything is known.
    fn settle(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        if self.initial.is_none() {
            return;
        }
        let epoch = self.selection.epoch();
        // Rules that were listed before it was known whose rules count are listed again.
        let is_whole = |kind: &Kind| self.whole.get(kind).is_some_and(|as_of| *as_of >= epoch);
        if !self.pending.iter().all(|who| matches!(who, Who::Kind(kind) if is_whole(kind))) {
            return;
        }
        self.pending.clear();
        if let Some(initial) = self.initial.take() {
            tracing::info!("cluster {}: {} objects", self.options.read.cluster, initial.len());
            self.batch.events.push(Event::Init);
            self.batch.events.extend(initial.into_values().map(Event::InitApply));
            self.batch.events.push(Event::InitDone);
        }
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
