//! What every adapter of a registry must do, on its real server.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use pilot_base::Name;
use pilot_model::{Object, ServiceEntry};

use super::{Follower, Mirror, Relay, Road};
use crate::Source;

mod bad;
mod load;

pub use bad::check_bad;
pub use load::{check_load, load_wanted, resident};

/// A registry under the control of a test.
pub trait RegistryRig {
    /// What stands behind it, as the table of all adapters says it.
    fn about(&self) -> &'static str;
    /// A source that reaches the registry at this address.
    fn source(&self, server: SocketAddr) -> Box<dyn Source>;
    /// Where the registry itself is.
    fn server(&self) -> SocketAddr;
    /// When the server is there.
    fn started(&self) -> Started {
        Started::Before
    }
    /// The label that tells versions apart; nothing where instances have no metadata.
    fn version_label(&self) -> Option<&'static str> {
        Some("version")
    }
    /// How many rows there may be when an instance gets another address and port: more where it is another one then.
    fn most_rows_of_move(&self) -> usize {
        1
    }
    fn register(&mut self, instance: &Registered) -> impl Future<Output = ()> {
        async move {
            assert!(self.try_register(instance).await, "{instance:?} is refused");
        }
    }
    /// Registers what may be wrong, and tells whether the registry took it.
    fn try_register(&mut self, instance: &Registered) -> impl Future<Output = bool>;
    fn deregister(&mut self, instance: &Registered) -> impl Future<Output = ()>;
    /// Makes an instance ill or well, if the registry knows of such a thing.
    fn set_condition(&mut self, instance: &Registered, condition: Condition) -> impl Future<Output = bool>;
    /// What is on the way to the server from now on.
    fn set_road(&mut self, relay: &Relay, road: Road) {
        relay.set(road);
    }
    /// A word of the question whose answer goes on for ever; nothing where there are no connections.
    fn stream(&self) -> Option<&'static str> {
        Some("")
    }
    /// Ends the server and starts it again, and tells whether it still knows what was registered; nothing if it cannot
    /// be ended.
    fn restart(&mut self) -> impl Future<Output = Option<bool>>;
    /// Bytes that are no answer of such a server, or one that makes no sense.
    fn nonsense(&self) -> Vec<Vec<u8>>;
    /// Registers an instance beside another one of the same id, if there is a way to do that.
    fn add_twin(&mut self, _: &Registered) -> impl Future<Output = bool> {
        async { false }
    }
    fn remove_twin(&mut self, _: &Registered) -> impl Future<Output = ()> {
        async {}
    }
    /// A source that asks with a wrong token, and that token; nothing where nobody is asked for one.
    fn with_wrong_token(&self) -> Option<(Box<dyn Source>, &'static str)> {
        None
    }
    /// Registers very many at once.
    fn fill(&mut self, services: usize, instances: usize) -> impl Future<Output = ()>;
}

/// When a registry is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Started {
    /// It runs by itself.
    Before,
    /// It is the source, and nothing is on the way to it.
    WithSource,
}

/// How an instance is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    Well,
    Ill,
}

/// An instance as a test wants it to be known.
#[derive(Clone, Debug)]
pub struct Registered {
    pub service: String,
    pub id: String,
    pub address: String,
    pub port: u16,
    pub metadata: BTreeMap<String, String>,
}

impl Registered {
    pub fn new(service: &str, id: &str, port: u16) -> Self {
        let address = "10.1.2.3".to_owned();
        let (service, id) = (service.to_owned(), id.to_owned());
        Self { service, id, address, port, metadata: BTreeMap::new() }
    }

    /// The same instance, found elsewhere.
    #[must_use]
    pub fn moved(mut self) -> Self {
        "10.1.2.4".clone_into(&mut self.address);
        self.port += 1000;
        self
    }

    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }
}

/// Stands in metadata for bytes that are no text.
pub const GARBLED: &str = "GARBLED";

/// What is sent to a registry, with such bytes where they are meant.
pub fn garbled(text: &str) -> Vec<u8> {
    let mut parts = text.split(GARBLED).map(str::as_bytes);
    let mut out = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        out.extend([0xff, 0xfe]);
        out.extend(part);
    }
    out
}

/// One line of the table of all adapters.
pub(super) fn cell(rig: &impl RegistryRig, row: &str, seen: impl fmt::Display) {
    println!("contract|{}|{row}|{seen}", rig.about());
}

/// The instances of a service as they were told: port and version of each.
fn told(mirror: &Mirror, service: &str, label: Option<&str>) -> Option<Vec<(u16, String)>> {
    let entries: Vec<&ServiceEntry> = entries(mirror, service).collect();
    if entries.is_empty() {
        return None;
    }
    let version = |labels: &pilot_base::Labels| {
        label.and_then(|label| labels.get(label)).map(ToString::to_string).unwrap_or_default()
    };
    let port = |ports: &BTreeMap<_, u16>| ports.values().next().copied().unwrap_or_default();
    let endpoints = entries.iter().flat_map(|entry| &entry.endpoints);
    let mut all: Vec<_> = endpoints.map(|e| (port(&e.ports), version(&e.labels))).collect();
    all.sort();
    Some(all)
}

/// Where versions are services of their own, several have one host.
fn entries<'a>(mirror: &'a Mirror, service: &str) -> impl Iterator<Item = &'a ServiceEntry> {
    let of_service = move |entry: &ServiceEntry| {
        entry.hosts.iter().any(|host| host.as_str().split('.').next() == Some(service))
    };
    mirror.objects().filter_map(move |object| match object {
        Object::ServiceEntry(config) if of_service(&config.spec) => Some(&config.spec),
        _ => None,
    })
}

/// Ports and versions of a service.
type Expected<'a> = Option<&'a [(u16, &'a str)]>;

/// A source under test, and the label it tells versions by.
struct Watched {
    follower: Follower,
    name: Name,
    label: Option<&'static str>,
}

impl Watched {
    fn start(rig: &impl RegistryRig, server: SocketAddr) -> Self {
        let source = rig.source(server);
        Self { name: source.name(), follower: Follower::start(source), label: rig.version_label() }
    }

    async fn tells(&mut self, what: &str, service: &str, expected: Expected<'_>) {
        let (expected, label) = (self.versions(expected), self.label);
        self.follower.until(what, |mirror| mirror.ready && told(mirror, service, label) == expected).await;
    }

    async fn tells_addresses(&mut self, what: &str, service: &str, expected: &[&str]) {
        let addresses = |mirror: &Mirror| {
            let endpoints = entries(mirror, service).flat_map(|entry| &entry.endpoints);
            let mut all: Vec<String> = endpoints.map(|endpoint| endpoint.address.to_string()).collect();
            all.sort();
            all
        };
        self.follower.until(what, |mirror| addresses(mirror) == expected).await;
    }

    /// Where there is no metadata, there are no versions.
    fn versions(&self, expected: Expected<'_>) -> Option<Vec<(u16, String)>> {
        let version = |version: &str| self.label.map(|_| version.to_owned()).unwrap_or_default();
        expected.map(|all| all.iter().map(|(port, v)| (*port, version(v))).collect())
    }

    async fn all_is_well(&mut self) {
        self.follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    }

    /// One row was told since the last count, and no more comes.
    async fn one_row(&mut self, what: &str) {
        self.follower.rest(SILENCE).await;
        assert_eq!(self.follower.mirror.rows, 1, "{what} is one row");
    }
}

/// Longer than an adapter keeps asking a server that says nothing.
const SILENCE: Duration = Duration::from_millis(300);

/// All rules for registries, one after the other. What was seen is printed, a line for each.
pub async fn check_registry(rig: &mut impl RegistryRig) {
    let relay = Relay::to(rig.server()).await;
    let one = Registered::new("shop", "shop-1", 8081).with("version", "v1").with("protocol", "http");
    if rig.started() == Started::Before {
        rig.register(&one).await;
    }
    let mut watched = Watched::start(rig, relay.address);
    if rig.started() == Started::WithSource {
        watched.follower.until("that there is nothing", |mirror| mirror.ready).await;
        rig.register(&one).await;
    }
    watched.tells("what was there before", "shop", Some(&[(8081, "v1")])).await;
    assert!(watched.follower.mirror.issues.is_empty(), "{:?}", watched.follower.mirror.issues);
    cell(rig, "register", "yes");
    changes(rig, &mut watched).await;
    if rig.started() == Started::Before {
        outages(rig, &relay, &mut watched, &one).await;
    }
    restarts(rig, &mut watched, &one).await;
    rig.deregister(&one).await;
    watched.tells("nothing", "shop", None).await;
    watched.follower.stop().await;
}

async fn changes(rig: &mut impl RegistryRig, watched: &mut Watched) {
    let two = Registered::new("shop", "shop-2", 8082).with("version", "v2").with("protocol", "http");
    let cart = Registered::new("cart", "cart-1", 8083).with("version", "v1");
    watched.follower.mirror.rows = 0;
    rig.register(&two).await;
    watched.tells("a second instance", "shop", Some(&[(8081, "v1"), (8082, "v2")])).await;
    watched.one_row("an instance more").await;
    rig.register(&cart).await;
    watched.tells("a second service", "cart", Some(&[(8083, "v1")])).await;
    let moved = two.moved();
    watched.follower.mirror.rows = 0;
    rig.register(&moved).await;
    watched.tells("another port", "shop", Some(&[(8081, "v1"), (9082, "v2")])).await;
    watched.tells_addresses("another address", "shop", &["10.1.2.3", "10.1.2.4"]).await;
    watched.follower.rest(SILENCE).await;
    let rows = watched.follower.mirror.rows;
    assert!((1..=rig.most_rows_of_move()).contains(&rows), "another address and port are {rows} rows");
    cell(rig, "update", "yes");

    let newer = moved.clone().with("version", "v3");
    if watched.label.is_some() {
        watched.follower.mirror.rows = 0;
        rig.register(&newer).await;
        watched.tells("other metadata", "shop", Some(&[(8081, "v1"), (9082, "v3")])).await;
        watched.one_row("other metadata").await;
        cell(rig, "metadata change", "yes");
    } else {
        cell(rig, "metadata change", "has none");
    }
    cell(rig, "one change, one row", "yes");
    if rig.set_condition(&newer, Condition::Ill).await {
        watched.tells("an ill instance", "shop", Some(&[(8081, "v1")])).await;
        rig.set_condition(&newer, Condition::Well).await;
        watched.tells("a healthy instance", "shop", Some(&[(8081, "v1"), (9082, "v3")])).await;
        cell(rig, "health change", "yes");
    } else {
        cell(rig, "health change", "has none");
    }
    rig.deregister(&newer).await;
    watched.tells("an instance less", "shop", Some(&[(8081, "v1")])).await;
    rig.deregister(&cart).await;
    watched.tells("a service less", "cart", None).await;
    cell(rig, "deregister", "yes");
}

async fn restarts(rig: &mut impl RegistryRig, watched: &mut Watched, one: &Registered) {
    let Some(remembers) = rig.restart().await else { return };
    let two = Registered::new("shop", "shop-2", 8082).with("version", "v2").with("protocol", "http");
    rig.register(&two).await;
    // One who has not come back yet to a server that knows nobody is still called.
    watched.tells("a change after a restart", "shop", Some(&[(8081, "v1"), (8082, "v2")])).await;
    if !remembers {
        watched.follower.until("what is missing", |mirror| !mirror.issues.is_empty()).await;
        rig.register(one).await;
    }
    watched.all_is_well().await;
    watched.tells("everybody", "shop", Some(&[(8081, "v1"), (8082, "v2")])).await;
    cell(rig, "restart of the server", "yes");
    rig.deregister(&two).await;
    watched.tells("a removal after a restart", "shop", Some(&[(8081, "v1")])).await;
}

/// How much longer everything takes on a slow road: less than any adapter is patient.
const SLOW: Duration = Duration::from_millis(100);

async fn outages(rig: &mut impl RegistryRig, relay: &Relay, watched: &mut Watched, one: &Registered) {
    let mut roads = vec![("network cut", Road::Cut), ("no answer", Road::Stalled)];
    roads.extend(rig.nonsense().into_iter().map(|bytes| ("malformed answer", Road::Poisoned(bytes.into()))));
    for (i, (what, road)) in roads.into_iter().enumerate() {
        rig.set_road(relay, road);
        watched.follower.until(what, |mirror| !mirror.issues.is_empty()).await;
        assert_eq!(
            told(&watched.follower.mirror, "shop", watched.label),
            watched.versions(Some(&[(8081, "v1")])),
            "{what} empties nothing"
        );
        let late = Registered::new("late", &format!("late-{i}"), 9000).with("version", "v1");
        rig.register(&late).await;
        rig.set_road(relay, Road::Open);
        watched.tells("what changed meanwhile", "late", Some(&[(9000, "v1")])).await;
        watched.tells("what was there before", "shop", Some(&[(one.port, "v1")])).await;
        watched.all_is_well().await;
        rig.deregister(&late).await;
        watched.tells("that it is gone", "late", None).await;
        cell(rig, what, "yes");
    }
    forgotten(rig, relay, watched).await;
    rig.set_road(relay, Road::Slow(SLOW));
    let late = Registered::new("late", "late-slow", 9000).with("version", "v1");
    rig.register(&late).await;
    watched.tells("a change over a slow road", "late", Some(&[(9000, "v1")])).await;
    watched.all_is_well().await;
    rig.deregister(&late).await;
    watched.tells("that it is gone", "late", None).await;
    rig.set_road(relay, Road::Open);
    cell(rig, "slow answers", "yes");
    watched.follower.rest(SILENCE).await;
}

/// Connections that nobody knows of any more look like those on which there is nothing new.
async fn forgotten(rig: &mut impl RegistryRig, relay: &Relay, watched: &mut Watched) {
    let Some(stream) = rig.stream() else { return cell(rig, "connections forgotten", "has none") };
    rig.set_road(relay, Road::Forgotten(stream));
    let late = Registered::new("late", "late-forgotten", 9000).with("version", "v1");
    rig.register(&late).await;
    watched.tells("a change that no connection tells", "late", Some(&[(9000, "v1")])).await;
    rig.set_road(relay, Road::Open);
    watched.all_is_well().await;
    rig.deregister(&late).await;
    watched.tells("that it is gone", "late", None).await;
    cell(rig, "connections forgotten", "yes");
}
