//! What every adapter of a registry must do, on its real server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use pilot_model::{Object, ServiceEntry};

use super::{Follower, Mirror, Relay, Road};
use crate::Source;

/// A registry under the control of a test.
pub trait RegistryRig {
    /// A source that reaches the registry at this address.
    fn source(&self, server: SocketAddr) -> Box<dyn Source>;
    /// Where the registry itself is.
    fn server(&self) -> SocketAddr;
    fn register(&mut self, instance: &Registered) -> impl Future<Output = ()>;
    fn deregister(&mut self, instance: &Registered) -> impl Future<Output = ()>;
    /// Makes an instance ill or well, if the registry knows of such a thing.
    fn set_condition(&mut self, instance: &Registered, condition: Condition) -> impl Future<Output = bool>;
    /// Ends the server and starts it again, and tells whether it still knows what was registered; nothing if it cannot
    /// be ended.
    fn restart(&mut self) -> impl Future<Output = Option<bool>>;
    /// Bytes that are no answer of such a server, or one that makes no sense.
    fn nonsense(&self) -> Vec<Vec<u8>>;
    /// Registers very many at once.
    fn fill(&mut self, services: usize, instances: usize) -> impl Future<Output = ()>;
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

    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }
}

/// The instances of a service as they were told: port and version of each.
fn told(mirror: &Mirror, service: &str) -> Option<Vec<(u16, String)>> {
    let entries: Vec<&ServiceEntry> = entries(mirror, service).collect();
    if entries.is_empty() {
        return None;
    }
    let version =
        |labels: &pilot_base::Labels| labels.get("version").map(ToString::to_string).unwrap_or_default();
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

async fn tells(follower: &mut Follower, what: &str, service: &str, expected: Option<&[(u16, &str)]>) {
    let expected: Option<Vec<(u16, String)>> =
        expected.map(|all| all.iter().map(|(port, version)| (*port, (*version).to_owned())).collect());
    follower.until(what, |mirror| mirror.ready && told(mirror, service) == expected).await;
}

/// Longer than an adapter keeps asking a server that says nothing.
const SILENCE: Duration = Duration::from_millis(300);

/// All rules for registries, one after the other. What was seen is printed, a line for each.
pub async fn check_registry(rig: &mut impl RegistryRig) {
    let relay = Relay::to(rig.server()).await;
    let one = Registered::new("shop", "shop-1", 8081).with("version", "v1").with("protocol", "http");
    rig.register(&one).await;
    let source = rig.source(relay.address);
    let name = source.name();
    let seen = |what: &str| println!("{name}: {what}");
    let mut follower = Follower::start(source);
    tells(&mut follower, "what was there before", "shop", Some(&[(8081, "v1")])).await;
    assert!(follower.mirror.issues.is_empty(), "{:?}", follower.mirror.issues);
    seen("register");

    let two = Registered::new("shop", "shop-2", 8082).with("version", "v2").with("protocol", "http");
    let cart = Registered::new("cart", "cart-1", 8083).with("version", "v1");
    rig.register(&two).await;
    tells(&mut follower, "a second instance", "shop", Some(&[(8081, "v1"), (8082, "v2")])).await;
    rig.register(&cart).await;
    tells(&mut follower, "a second service", "cart", Some(&[(8083, "v1")])).await;
    seen("update: a second instance, a second service");

    let newer = two.clone().with("version", "v3");
    follower.mirror.rows = 0;
    rig.register(&newer).await;
    tells(&mut follower, "other metadata", "shop", Some(&[(8081, "v1"), (8082, "v3")])).await;
    follower.rest(SILENCE).await;
    assert_eq!(follower.mirror.rows, 1, "one change is one row");
    seen("metadata change, one row");

    if rig.set_condition(&newer, Condition::Ill).await {
        tells(&mut follower, "an ill instance", "shop", Some(&[(8081, "v1")])).await;
        rig.set_condition(&newer, Condition::Well).await;
        tells(&mut follower, "a healthy instance", "shop", Some(&[(8081, "v1"), (8082, "v3")])).await;
        seen("health change");
    }
    rig.deregister(&newer).await;
    tells(&mut follower, "an instance less", "shop", Some(&[(8081, "v1")])).await;
    rig.deregister(&cart).await;
    tells(&mut follower, "a service less", "cart", None).await;
    seen("deregister");

    outages(rig, &relay, &mut follower, &one).await;
    if let Some(remembers) = rig.restart().await {
        if !remembers {
            rig.register(&one).await;
        }
        rig.register(&two).await;
        let both: &[(u16, &str)] = &[(8081, "v1"), (8082, "v2")];
        tells(&mut follower, "a change after a restart", "shop", Some(both)).await;
        follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
        println!("{name}: restart of the server");
        rig.deregister(&two).await;
        tells(&mut follower, "a removal after a restart", "shop", Some(&[(8081, "v1")])).await;
    }
    rig.deregister(&one).await;
    tells(&mut follower, "nothing", "shop", None).await;
    follower.stop().await;
}

async fn outages(rig: &mut impl RegistryRig, relay: &Relay, follower: &mut Follower, one: &Registered) {
    let mut roads = vec![("network cut", Road::Cut), ("no answer", Road::Stalled)];
    roads.extend(rig.nonsense().into_iter().map(|bytes| ("malformed answer", Road::Poisoned(bytes.into()))));
    for (i, (what, road)) in roads.into_iter().enumerate() {
        relay.set(road);
        follower.until(what, |mirror| !mirror.issues.is_empty()).await;
        assert_eq!(
            told(&follower.mirror, "shop"),
            Some(vec![(8081, "v1".to_owned())]),
            "{what} empties nothing"
        );
        let late = Registered::new("late", &format!("late-{i}"), 9000).with("version", "v1");
        rig.register(&late).await;
        relay.set(Road::Open);
        tells(follower, "what changed meanwhile", "late", Some(&[(9000, "v1")])).await;
        tells(follower, "what was there before", "shop", Some(&[(one.port, "v1")])).await;
        follower.until("that all is well again", |mirror| mirror.issues.is_empty()).await;
        rig.deregister(&late).await;
        tells(follower, "that it is gone", "late", None).await;
        println!("{what}: kept, reported, and caught up");
    }
}

/// How long it takes to learn of very many, and what it costs; how many is said by `PILOT_LOAD`, such as `5000x10`.
#[allow(clippy::disallowed_methods, reason = "a measurement, of which nothing depends")]
pub async fn check_load(rig: &mut impl RegistryRig) {
    let wanted = std::env::var("PILOT_LOAD").unwrap_or_default();
    let sizes = wanted.split_once('x').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let (services, instances): (usize, usize) = sizes.unwrap_or((200, 5));
    rig.fill(services, instances).await;
    let before = resident();
    let began = std::time::Instant::now();
    let mut follower = Follower::start(rig.source(rig.server()));
    let complete = |mirror: &Mirror| {
        let entries = mirror.objects().filter(|object| match object {
            Object::ServiceEntry(config) => config.spec.endpoints.len() == instances,
            _ => false,
        });
        mirror.ready && entries.count() >= services
    };
    follower.until("all services", complete).await;
    let (took, memory) = (began.elapsed(), resident().saturating_sub(before));
    println!("load: {services} services x {instances} instances in {took:?}, {} MB more", memory >> 20);
    follower.mirror.rows = 0;
    let one = Registered::new("one-more", "one-more-1", 8081).with("version", "v1");
    let began = std::time::Instant::now();
    rig.register(&one).await;
    tells(&mut follower, "one more", "one-more", Some(&[(8081, "v1")])).await;
    let took = began.elapsed();
    follower.rest(SILENCE).await;
    assert_eq!(follower.mirror.rows, 1, "one change among many is one row");
    println!("load: one change among them is one row, told after {took:?}");
    follower.stop().await;
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|count| count.parse::<usize>().ok()).unwrap_or_default() * 4096
}
