//! Other clusters, which secrets of our own say how to reach.
//!
//! ```text
//!   secrets ──► one KubeSource for each cluster ──► one source for all of them
//! ```
//!
//! What a cluster told stays while it does not answer. If its secret is changed, it is followed in both ways until everything
//! is known in the new one: then only what is gone is taken back, of each kind, and most of one only after a while, or when
//! somebody confirms it. A secret that is gone takes its cluster along, unless it comes back soon.

mod cluster;
mod secrets;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Issue, Name, ObjectRef};
use pilot_config::ReadOptions;
use pilot_model::{Object, ObjectKey};
use pilot_source::{Batch, ClusterState, ClusterStates, Event, Running, Sink, Source, Sync};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::cluster::{Attempt, Cluster, Told};
use self::secrets::{Configs, SecretLook, Secrets};
use crate::access::{Access, Source as KubeconfigOf};
use crate::client::Client;
use crate::follow::{Follow, Trouble, Update};
use crate::pace::Pace;
use crate::resource::Resource;
use crate::source::{ClusterOptions, KubeSource, Role};
use crate::tally::{Became, Heard, Tally};
use crate::tasks;

/// How other clusters are followed.
#[derive(Clone)]
pub struct RemoteOptions {
    /// Where the secrets are.
    pub namespace: Name,
    pub domain: Name,
    /// The cluster that we belong to.
    pub home: Name,
    pub pace: Pace,
    /// Who has not told everything so long after it was first heard of is not waited for.
    pub patience: Duration,
    pub only_namespace: Option<Name>,
    /// For which revision their WorkloadEntries are read, if they are.
    pub workloads: Option<Name>,
}

/// A secret that is gone may be about to be written anew.
const GRACE: Duration = Duration::from_secs(10);
const CAPACITY: usize = 64;

pub struct RemoteClusters {
    client: Client,
    options: RemoteOptions,
    states: watch::Sender<Vec<ClusterState>>,
    clients: watch::Sender<BTreeMap<Name, Client>>,
    home: watch::Receiver<bool>,
    tally: Tally,
}

/// How other clusters are reached, by their names.
pub type RemoteClients = watch::Receiver<BTreeMap<Name, Client>>;

impl RemoteClusters {
    pub fn new(client: Client, options: RemoteOptions) -> Self {
        let (_, home) = watch::channel(true);
        let states = watch::Sender::new(vec![home_state(&options.home, &home)]);
        Self { client, options, states, clients: watch::Sender::default(), home, tally: Tally::default() }
    }

    /// The same where somebody counts what is heard.
    #[must_use]
    pub fn counted(self, tally: Tally) -> Self {
        Self { tally, ..self }
    }

    /// The same where it takes a while until the cluster that we belong to is known itself.
    #[must_use]
    pub fn beside(self, home: watch::Receiver<bool>) -> Self {
        self.states.send_replace(vec![home_state(&self.options.home, &home)]);
        Self { home, ..self }
    }

    /// How they are reached, from now on.
    pub fn clients(&self) -> RemoteClients {
        self.clients.subscribe()
    }

    /// How the clusters are, from now on.
    pub fn states(&self) -> ClusterStates {
        self.states.subscribe()
    }
}

impl Source for RemoteClusters {
    fn name(&self) -> Name {
        Name::new("remote clusters")
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(Fleet::new(*self).run(sink))
    }

    fn is_vital(&self) -> bool {
        true
    }
}

enum Message {
    Secrets(Update<Configs>),
    /// What a cluster told, and which attempt at it.
    Batch(Name, u64, Batch),
}

struct Fleet {
    client: Client,
    options: RemoteOptions,
    states: watch::Sender<Vec<ClusterState>>,
    clients: watch::Sender<BTreeMap<Name, Client>>,
    home: watch::Receiver<bool>,
    tally: Tally,
    secrets: Secrets,
    messages: (mpsc::Sender<Message>, mpsc::Receiver<Message>),
    tasks: JoinSet<()>,
    clusters: BTreeMap<Name, Cluster>,
    /// Are all secrets known?
    listed: bool,
    /// What is told when everybody is known, or was waited for long enough.
    initial: Option<BTreeMap<ObjectKey, Object>>,
    attempts: u64,
    batch: Batch,
}

impl Fleet {
    fn new(source: RemoteClusters) -> Self {
        let RemoteClusters { client, options, states, clients, home, tally } = source;
        Self {
            client,
            options,
            states,
            clients,
            home,
            tally,
            secrets: Secrets::default(),
            messages: mpsc::channel(CAPACITY),
            tasks: JoinSet::new(),
            clusters: BTreeMap::new(),
            listed: false,
            initial: Some(BTreeMap::new()),
            attempts: 0,
            batch: Batch::default(),
        }
    }

    async fn run(mut self, sink: Sink) {
        let secrets = Resource {
            namespace: Some(self.options.namespace.clone()),
            labels: Some(Name::new("istio/multiCluster=true")),
            ..Resource::new("", "v1", "secrets")
        };
        let follow = Follow::fixed(self.client.clone(), secrets, SecretLook);
        self.tasks.spawn(follow.run(self.messages.0.clone(), Message::Secrets));
        loop {
            let due = self.due();
            tokio::select! {
                message = self.messages.1.recv() => match message {
                    Some(Message::Secrets(update)) => self.secrets(update),
                    Some(Message::Batch(cluster, attempt, batch)) => self.told(&cluster, attempt, batch),
                    None => return,
                },
                () = sleep_until(due) => {}
                () = changed(&mut self.home) => {}
                Some(outcome) = self.tasks.join_next() => tasks::ended(outcome),
                () = sink.closed() => return,
            }
            self.settle();
            let batch = std::mem::take(&mut self.batch);
            if !batch.is_empty() && sink.send(batch).await.is_err() {
                return;
            }
        }
    }

    /// When something has to be done though nobody says anything.
    fn due(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(3600);
        self.clusters.values().filter_map(Cluster::due).min().unwrap_or(far)
    }

    fn secrets(&mut self, update: Update<Configs>) {
        match update {
            Update::Changed { whole, changes, .. } => {
                self.listed |= whole;
                let became = changes.iter().filter_map(Became::of);
                became.for_each(|became| self.tally.note(Heard::Secret(became)));
                changes.into_iter().for_each(|change| self.secrets.hear(change));
                self.review();
            }
            Update::Well => self.batch.issues.push((Name::new("secrets"), Vec::new())),
            Update::Trouble(trouble) => {
                self.listed |= matches!(trouble, Trouble::Forbidden(_));
                let why = trouble.to_string();
                let object = ObjectRef::new("Cluster", Name::empty(), self.options.home.clone());
                let message = format!("secrets in {} of other clusters: {why}", self.options.namespace);
                self.batch.issues.push((Name::new("secrets"), vec![Issue::error(object, "", message)]));
            }
        }
    }

    /// Follows the clusters that secrets speak of, each as the first of them says that can be used.
    fn review(&mut self) {
        self.secrets.begin();
        let later = Instant::now() + GRACE;
        for id in
            self.secrets.clusters().into_iter().chain(self.clusters.keys().cloned()).collect::<BTreeSet<_>>()
        {
            let believed = self.clusters.get(&id).map(|cluster| cluster.secret.clone());
            let mut owner: Option<String> = None;
            for (secret, config) in self.secrets.of(&id, believed.as_deref()) {
                if let Some(owner) = &owner {
                    let why = format!("is said by the secret {owner} already; this counts when that is gone");
                    self.secrets.note(&secret, &id, why);
                    continue;
                }
                match self.open(&id, &secret, &config) {
                    Ok(()) => owner = Some(secret),
                    Err(why) => {
                        self.secrets.note(&secret, &id, why);
                        // It is followed as before.
                        owner = Some(secret).filter(|secret| Some(secret) == believed.as_ref());
                    }
                }
            }
            if owner.is_none()
                && let Some(cluster) = self.clusters.get_mut(&id)
            {
                cluster.leave(later);
            }
        }
        self.batch.issues.extend(self.secrets.news());
    }

    /// Follows a cluster, perhaps in another way than before.
    fn open(&mut self, id: &Name, secret: &str, config: &str) -> Result<(), String> {
        if *id == self.options.home {
            return Err("is the cluster that this server belongs to; it is followed anyway".to_owned());
        }
        let mut told = Told::default();
        if let Some(cluster) = self.clusters.get_mut(id)
            && cluster.is_reached_by(config, &mut told)
        {
            cluster.stay(secret);
            self.pass_on(id, told);
            return Ok(());
        }
        let access =
            Access::of_kubeconfig(config, KubeconfigOf::Secret(secret)).map_err(|e| e.to_string())?;
        let clock = Arc::clone(self.client.clock());
        let client = Client::new(&access, self.options.pace, clock).map_err(|error| error.to_string())?;
        let client = client.of_cluster(id, self.client.doubts().clone());
        tracing::info!("following cluster {id} at {}, as {secret} says", access.server);
        let before = self.clusters.get(id).and_then(Cluster::before);
        let attempt = self.attempt((id, config), client, before);
        let late = Instant::now() + self.options.patience;
        let cluster = self.clusters.entry(id.clone()).or_insert_with(|| Cluster::new(late));
        let told = cluster.begin(secret, attempt);
        self.pass_on(id, told);
        Ok(())
    }

    /// Begins to follow a cluster, and goes on from what is known of it.
    fn attempt(
        &mut self,
        (id, config): (&Name, &str),
        client: Client,
        before: Option<BTreeMap<ObjectKey, u32>>,
    ) -> Attempt {
        self.attempts += 1;
        let number = self.attempts;
        let read = ReadOptions { domain: self.options.domain.clone(), cluster: id.clone(), platform: true };
        let only_namespace = self.options.only_namespace.clone();
        let role = Role::Remote { workloads: self.options.workloads.clone() };
        let options = ClusterOptions { read, role, only_namespace, settings: None };
        let mut source = KubeSource::new(client.clone(), options).counted(self.tally.clone());
        let known = before.iter().flat_map(BTreeMap::keys).cloned().collect();
        if let Some(before) = before {
            source = source.knowing(before);
        }
        let (sink, mut batches) = mpsc::channel(CAPACITY);
        let (teller, name) = (self.messages.0.clone(), id.clone());
        let running = self.tasks.spawn(Box::new(source).run(sink));
        let forwarding = self.tasks.spawn(async move {
            while let Some(batch) = batches.recv().await {
                if teller.send(Message::Batch(name.clone(), number, batch)).await.is_err() {
                    return;
                }
            }
        });
        let tasks = vec![running, forwarding];
        Attempt { number, config: config.to_owned(), client, tasks, before: known, troubled: BTreeSet::new() }
    }

    fn told(&mut self, id: &Name, attempt: u64, batch: Batch) {
        let Some(cluster) = self.clusters.get_mut(id) else { return };
        // Two attempts at one cluster may say different things of one place.
        let place = |place: Name| Name::from(format!("{id} {attempt}: {place}"));
        let issues: Vec<(Name, Vec<Issue>)> =
            batch.issues.into_iter().map(|(at, issues)| (place(at), issues)).collect();
        if !cluster.note(attempt, &issues) {
            return;
        }
        let told = cluster.take(attempt, batch.events);
        self.batch.issues.extend(issues);
        self.pass_on(id, told);
    }

    fn pass_on(&mut self, id: &Name, told: Told) {
        let Told { put, gone, client, forgiven } = told;
        self.batch.issues.extend(forgiven.into_iter().map(|place| (place, Vec::new())));
        if let Some(client) = client {
            self.clients.send_modify(|clients| drop(clients.insert(id.clone(), client)));
        }
        match &mut self.initial {
            Some(initial) => {
                initial.extend(put.into_iter().map(|object| (object.key(), object)));
                gone.iter().for_each(|key| {
                    initial.remove(key);
                });
            }
            None => {
                self.batch.events.extend(put.into_iter().map(Event::Apply));
                self.batch.events.extend(gone.into_iter().map(Event::Delete));
            }
        }
    }

    /// What is due now, and whether everybody is known.
    fn settle(&mut self) {
        let now = Instant::now();
        let ids: Vec<Name> = self.clusters.keys().cloned().collect();
        for id in ids {
            let Some(cluster) = self.clusters.get_mut(&id) else { continue };
            if cluster.gets_late(now) {
                self.tally.note(Heard::Late(id.clone()));
                tracing::warn!(
                    "cluster {id} has not told what it has within {:?}; serving without it",
                    self.options.patience
                );
            }
            let told = cluster.settle(now);
            let is_over = cluster.is_over();
            self.pass_on(&id, told);
            if is_over {
                self.clusters.remove(&id);
                self.clients.send_modify(|clients| drop(clients.remove(&id)));
                tracing::info!("cluster {id} is not followed any more");
            }
        }
        // Who the others are is said by our own cluster, without which nobody is served.
        let is_enough =
            self.listed && self.clusters.values().all(|cluster| cluster.is_synced || cluster.is_late);
        if is_enough && let Some(initial) = self.initial.take() {
            self.batch.events.push(Event::Init);
            self.batch.events.extend(initial.into_values().map(Event::InitApply));
            self.batch.events.push(Event::InitDone);
        }
        self.publish();
    }

    fn publish(&self) {
        let home = home_state(&self.options.home, &self.home);
        let others = self.clusters.iter().map(|(id, cluster)| ClusterState {
            id: id.clone(),
            secret: cluster.secret.clone(),
            sync: match (cluster.is_leaving(), cluster.is_synced) {
                (true, _) => Sync::Closed,
                (_, true) => Sync::Synced,
                _ if cluster.is_late => Sync::Timeout,
                _ => Sync::Syncing,
            },
        });
        let states: Vec<ClusterState> = std::iter::once(home).chain(others).collect();
        self.states.send_if_modified(|known| {
            let is_new = *known != states;
            *known = states;
            is_new
        });
    }
}

fn home_state(id: &Name, is_known: &watch::Receiver<bool>) -> ClusterState {
    let sync = if *is_known.borrow() { Sync::Synced } else { Sync::Syncing };
    ClusterState { id: id.clone(), secret: String::new(), sync }
}

/// Waits until something else is known; for ever if that will never be.
async fn changed(known: &mut watch::Receiver<bool>) {
    if known.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
