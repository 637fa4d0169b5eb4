//! What every store of rules must do, on its real server.

mod load;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use pilot_model::Object;
use pilot_source::Source;
use pilot_source::contract::{Follower, Mirror, Relay, Road, Started};

pub use self::load::check_store_load;

/// A store under the control of a test.
pub trait StoreRig {
    /// What stands behind it, as the table of all stores says it.
    fn about(&self) -> &'static str;
    /// A source that reaches the store at this address.
    fn source(&self, server: SocketAddr) -> Box<dyn Source>;
    /// Where the store itself is; nothing if it is not reached over a network.
    fn server(&self) -> Option<SocketAddr>;
    /// When it is there: a store that is its own source is followed before anything is written.
    fn started(&self) -> Started {
        Started::Before
    }
    /// A word of the question whose answer goes on for ever, where there is one.
    fn stream(&self) -> &'static str {
        ""
    }
    /// Writes a document, and tells whether the store took it.
    fn put(&mut self, key: &str, bytes: &[u8]) -> impl Future<Output = bool>;
    /// Writes it if it is still what its writer has seen; nothing if this store cannot tell.
    fn put_if(&mut self, _: &str, _: Seen, _: &[u8]) -> impl Future<Output = Option<Written>> {
        async { None }
    }
    fn delete(&mut self, key: &str) -> impl Future<Output = ()>;
    /// The keys that the store itself lists.
    fn list(&mut self) -> impl Future<Output = BTreeSet<String>>;
    /// Ends the server and starts it again, and tells whether it still knows what was written; nothing if it cannot be
    /// ended.
    fn restart(&mut self) -> impl Future<Output = Option<bool>> {
        async { None }
    }
}

/// What a writer knows of a document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// There is none.
    Nothing,
    Version(u64),
}

/// What became of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// It is this version now.
    Version(u64),
    /// Somebody else was faster.
    Conflict,
}

impl Written {
    fn version(self) -> Option<u64> {
        if let Self::Version(version) = self { Some(version) } else { None }
    }
}

/// A rule whose content is a number.
pub fn rule(name: &str, value: u32) -> String {
    let head =
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {namespace: shop, name: ";
    format!("{head}{name}}}\nspec: {{host: h{value}.example.com}}\n")
}

fn value(object: &Object) -> Option<(String, u32)> {
    let Object::DestinationRule(config) = object else { return None };
    let host = config.spec.host.as_str().strip_prefix('h')?.strip_suffix(".example.com")?;
    Some((config.id.name.to_string(), host.parse().ok()?))
}

fn values(mirror: &Mirror) -> BTreeMap<String, u32> {
    mirror.objects().filter_map(value).collect()
}

fn expected(all: &[(&str, u32)]) -> BTreeMap<String, u32> {
    all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

async fn tells(follower: &mut Follower, what: &str, all: &[(&str, u32)]) {
    let expected = expected(all);
    follower.until(what, |mirror| mirror.ready && values(mirror) == expected).await;
}

async fn write(rig: &mut impl StoreRig, name: &str, value: u32) {
    assert!(rig.put(name, rule(name, value).as_bytes()).await, "{name} is refused");
}

/// One line of the table of all stores.
fn cell(rig: &impl StoreRig, row: &str, seen: impl fmt::Display) {
    println!("store|{}|{row}|{seen}", rig.about());
}

/// Longer than a store takes to tell what it should not.
const SILENCE: Duration = Duration::from_millis(300);

async fn one_row(follower: &mut Follower, what: &str) {
    follower.rest(SILENCE).await;
    assert_eq!(std::mem::take(&mut follower.mirror.rows), 1, "{what} is one row");
}

async fn all_is_well(follower: &mut Follower) {
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
}

/// All rules for stores, one after the other. What was seen is printed, a line for each.
pub async fn check_store(rig: &mut impl StoreRig) {
    let relay = match rig.server() {
        Some(server) => Some(Relay::to(server).await),
        None => None,
    };
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let road = relay.as_ref().map_or(nowhere, |relay| relay.address);
    if rig.started() == Started::Before {
        write(rig, "first", 1).await;
    }
    let mut follower = Follower::start(rig.source(road));
    if rig.started() == Started::WithSource {
        follower.until("that there is nothing", |mirror| mirror.ready).await;
        write(rig, "first", 1).await;
    }
    tells(&mut follower, "what was there before", &[("first", 1)]).await;
    changes(rig, &mut follower).await;
    never_goes_back(rig, (&mut follower, road)).await;
    conflicts(rig, &mut follower).await;
    what_cannot_be_read(rig, &mut follower).await;
    two_say_the_same(rig, &mut follower).await;
    if let Some(relay) = &relay {
        outages(rig, relay, &mut follower).await;
    }
    restarts(rig, &mut follower).await;
    follower.stop().await;
}

async fn changes(rig: &mut impl StoreRig, follower: &mut Follower) {
    follower.rest(SILENCE).await;
    follower.mirror.rows = 0;
    write(rig, "second", 1).await;
    tells(follower, "a creation", &[("first", 1), ("second", 1)]).await;
    one_row(follower, "a creation").await;
    cell(rig, "create", "yes");
    write(rig, "second", 2).await;
    tells(follower, "another content", &[("first", 1), ("second", 2)]).await;
    one_row(follower, "another content").await;
    cell(rig, "update", "yes");
    let keys = rig.list().await;
    assert_eq!(keys, ["first".to_owned(), "second".to_owned()].into(), "the store lists what it told");
    cell(rig, "list", "yes");
    rig.delete("second").await;
    tells(follower, "a deletion", &[("first", 1)]).await;
    one_row(follower, "a deletion").await;
    cell(rig, "delete", "yes");
    cell(rig, "one change, one row", "yes");
}

/// A read right after a write may lag, but it never goes back, and who comes later is told nothing older.
async fn never_goes_back(rig: &mut impl StoreRig, (follower, road): (&mut Follower, SocketAddr)) {
    for value in 2..22 {
        write(rig, "first", value).await;
    }
    let last = std::cell::Cell::new(0);
    let forwards = |mirror: &Mirror| {
        let now = values(mirror)["first"];
        assert!(now >= last.get(), "{now} was told after {}", last.get());
        last.set(now);
        now == 21
    };
    follower.until("the last of many writes", forwards).await;
    if rig.started() == Started::Before {
        let mut second = Follower::start(rig.source(road));
        second.until("everything", |mirror| mirror.ready).await;
        assert_eq!(values(&second.mirror), expected(&[("first", 21)]), "what the other one was told already");
        second.stop().await;
    }
    cell(rig, "never goes back", "yes");
}

async fn conflicts(rig: &mut impl StoreRig, follower: &mut Follower) {
    let row = "version conflict";
    let Some(first) = rig.put_if("shared", Seen::Nothing, rule("shared", 1).as_bytes()).await else {
        return cell(rig, row, "has no versions");
    };
    let first = first.version().expect("nobody has written it before");
    tells(follower, "a careful creation", &[("first", 21), ("shared", 1)]).await;
    follower.mirror.rows = 0;
    let again = rig.put_if("shared", Seen::Nothing, rule("shared", 2).as_bytes()).await;
    assert_eq!(again, Some(Written::Conflict), "it exists");
    let second = rig.put_if("shared", Seen::Version(first), rule("shared", 3).as_bytes()).await;
    assert!(matches!(second, Some(Written::Version(second)) if second != first), "{second:?}");
    let late = rig.put_if("shared", Seen::Version(first), rule("shared", 4).as_bytes()).await;
    assert_eq!(late, Some(Written::Conflict), "it is newer by now");
    tells(follower, "what was not lost", &[("first", 21), ("shared", 3)]).await;
    one_row(follower, "of three writes the one that was done").await;
    rig.delete("shared").await;
    tells(follower, "that it is gone", &[("first", 21)]).await;
    cell(rig, row, "the second writer is told");
}

async fn what_cannot_be_read(rig: &mut impl StoreRig, follower: &mut Follower) {
    let mut seen = "the store refuses it";
    for bad in [&b"kind: ["[..], &[0xff, 0xfe]] {
        if !rig.put("first", bad).await {
            continue;
        }
        seen = "keeps what it said";
        follower.until("an issue", |mirror| !mirror.issues.is_empty()).await;
        assert_eq!(values(&follower.mirror)["first"], 21, "what cannot be read keeps what it said");
        write(rig, "first", 21).await;
        all_is_well(follower).await;
    }
    cell(rig, "what cannot be read", seen);
}

/// Whichever of them comes first, that they say the same is told as long as it is so.
async fn two_say_the_same(rig: &mut impl StoreRig, follower: &mut Follower) {
    for other in ["zebra", "aaa"] {
        assert!(rig.put(other, rule("first", 40).as_bytes()).await);
        follower.until("that two documents say the same", |mirror| !mirror.issues.is_empty()).await;
        rig.delete(other).await;
        tells(follower, "what the other one says", &[("first", 21)]).await;
        all_is_well(follower).await;
    }
    cell(rig, "two documents with one object", "told as long as it is so");
}

async fn outages(rig: &mut impl StoreRig, relay: &Relay, follower: &mut Follower) {
    relay.set(Road::Forgotten(rig.stream()));
    write(rig, "third", 3).await;
    tells(follower, "a change that no connection tells", &[("first", 21), ("third", 3)]).await;
    relay.set(Road::Open);
    rig.delete("third").await;
    tells(follower, "a deletion", &[("first", 21)]).await;
    all_is_well(follower).await;
    cell(rig, "connections forgotten", "yes");
    let nonsense = Road::Poisoned(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{"[..].into());
    let roads = [("network cut", Road::Cut), ("no answer", Road::Stalled), ("malformed answer", nonsense)];
    for (what, road) in roads {
        relay.set(road);
        follower.until("an issue about the store", |mirror| !mirror.issues.is_empty()).await;
        assert_eq!(values(&follower.mirror)["first"], 21, "a loss empties nothing");
        write(rig, "third", 3).await;
        relay.set(Road::Open);
        tells(follower, "what changed meanwhile", &[("first", 21), ("third", 3)]).await;
        all_is_well(follower).await;
        rig.delete("third").await;
        tells(follower, "a deletion after that", &[("first", 21)]).await;
        cell(rig, what, "yes");
    }
}

async fn restarts(rig: &mut impl StoreRig, follower: &mut Follower) {
    let Some(remembers) = rig.restart().await else { return };
    write(rig, "third", 3).await;
    tells(follower, "a change after a restart", &[("first", 21), ("third", 3)]).await;
    if !remembers {
        follower.until("what is missing", |mirror| !mirror.issues.is_empty()).await;
        write(rig, "first", 21).await;
    }
    all_is_well(follower).await;
    rig.delete("third").await;
    tells(follower, "a deletion after a restart", &[("first", 21)]).await;
    cell(rig, "restart of the server", "yes");
}
