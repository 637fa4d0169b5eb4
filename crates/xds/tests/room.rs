//! What is long waits for room.

use std::sync::Arc;

use pilot_xds::{
    Ask, Encoded, Initial, Layer, Manifest, Manifests, Pacing, Protocol, Request, Response, Room, Session,
    TypeUrl,
};

const ROOM: usize = 500;

fn little() -> Room {
    Room { endpoints: 4 * ROOM, others: ROOM }
}

/// A cluster, its endpoints, and a long route.
fn world(version: u64, endpoints: &str) -> Arc<Manifests> {
    let layer = |t: TypeUrl, name: &str, content: &[u8]| -> Layer {
        [(name.into(), Some(Arc::new(Encoded::new(t, name.into(), content))))].into_iter().collect()
    };
    let mut manifests = Manifests { version, ..Manifests::default() };
    let route = [u8::try_from(version).unwrap_or_default(); 2 * ROOM];
    for (t, name, content) in [
        (TypeUrl::Cluster, "cluster", &b"c"[..]),
        (TypeUrl::Endpoint, "cluster", endpoints.as_bytes()),
        (TypeUrl::Route, "route", &route),
    ] {
        manifests.by_type[t.index()] = Manifest::new([layer(t, name, content)]);
    }
    Arc::new(manifests)
}

fn say(session: &mut Session, type_url: TypeUrl, nonce: &str, names: &[&str]) {
    let subscribe = Arc::new(names.iter().map(|name| (*name).into()).collect());
    let ask = Ask::Changes { subscribe, unsubscribe: Vec::new(), initial: Initial::Some(Vec::new()) };
    session.request(Request { type_url, nonce: nonce.to_owned(), error: None, ask });
}

/// Everything that is sent where there is little room, and accepted.
fn sent(session: &mut Session) -> Vec<TypeUrl> {
    let mut types = Vec::new();
    while let Some(Response { type_url, nonce, .. }) = session.poll_within(0, little()) {
        say(session, type_url, &nonce, &[]);
        types.push(type_url);
    }
    types
}

#[test]
fn what_is_long_is_overtaken_and_is_the_newest_when_there_is_room() {
    let mut session = Session::new(Protocol::Delta, world(1, "one"), Pacing::default(), Arc::default());
    for (t, names) in
        [(TypeUrl::Cluster, &[][..]), (TypeUrl::Endpoint, &["cluster"]), (TypeUrl::Route, &["route"])]
    {
        say(&mut session, t, "", names);
    }
    assert_eq!(sent(&mut session), [TypeUrl::Cluster, TypeUrl::Endpoint]);
    assert!(session.holds_back() && !session.is_up_to_date());
    for (version, endpoints) in [(2, "two"), (3, "three")] {
        session.update(world(version, endpoints));
        assert_eq!(sent(&mut session), [TypeUrl::Endpoint], "it does not wait for the route");
    }
    session.update(world(4, &"many".repeat(ROOM / 2)));
    assert_eq!(sent(&mut session), [TypeUrl::Endpoint], "many endpoints do not wait either");
    session.update(world(5, &"far too many".repeat(ROOM)));
    assert_eq!(sent(&mut session), []);
    session.update(world(6, "few"));
    let route = session.poll(0).expect("there is room now");
    assert_eq!((route.type_url, route.version.as_str()), (TypeUrl::Endpoint, "6"));
    say(&mut session, TypeUrl::Endpoint, &route.nonce, &[]);
    let route = session.poll(0).expect("there is room now");
    assert_eq!((route.type_url, route.version.as_str()), (TypeUrl::Route, "6"));
    assert!(!session.holds_back());
    say(&mut session, TypeUrl::Route, &route.nonce, &[]);
    assert_eq!(sent(&mut session), []);
    assert!(!session.holds_back() && session.is_up_to_date());
}
