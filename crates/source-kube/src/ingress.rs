//! Kubernetes' own Ingresses, as a source of the rules that they stand for.
//!
//! ```text
//!   Ingresses, IngressClasses, ports of services, settings of the mesh ──► Maker ──► Gateways, VirtualServices: what differs
//! ```

mod convert;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Issue, Name, ObjectRef};
use pilot_config::{Document, ReadOptions, Tree, read_object};
use pilot_model::{ConfigId, IngressSettings, Kind, MeshConfig, Object, ObjectKey};
use pilot_source::{Batch, Event, Running, Sink, Source};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use self::convert::Maker;
use crate::client::Client;
use crate::follow::{Follow, Trouble, Update};
use crate::known::{Change, Look, Verdict, What};
use crate::resource::Resource;
use crate::tasks;

pub use convert::Ingress;

const CAPACITY: usize = 64;
const AT_ONCE: usize = 64;

/// Where Ingresses stand.
pub fn ingresses() -> Resource {
    Resource::new("networking.k8s.io", "v1", "ingresses")
}

/// Where it stands who is responsible for which of them.
pub fn ingress_classes() -> Resource {
    Resource::new("networking.k8s.io", "v1", "ingressclasses")
}

fn services() -> Resource {
    Resource::new("", "v1", "services")
}

pub struct IngressSource {
    pub client: Client,
    pub read: ReadOptions,
    /// The namespace of the gateway: `K8S_INGRESS_NS`
    pub namespace: Name,
    pub only_namespace: Option<Name>,
    pub mesh: watch::Receiver<Arc<MeshConfig>>,
}

impl Source for IngressSource {
    fn name(&self) -> Name {
        Name::new("Ingresses")
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(run(*self, sink))
    }

    fn is_vital(&self) -> bool {
        true
    }
}

pub struct IngressLook;

impl Look for IngressLook {
    type Value = Ingress;

    fn look(&self, object: Tree<'_>) -> Verdict<Ingress> {
        Verdict::Take(Ingress::read(object), Vec::new())
    }
}

/// Finds out who is responsible for a class.
pub struct ClassLook;

impl Look for ClassLook {
    type Value = String;

    fn look(&self, object: Tree<'_>) -> Verdict<String> {
        Verdict::Take(object.text_at(&["spec", "controller"]).to_owned(), Vec::new())
    }
}

/// Numbers of ports by their names.
type Ports = BTreeMap<String, u16>;

struct PortsLook;

impl Look for PortsLook {
    type Value = Ports;

    fn look(&self, object: Tree<'_>) -> Verdict<Ports> {
        let ports = object.at(&["spec", "ports"]).into_iter().flat_map(Tree::items);
        let named = ports.filter_map(|port| {
            let number = port.get("port").and_then(Tree::number)?;
            Some((port.text_at(&["name"]).to_owned(), u16::try_from(number).ok()?))
        });
        Verdict::Take(named.collect(), Vec::new())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Ingresses,
    Classes,
    Ports,
}

enum Message {
    Ingresses(Update<Ingress>),
    Classes(Update<String>),
    Ports(Update<Ports>),
}

async fn run(source: IngressSource, sink: Sink) {
    let (teller, mut messages) = mpsc::channel(CAPACITY);
    let mut mesh = source.mesh.clone();
    let mut hub = Hub::new(source, teller);
    hub.begin();
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(message) => hub.take(message),
                None => return,
            },
            changed = mesh.changed() => if changed.is_err() { return },
            () = sink.closed() => return,
        }
        for _ in 1..AT_ONCE {
            match messages.try_recv() {
                Ok(message) => hub.take(message),
                Err(_) => break,
            }
        }
        let settings = mesh.borrow_and_update().ingress.clone();
        let batch = hub.settle(settings);
        if !batch.is_empty() && sink.send(batch).await.is_err() {
            return;
        }
    }
}

struct Hub {
    source: IngressSource,
    teller: mpsc::Sender<Message>,
    tasks: JoinSet<()>,
    settings: Option<IngressSettings>,
    ingresses: BTreeMap<ConfigId, Ingress>,
    classes: BTreeMap<Name, String>,
    /// Nothing before an Ingress asks for any.
    ports: Option<BTreeMap<ConfigId, Ports>>,
    /// Ingresses that count, by the hosts that they speak of.
    by_host: BTreeMap<String, BTreeSet<ConfigId>>,
    pending: BTreeSet<Who>,
    /// What has to be looked at again.
    open: BTreeSet<ConfigId>,
    open_hosts: BTreeSet<String>,
    /// Whom each Ingress, and each host, was told as.
    told: BTreeMap<Origin, (ObjectKey, Object)>,
    is_told: bool,
    batch: Batch,
}

/// What an object was made of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Origin {
    Ingress(ConfigId),
    Host(String),
}

impl Hub {
    fn new(source: IngressSource, teller: mpsc::Sender<Message>) -> Self {
        Self {
            source,
            teller,
            tasks: JoinSet::new(),
            settings: None,
            ingresses: BTreeMap::new(),
            classes: BTreeMap::new(),
            ports: None,
            by_host: BTreeMap::new(),
            pending: BTreeSet::from([Who::Ingresses, Who::Classes]),
            open: BTreeSet::new(),
            open_hosts: BTreeSet::new(),
            told: BTreeMap::new(),
            is_told: false,
            batch: Batch::default(),
        }
    }

    fn begin(&mut self) {
        let namespace = self.source.only_namespace.clone();
        self.follow(Resource { namespace, ..ingresses() }, IngressLook, Message::Ingresses);
        self.follow(ingress_classes(), ClassLook, Message::Classes);
    }

    fn follow<L: Look>(
        &mut self,
        resource: Resource,
        look: L,
        wrap: impl Fn(Update<L::Value>) -> Message + Send + Sync + 'static,
    ) {
        let follow = Follow::fixed(self.source.client.clone(), resource, look);
        self.tasks.spawn(follow.run(self.teller.clone(), wrap));
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Ingresses(update) => {
                for Change { id, what, .. } in self.changes(Who::Ingresses, update) {
                    self.forget_hosts(&id);
                    match what {
                        What::Put(ingress) => drop(self.ingresses.insert(id.clone(), ingress)),
                        What::Gone => drop(self.ingresses.remove(&id)),
                        What::Same => {}
                    }
                    self.open.insert(id);
                }
            }
            Message::Classes(update) => {
                for Change { id, what, .. } in self.changes(Who::Classes, update) {
                    match what {
                        What::Put(controller) => drop(self.classes.insert(id.name.clone(), controller)),
                        What::Gone => drop(self.classes.remove(&id.name)),
                        What::Same => {}
                    }
                    let of_class =
                        self.ingresses.iter().filter(|(_, ingress)| ingress.class.as_ref() == Some(&id.name));
                    self.open.extend(of_class.map(|(ingress, _)| ingress.clone()));
                }
            }
            Message::Ports(update) => {
                for Change { id, what, .. } in self.changes(Who::Ports, update) {
                    let ports = self.ports.get_or_insert_default();
                    match what {
                        What::Put(numbers) => drop(ports.insert(id.clone(), numbers)),
                        What::Gone => drop(ports.remove(&id)),
                        What::Same => {}
                    }
                    let asks = |(ingress, said): &(&ConfigId, &Ingress)| {
                        ingress.namespace == id.namespace
                            && said.asks_for_ports_of().any(|service| id.name == service)
                    };
                    self.open.extend(self.ingresses.iter().filter(asks).map(|(ingress, _)| ingress.clone()));
                }
            }
        }
    }

    /// What is different in a collection; what is wrong with it is noted.
    fn changes<T>(&mut self, who: Who, update: Update<T>) -> Vec<Change<T>> {
        let what = match who {
            Who::Ingresses => ingresses(),
            Who::Classes => ingress_classes(),
            Who::Ports => services(),
        };
        let what = what.name();
        let place = Name::from(format!("API server: {what}"));
        match update {
            Update::Changed { whole, changes, .. } => {
                if whole {
                    self.pending.remove(&who);
                }
                changes
            }
            Update::Well => {
                self.batch.issues.push((place, Vec::new()));
                Vec::new()
            }
            Update::Trouble(trouble) => {
                let is_missing = matches!(&trouble, Trouble::Call(error) if error.status() == Some(404));
                if is_missing || matches!(trouble, Trouble::Forbidden(_)) {
                    self.pending.remove(&who);
                }
                let object = ObjectRef::new("Cluster", Name::empty(), self.source.read.cluster.clone());
                let issue = Issue::error(object, "", format!("{what} cannot be followed: {trouble}"));
                self.batch.issues.push((place, vec![issue]));
                Vec::new()
            }
        }
    }

    fn forget_hosts(&mut self, id: &ConfigId) {
        let hosts = self.ingresses.get(id).into_iter().flat_map(|ingress| ingress.hosts().map(str::to_owned));
        for host in hosts {
            if let Some(of_host) = self.by_host.get_mut(&host) {
                of_host.remove(id);
            }
            self.open_hosts.insert(host);
        }
    }

    /// Tells what is different, once everything is known.
    fn settle(&mut self, settings: IngressSettings) -> Batch {
        while let Some(outcome) = self.tasks.try_join_next() {
            tasks::ended(outcome);
        }
        if self.settings.as_ref() != Some(&settings) {
            self.settings = Some(settings);
            self.open.extend(self.ingresses.keys().cloned());
        }
        let asks = self.ingresses.values().any(|ingress| ingress.asks_for_ports_of().next().is_some());
        if asks && self.ports.is_none() {
            self.ports = Some(BTreeMap::new());
            self.pending.insert(Who::Ports);
            let namespace = self.source.only_namespace.clone();
            self.follow(Resource { namespace, ..services() }, PortsLook, Message::Ports);
        }
        if self.pending.is_empty() {
            self.tell();
        }
        std::mem::take(&mut self.batch)
    }

    fn tell(&mut self) {
        let Some(settings) = self.settings.clone() else { return };
        let begins = !std::mem::replace(&mut self.is_told, true);
        if begins {
            self.batch.events.push(Event::Init);
        }
        let say = if begins { Event::InitApply } else { Event::Apply };
        for id in std::mem::take(&mut self.open) {
            self.forget_hosts(&id);
            let object = self.gateway(&id, &settings);
            self.put(Origin::Ingress(id), object, say);
        }
        for host in std::mem::take(&mut self.open_hosts) {
            let object = self.virtual_service(&host, &settings);
            self.put(Origin::Host(host), object, say);
        }
        if begins {
            self.batch.events.push(Event::InitDone);
        }
    }

    fn maker<'a>(&'a self, settings: &'a IngressSettings) -> Maker<'a> {
        Maker { settings, namespace: &self.source.namespace, domain: &self.source.read.domain }
    }

    /// Its Gateway, if it is ours; then its hosts are to be looked at as well.
    fn gateway(&mut self, id: &ConfigId, settings: &IngressSettings) -> Option<Object> {
        let place = Name::from(format!("Ingress {id}"));
        let ours = self.ingresses.get(id).filter(|ingress| {
            let controller = ingress.class.as_ref().and_then(|class| self.classes.get(class));
            ingress.is_ours(settings, controller.map(String::as_str))
        });
        let Some(ingress) = ours else {
            self.batch.issues.push((place, Vec::new()));
            return None;
        };
        let object = || ObjectRef::new("Ingress", id.namespace.clone(), id.name.clone());
        let mut issues: Vec<Issue> = ingress
            .warnings()
            .into_iter()
            .map(|(field, what)| Issue::warning(object(), field, what))
            .collect();
        for host in ingress.hosts() {
            self.by_host.entry(host.to_owned()).or_default().insert(id.clone());
            self.open_hosts.insert(host.to_owned());
        }
        let made = self.maker(settings).gateway(id, ingress);
        let (made, more) = read(&made, Kind::Gateway, &self.source.read);
        issues.extend(more.into_iter().map(|issue| Issue { object: object(), ..issue }));
        self.batch.issues.push((place, issues));
        made
    }

    fn virtual_service(&mut self, host: &str, settings: &IngressSettings) -> Option<Object> {
        let place = Name::from(format!("host {host}"));
        let of_host = self.by_host.get(host).into_iter().flatten();
        let ingresses: Vec<(&ConfigId, &Ingress)> =
            of_host.filter_map(|id| self.ingresses.get_key_value(id)).collect();
        let port_of = |service: &ConfigId, port: &str| self.ports.as_ref()?.get(service)?.get(port).copied();
        let made = self.maker(settings).virtual_service(host, &ingresses, &port_of);
        let Some(made) = made else {
            self.by_host.retain(|_, ingresses| !ingresses.is_empty());
            self.batch.issues.push((place, Vec::new()));
            return None;
        };
        let object = ingresses
            .first()
            .map(|(id, _)| ObjectRef::new("Ingress", id.namespace.clone(), id.name.clone()))
            .unwrap_or_default();
        let (made, issues) = read(&made, Kind::VirtualService, &self.source.read);
        let told = |issue: Issue| {
            let message = format!("host {host}: {}", issue.message);
            Issue { object: object.clone(), message, ..issue }
        };
        self.batch.issues.push((place, issues.into_iter().map(told).collect()));
        made
    }

    fn put(&mut self, origin: Origin, object: Option<Object>, say: fn(Object) -> Event) {
        let before = self.told.get(&origin);
        if before.map(|(_, object)| object) == object.as_ref() {
            return;
        }
        let key = object.as_ref().map(Object::key);
        let gone = before.map(|(key, _)| key).filter(|before| Some(*before) != key.as_ref()).cloned();
        self.batch.events.extend(gone.map(Event::Delete));
        match object.zip(key) {
            Some((object, key)) => {
                let told = object.clone();
                self.batch.events.push(say(told));
                self.told.insert(origin, (key, object));
            }
            None => drop(self.told.remove(&origin)),
        }
    }
}

/// What a made object means, and what is wrong with it.
fn read(made: &Value, kind: Kind, options: &ReadOptions) -> (Option<Object>, Vec<Issue>) {
    let text = made.to_string();
    // What was written by us can be read.
    let Ok(document) = Document::parse(text.as_bytes()) else { return (None, Vec::new()) };
    let reading = read_object(document.tree(), kind, "", options);
    (reading.objects.into_iter().next().map(|(_, _, object)| object), reading.issues)
}
