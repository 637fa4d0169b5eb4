use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pilot_base::Name;
use pilot_source::{
    Batch, Contact, Ended, Instance, Registration, RegistryOptions, Running, Session, Shelf, Sink, Source,
    Teller, follow,
};
use tokio::sync::mpsc;

use crate::client::{ZkError, ZooKeeper};
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
}

impl ZooKeeperSource {
    pub fn new(options: ZooKeeperOptions) -> Self {
        let ZooKeeperOptions { registry, servers, root, layout, credentials, session } = options;
        let root = root.trim_end_matches('/').to_owned();
        Self { registry, ensemble: Ensemble { servers, next: 0, root, layout, credentials, session } }
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
    async fn session(&self, server: &str, teller: &mut Teller) -> Ended {
        let (sender, mut touched) = mpsc::unbounded_channel();
        let contact = teller.shelf.options().contact.clone();
        let zk = match ZooKeeper::connect_noted(server, self.session, sender, contact).await {
            Ok(zk) => zk,
            Err(error) => return Ended::lost(error),
        };
        match self.watch(&zk, &mut touched, teller).await {
            Ok(never) => match never {},
            Err(Broken::Told(ended)) => ended,
            // Whoever waits for an answer learns only that none comes; the connection knows why.
            Err(Broken::Zk(ZkError::Lost(_))) => Ended::lost(zk.why_lost()),
            Err(Broken::Zk(error)) => Ended::lost(error),
        }
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
        loop {
            let Some(first) = teller.until(touched.recv()).await? else { return Err(zk.why_lost().into()) };
            let mut paths = BTreeSet::from([first]);
            while let Ok(path) = touched.try_recv() {
                paths.insert(path);
            }
            let changed = tree.look(zk, &self.root, &paths).await?;
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
type Held = BTreeMap<String, Result<Instance, String>>;

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
        let ask = |service: String| {
            let asked = zk.request_children(&format!("{root}{}", layout.instances_of(&service)));
            (service, asked)
        };
        let asked: Vec<_> = services.into_iter().map(ask).collect();
        let mut tree = Self { layout, services: BTreeMap::new() };
        let (mut wanted, mut refused) = (Vec::new(), 0);
        for (service, asked) in asked {
            match some(asked.wait().await) {
                Err(ZkError::NoAuth) => {
                    let why = Err(ZkError::NoAuth.to_string());
                    tree.services.entry(service).or_default().insert("*".to_owned(), why);
                    refused += 1;
                }
                answer => {
                    let instances = answer?.unwrap_or_default().into_iter();
                    wanted.extend(instances.map(|instance| (service.clone(), instance)));
                }
            }
        }
        let all = wanted.len() + refused;
        refused += tree.read(zk, root, wanted).await?;
        // One who may see nothing of what there is has the wrong password, and has learnt nothing.
        if refused > 0 && refused == all { Err(ZkError::NoAuth) } else { Ok(tree) }
    }

    /// Reads instances, all at once, and tells how many may not be seen.
    async fn read(
        &mut self,
        zk: &ZooKeeper,
        root: &str,
        wanted: Vec<(String, String)>,
    ) -> Result<usize, ZkError> {
        let ask = |(service, node): (String, String)| {
            let path = format!("{root}{}/{node}", self.layout.instances_of(&service));
            (service, node, zk.request_data(&path))
        };
        let asked: Vec<_> = wanted.into_iter().map(ask).collect();
        let mut refused = 0;
        for (service, node, asked) in asked {
            match some(asked.wait().await) {
                Err(ZkError::NoAuth) => {
                    let why = Err(ZkError::NoAuth.to_string());
                    self.services.entry(service).or_default().insert(node, why);
                    refused += 1;
                }
                Err(error) => return Err(error),
                Ok(Some(data)) => {
                    let data = if self.layout.is_in_name() { &[][..] } else { &data[..] };
                    let instance = self.layout.instance(&node, data);
                    self.services.entry(service).or_default().insert(node, instance);
                }
                Ok(None) => self.forget(&service, &node),
            }
        }
        Ok(refused)
    }

    fn forget(&mut self, service: &str, node: &str) {
        if let Some(held) = self.services.get_mut(service) {
            held.remove(node);
            if held.is_empty() {
                self.services.remove(service);
            }
        }
    }

    /// Looks again at nodes that something happened to, and tells which services may be different.
    async fn look(
        &mut self,
        zk: &ZooKeeper,
        root: &str,
        paths: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, ZkError> {
        let mut wanted = Vec::new();
        for path in paths {
            let Some(below) = path.strip_prefix(root) else { continue };
            // What is above comes and goes with what is below, and that is told too.
            if let Place::Instance(service, node) = self.layout.place(below) {
                wanted.push((service.to_owned(), node.to_owned()));
            }
        }
        let changed = wanted.iter().map(|(service, _)| service.clone()).collect();
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
            Err(why) => registration.unreadable.push((name.clone(), why.clone())),
        }
    }
    registration
}
