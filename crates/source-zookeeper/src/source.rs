use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pilot_base::Name;
use pilot_source::{
    Batch, Contact, Ended, Instance, Registration, RegistryOptions, Running, Session, Shelf, Sink, Source,
    Suspicion, Teller, follow, until_due,
};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::{Listening, Newest, ZkError, ZooKeeper};
use crate::layout::{Layout, Place};

/// How ZooKeeper is followed.
pub struct ZooKeeperOptions {
    pub registry: RegistryOptions,
    /// `host:port` of each server of the ensemble; one of them is asked.
    pub servers: Vec<String>,
    /// The node below which services stand, without a slash at its end.
    pub root: String,
    pub layout: Layout,
    /// For nodes that not everybody may see, and servers that not everybody may ask.
    pub credentials: Option<Credentials>,
    /// How long a server may be silent.
    pub session: Duration,
    /// How often nodes that may not be seen are asked for again: no watch tells that they may be.
    pub again: Duration,
}

/// A user and the password, which is shown to nobody.
#[derive(Clone)]
pub struct Login {
    pub user: String,
    pub password: String,
}

/// How we say who we are.
#[derive(Clone)]
pub enum Credentials {
    /// ZooKeeper's own scheme, which sends the password.
    Digest(Login),
    /// SASL with DIGEST-MD5, which does not.
    Sasl(Login),
}

impl Login {
    /// Reads `user:password`.
    pub fn parse(text: &str) -> Option<Self> {
        let (user, password) = text.trim().split_once(':')?;
        Some(Self { user: user.to_owned(), password: password.to_owned() })
    }
}

/// Services that stand in the tree of an ensemble.
pub struct ZooKeeperSource {
    registry: RegistryOptions,
    ensemble: Ensemble,
}

struct Ensemble {
    servers: Vec<String>,
    next: usize,
    root: String,
    layout: Layout,
    credentials: Option<Credentials>,
    session: Duration,
    again: Duration,
    newest: Newest,
    /// How many servers in a row knew less than what was seen.
    behind: usize,
}

impl ZooKeeperSource {
    pub fn new(options: ZooKeeperOptions) -> Self {
        let ZooKeeperOptions { registry, servers, root, layout, credentials, session, again } = options;
        let (root, newest) = (root.trim_end_matches('/').to_owned(), Newest::default());
        let (next, behind) = (0, 0);
        let ensemble = Ensemble { servers, next, root, layout, credentials, session, again, newest, behind };
        Self { registry, ensemble }
    }
}

impl Source for ZooKeeperSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.registry.contact.clone())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.ensemble, Shelf::new(self.registry), sink))
    }
}

impl Session for Ensemble {
    async fn follow(&mut self, teller: &mut Teller) -> Ended {
        let Some(server) = self.servers.get(self.next % self.servers.len().max(1)).cloned() else {
            return Ended::lost("no server is named");
        };
        let ended = self.session(&server, teller).await;
        if let Ended::Lost(why) = ended {
            self.next = self.next.wrapping_add(1);
            return Ended::Lost(format!("{server}: {why}"));
        }
        ended
    }
}

impl Ensemble {
    async fn session(&mut self, server: &str, teller: &mut Teller) -> Ended {
        let (touched, mut told) = mpsc::unbounded_channel();
        let contact = teller.shelf.options().contact.clone();
        let listening = Listening { touched, contact, newest: self.newest.clone() };
        let zk = match ZooKeeper::listen(server, self.session, listening).await {
            Ok(zk) => zk,
            Err(error) => return self.not_begun(server, error, teller).await,
        };
        self.behind = 0;
        match self.watch(&zk, &mut told, teller).await {
            Ok(never) => match never {},
            Err(Broken::Told(ended)) => ended,
            // Whoever waits for an answer learns only that none comes; the connection knows why.
            Err(Broken::Zk(ZkError::Lost(_))) => Ended::lost(zk.why_lost()),
            Err(Broken::Zk(error)) => Ended::lost(error),
        }
    }

    /// A follower that lags has to catch up before it is believed. If all of them know less, the ensemble has begun anew.
    async fn not_begun(&mut self, server: &str, error: ZkError, teller: &mut Teller) -> Ended {
        if self.newest.get() == 0 || !ZooKeeper::knows_less(server, self.session).await {
            return Ended::lost(error);
        }
        self.behind += 1;
        if self.behind >= self.servers.len() {
            self.newest.forget();
            self.behind = 0;
            teller.shelf.doubt(Suspicion::KnowsLess);
        }
        Ended::lost("it knows less than what was told, and is not believed")
    }

    async fn watch(
        &self,
        zk: &ZooKeeper,
        touched: &mut mpsc::UnboundedReceiver<String>,
        teller: &mut Teller,
    ) -> Result<Never, Broken> {
        match &self.credentials {
            None => {}
            Some(Credentials::Digest(login)) => zk.authenticate(login).await?,
            Some(Credentials::Sasl(login)) => zk.prove(login).await?,
        }
        // The watch comes first: what changes while everything is listed is told, and looked at again.
        zk.watch(if self.root.is_empty() { "/" } else { &self.root }).await?;
        let mut tree = Tree::list(zk, &self.root, self.layout).await?;
        let all = tree.services.iter().map(|(node, held)| registration(self.layout, node, held));
        let batch = teller.shelf.replace(all.collect::<Vec<_>>());
        teller.tell(batch).await?;
        let mut again = Instant::now() + self.again;
        loop {
            let retry = tree.has_refused().then_some(again);
            let heard = async {
                tokio::select! {
                    first = touched.recv() => Some(first),
                    () = until_due(retry) => None,
                }
            };
            let changed = match teller.until(heard).await? {
                Some(None) => return Err(zk.why_lost().into()),
                Some(Some(first)) => {
                    let mut paths = BTreeSet::from([first]);
                    while let Ok(path) = touched.try_recv() {
                        paths.insert(path);
                    }
                    tree.look(zk, &self.root, &paths).await?
                }
                None => {
                    again = Instant::now() + self.again;
                    tree.look_again(zk, &self.root).await?
                }
            };
            let mut batch = Batch::default();
            for node in changed {
                let one = match tree.services.get(&node) {
                    Some(held) => teller.shelf.put(registration(self.layout, &node, held)),
                    None => teller.shelf.remove(&self.layout.service_name(&node)),
                };
                batch.extend(one);
            }
            teller.tell(batch).await?;
        }
    }
}

enum Never {}

enum Broken {
    Told(Ended),
    Zk(ZkError),
}

impl From<Ended> for Broken {
    fn from(ended: Ended) -> Self {
        Self::Told(ended)
    }
}

impl From<ZkError> for Broken {
    fn from(error: ZkError) -> Self {
        Self::Zk(error)
    }
}

/// Instances by the names of their nodes, or why one cannot be read.
type Held = BTreeMap<String, Result<Instance, Unread>>;

/// Why an instance is not known.
enum Unread {
    /// It may not be seen, which may change without a word.
    Refused,
    Form(String),
}

/// Stands for all instances of a service that may not be listed; no node can be called so.
const ALL: &str = "*";

/// What stands below the root. Services without instances are none.
struct Tree {
    layout: Layout,
    services: BTreeMap<String, Held>,
}

impl Tree {
    /// Everything, asked for in a row and not one after the other.
    async fn list(zk: &ZooKeeper, root: &str, layout: Layout) -> Result<Self, ZkError> {
        let root_node = if root.is_empty() { "/" } else { root };
        let services = some(zk.children(root_node).await)?.unwrap_or_default();
        let mut tree = Self { layout, services: BTreeMap::new() };
        tree.list_services(zk, root, services).await?;
        // One who may see nothing of what there is has the wrong password, and has learnt nothing.
        let mut all = tree.services.values().flat_map(BTreeMap::values).peekable();
        let is_refused = all.peek().is_some() && all.all(|one| matches!(one, Err(Unread::Refused)));
        drop(all);
        if is_refused { Err(ZkError::NoAuth) } else { Ok(tree) }
    }

    /// Asks for all instances of services.
    async fn list_services(
        &mut self,
        zk: &ZooKeeper,
        root: &str,
        services: impl IntoIterator<Item = String>,
    ) -> Result<(), ZkError> {
        let ask = |service: String| {
            let asked = zk.request_children(&format!("{root}{}", self.layout.instances_of(&service)));
            (service, asked)
        };
        let asked: Vec<_> = services.into_iter().map(ask).collect();
        let mut wanted = Vec::new();
        for (service, asked) in asked {
            match some(asked.wait().await) {
                Err(ZkError::NoAuth) => {
                    self.services.entry(service).or_default().insert(ALL.to_owned(), Err(Unread::Refused));
                }
                answer => {
                    self.forget(&service, ALL);
                    let instances = answer?.unwrap_or_default();
                    let held = self.services.get(&service).into_iter().flat_map(BTreeMap::keys);
                    let gone: Vec<String> = held.filter(|node| !instances.contains(node)).cloned().collect();
                    gone.iter().for_each(|node| self.forget(&service, node));
                    wanted.extend(instances.into_iter().map(|instance| (service.clone(), instance)));
                }
            }
        }
        self.read(zk, root, wanted).await
    }

    /// Reads instances, all at once.
    async fn read(
        &mut self,
        zk: &ZooKeeper,
        root: &str,
        wanted: Vec<(String, String)>,
    ) -> Result<(), ZkError> {
        let ask = |(service, node): (String, String)| {
            let path = format!("{root}{}/{node}", self.layout.instances_of(&service));
            (service, node, zk.request_data(&path))
        };
        let asked: Vec<_> = wanted.into_iter().map(ask).collect();
        for (service, node, asked) in asked {
            match some(asked.wait().await) {
                Err(ZkError::NoAuth) => {
                    self.services.entry(service).or_default().insert(node, Err(Unread::Refused));
                }
                Err(error) => return Err(error),
                Ok(Some(data)) => {
                    let data = if self.layout.is_in_name() { &[][..] } else { &data[..] };
                    let instance = self.layout.instance(&node, data).map_err(Unread::Form);
                    self.services.entry(service).or_default().insert(node, instance);
                }
                Ok(None) => self.forget(&service, &node),
            }
        }
        Ok(())
    }

    fn forget(&mut self, service: &str, node: &str) {
        if let Some(held) = self.services.get_mut(service) {
            held.remove(node);
            if held.is_empty() {
                self.services.remove(service);
            }
        }
    }

    /// Is there anything that may not be seen?
    fn has_refused(&self) -> bool {
        self.refused().next().is_some()
    }

    fn refused(&self) -> impl Iterator<Item = (&String, &String)> {
        let each =
            self.services.iter().flat_map(|(service, held)| held.iter().map(move |one| (service, one)));
        each.filter(|(_, (_, one))| matches!(one, Err(Unread::Refused)))
            .map(|(service, (node, _))| (service, node))
    }

    /// Looks again at nodes that something happened to, and tells which services may be different.
    async fn look(
        &mut self,
        zk: &ZooKeeper,
        root: &str,
        paths: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, ZkError> {
        let (mut wanted, mut listed) = (Vec::new(), BTreeSet::new());
        for path in paths {
            let Some(below) = path.strip_prefix(root) else { continue };
            match self.layout.place(below) {
                Place::Instance(service, node) => wanted.push((service.to_owned(), node.to_owned())),
                // It comes and goes with its instances, and that is told too; but not of one that could not be listed.
                Place::Service(service) if self.is_hidden(service) => _ = listed.insert(service.to_owned()),
                Place::Service(_) | Place::Above | Place::Elsewhere => {}
            }
        }
        let services = wanted.iter().map(|(service, _)| service.clone());
        let changed: BTreeSet<String> = services.chain(listed.iter().cloned()).collect();
        self.list_services(zk, root, listed).await?;
        self.read(zk, root, wanted).await?;
        Ok(changed)
    }

    fn is_hidden(&self, service: &str) -> bool {
        self.services.get(service).is_some_and(|held| held.contains_key(ALL))
    }

    /// Looks again at what may not be seen, and tells which services may be different.
    async fn look_again(&mut self, zk: &ZooKeeper, root: &str) -> Result<BTreeSet<String>, ZkError> {
        let refused: Vec<(String, String)> =
            self.refused().map(|(service, node)| (service.clone(), node.clone())).collect();
        let changed = refused.iter().map(|(service, _)| service.clone()).collect();
        let (hidden, wanted): (Vec<_>, Vec<_>) = refused.into_iter().partition(|(_, node)| node == ALL);
        self.list_services(zk, root, hidden.into_iter().map(|(service, _)| service)).await?;
        self.read(zk, root, wanted).await?;
        Ok(changed)
    }
}

/// What is not there is nothing; everything else that is wrong is wrong.
fn some<T>(answer: Result<T, ZkError>) -> Result<Option<T>, ZkError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(ZkError::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

fn registration(layout: Layout, node: &str, held: &Held) -> Registration {
    let mut registration = Registration { name: layout.service_name(node), ..Registration::default() };
    for (name, instance) in held {
        match instance {
            Ok(instance) => registration.instances.push(instance.clone()),
            Err(Unread::Form(why)) => registration.unreadable.push((layout.shown(name), why.clone())),
            Err(Unread::Refused) => {
                registration.unreadable.push((layout.shown(name), ZkError::NoAuth.to_string()));
            }
        }
    }
    registration
}
