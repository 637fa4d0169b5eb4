use std::sync::Arc;

use bytes::Bytes;

use super::State;
use crate::fleet::Shared;
use crate::resource::Kind;
use crate::shape::Protocol;
use crate::wire::{Arriving, all, first, framed, put_bytes, put_varint};

/// A cluster with endpoints of its own.
fn cluster(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 1, name.as_bytes());
    put_varint(&mut out, 2 << 3);
    put_varint(&mut out, 3);
    out
}

fn named(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, 1, name.as_bytes());
    out
}

fn answer(kind: Kind, protocol: Protocol, resources: &[(&str, Vec<u8>)], removed: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in resources {
        let (mut any, mut entry) = (Vec::new(), Vec::new());
        put_bytes(&mut any, 1, kind.type_url().as_bytes());
        put_bytes(&mut any, 2, value);
        if protocol == Protocol::Sotw {
            put_bytes(&mut out, 2, &any);
        } else {
            put_bytes(&mut entry, 1, b"v1");
            put_bytes(&mut entry, 2, &any);
            put_bytes(&mut entry, 3, name.as_bytes());
            put_bytes(&mut out, 2, &entry);
        }
    }
    put_bytes(&mut out, 4, kind.type_url().as_bytes());
    put_bytes(&mut out, 5, b"nonce");
    removed.iter().for_each(|name| put_bytes(&mut out, 6, name.as_bytes()));
    framed(&out)
}

fn told(state: &mut State, bytes: &[u8]) -> Vec<Bytes> {
    Arriving::default().feed(bytes, state).unwrap();
    state.take_outgoing()
}

/// The types of requests, with how many names each has.
fn asked(requests: &[Bytes], protocol: Protocol) -> Vec<(Kind, usize)> {
    let number = if protocol == Protocol::Delta { 2 } else { 4 };
    let ask = |request: &Bytes| {
        let kind = Kind::of_type_url(first(&request[5..], number).unwrap()).unwrap();
        (kind, all(&request[5..], 3).count())
    };
    requests.iter().map(ask).collect()
}

fn synced(protocol: Protocol) -> State {
    let mut state = State::new(Arc::new(Shared::default()), protocol);
    assert_eq!(asked(&state.open(b"node"), protocol), [(Kind::Cluster, 0)]);
    let clusters = answer(Kind::Cluster, protocol, &[("a", cluster("a")), ("b", cluster("b"))], &[]);
    let requests = told(&mut state, &clusters);
    assert_eq!(asked(&requests, protocol), [(Kind::Cluster, 0), (Kind::Endpoint, 2)]);
    let requests = told(&mut state, &answer(Kind::Endpoint, protocol, &[("a", named("a"))], &[]));
    assert_eq!(asked(&requests, protocol).len(), 1, "listeners wait for all endpoints");
    let requests = told(&mut state, &answer(Kind::Endpoint, protocol, &[("b", named("b"))], &[]));
    assert_eq!(asked(&requests, protocol).last(), Some(&(Kind::Listener, 0)));
    assert!(!state.has_everything());
    told(&mut state, &answer(Kind::Listener, protocol, &[("l", named("l"))], &[]));
    assert!(state.has_everything());
    state
}

#[test]
fn types_are_asked_for_in_envoys_order() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let state = synced(protocol);
        assert_eq!(state.contents().map(|of| of.len()), [2, 2, 1, 0], "{protocol:?}");
    }
}

#[test]
fn a_cluster_that_goes_takes_its_endpoints_along() {
    let mut delta = synced(Protocol::Delta);
    told(&mut delta, &answer(Kind::Cluster, Protocol::Delta, &[], &["a"]));
    let mut sotw = synced(Protocol::Sotw);
    let requests = told(&mut sotw, &answer(Kind::Cluster, Protocol::Sotw, &[("b", cluster("b"))], &[]));
    assert_eq!(asked(&requests, Protocol::Sotw), [(Kind::Cluster, 0), (Kind::Endpoint, 1)]);
    for state in [delta, sotw] {
        assert_eq!(state.contents().map(|of| of.len()), [1, 1, 1, 0]);
        assert!(state.has_everything());
    }
}

#[test]
fn what_does_not_exist_is_not_waited_for() {
    let mut state = synced(Protocol::Delta);
    told(&mut state, &answer(Kind::Cluster, Protocol::Delta, &[("c", cluster("c"))], &[]));
    assert!(!state.has_everything());
    told(&mut state, &answer(Kind::Endpoint, Protocol::Delta, &[], &["c"]));
    assert!(state.has_everything());
    assert_eq!(state.contents()[1].len(), 2);
}

#[test]
fn who_comes_back_says_what_it_has() {
    let mut state = synced(Protocol::Delta);
    let requests = state.open(b"node");
    let kinds = [(Kind::Cluster, 0), (Kind::Endpoint, 2), (Kind::Listener, 0)];
    assert_eq!(asked(&requests, Protocol::Delta), kinds);
    let versions: Vec<usize> = requests.iter().map(|request| all(&request[5..], 5).count()).collect();
    assert_eq!(versions, [2, 2, 1]);
    assert_eq!(first(&requests[0][5..], 1), Some(b"node".as_slice()));
    assert_eq!(first(&requests[1][5..], 1), None);
}

#[test]
fn a_message_that_broke_off_says_nothing_about_the_next() {
    let mut state = synced(Protocol::Sotw);
    let three = [("a", cluster("a")), ("b", cluster("b")), ("c", cluster("c"))];
    let whole = answer(Kind::Cluster, Protocol::Sotw, &three, &[]);
    // All three clusters are there, but not the end of the message.
    Arriving::default().feed(&whole[..whole.len() - 3], &mut state).unwrap();
    state.open(b"node");
    told(&mut state, &answer(Kind::Cluster, Protocol::Sotw, &three[..2], &[]));
    assert_eq!(state.contents()[0].len(), 2, "the third one was told on a stream that is gone");
}
