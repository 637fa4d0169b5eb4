//! What every store of rules must do, on its real server.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use pilot_model::Object;
use pilot_source::Source;
use pilot_source::contract::{Follower, Mirror, Relay, Road, Started};

/// A store under the control of a test.
pub trait StoreRig {
    /// A source that reaches the store at this address.
    fn source(&self, server: SocketAddr) -> Box<dyn Source>;
    /// Where the store itself is; nothing if it is not reached over a network.
    fn server(&self) -> Option<SocketAddr>;
    /// When it is there: a store that is its own source is followed before anything is written.
    fn started(&self) -> Started {
        Started::Before
    }
    /// Writes a document, and tells whether the store took it.
    fn put(&mut self, key: &str, bytes: &[u8]) -> impl Future<Output = bool>;
    fn delete(&mut self, key: &str) -> impl Future<Output = ()>;
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

async fn tells(follower: &mut Follower, what: &str, expected: &[(&str, u32)]) {
    let expected: BTreeMap<String, u32> =
        expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    follower.until(what, |mirror| mirror.ready && values(mirror) == expected).await;
}

async fn write(rig: &mut impl StoreRig, name: &str, value: u32) {
    assert!(rig.put(name, rule(name, value).as_bytes()).await, "{name} is refused");
}

/// All rules for stores, one after the other.
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
    write(rig, "second", 1).await;
    tells(&mut follower, "a creation", &[("first", 1), ("second", 1)]).await;
    rig.delete("second").await;
    tells(&mut follower, "a deletion", &[("first", 1)]).await;

    // A read right after a write may lag, but it never goes back.
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

    for bad in [&b"kind: ["[..], &[0xff, 0xfe]] {
        if !rig.put("first", bad).await {
            continue;
        }
        follower.until("an issue", |mirror| !mirror.issues.is_empty()).await;
        assert_eq!(values(&follower.mirror)["first"], 21, "what cannot be read keeps what it said");
        write(rig, "first", 21).await;
        follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    }
    assert!(rig.put("other", rule("first", 40).as_bytes()).await);
    follower.until("that two documents say the same", |mirror| !mirror.issues.is_empty()).await;
    rig.delete("other").await;
    follower.until("that one does", |mirror| mirror.issues.is_empty()).await;

    if let Some(relay) = &relay {
        for road in [
            Road::Cut,
            Road::Stalled,
            Road::Poisoned(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{"[..].into()),
        ] {
            relay.set(road);
            follower.until("an issue about the store", |mirror| !mirror.issues.is_empty()).await;
            assert_eq!(values(&follower.mirror)["first"], 21, "a loss empties nothing");
            write(rig, "third", 3).await;
            relay.set(Road::Open);
            tells(&mut follower, "what changed meanwhile", &[("first", 21), ("third", 3)]).await;
            follower.until("that all is well again", |mirror| mirror.issues.is_empty()).await;
            rig.delete("third").await;
            tells(&mut follower, "a deletion after that", &[("first", 21)]).await;
        }
    }
    follower.stop().await;
}
