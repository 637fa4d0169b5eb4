//! Clients that say all their names each time.

use std::sync::Arc;

use pilot_xds::{
    Ask, Encoded, Layer, Manifest, Manifests, Pacing, Protocol, Request, Response, Session, TypeUrl,
};

/// Clusters without endpoints, a listener, and a route.
fn world(version: u64, clusters: &[&str]) -> Arc<Manifests> {
    let layer = |t: TypeUrl, names: &[&str]| -> Layer {
        let content = format!("as of {version}");
        let encode = |name: &&str| Arc::new(Encoded::new(t, (*name).into(), content.as_bytes()));
        names.iter().map(|name| ((*name).into(), Some(encode(name)))).collect()
    };
    let mut manifests = Manifests { version, ..Manifests::default() };
    for (t, names) in
        [(TypeUrl::Cluster, clusters), (TypeUrl::Listener, &["listener"]), (TypeUrl::Route, &["route"])]
    {
        manifests.by_type[t.index()] = Manifest::new([layer(t, names)]);
    }
    Arc::new(manifests)
}

fn say(session: &mut Session, type_url: TypeUrl, nonce: &str, names: &[&str]) {
    let names = Arc::new(names.iter().map(|name| (*name).into()).collect());
    let ask = Ask::Names { names, returning: false };
    session.request(Request { type_url, nonce: nonce.to_owned(), error: None, ask });
}

fn names(response: &Response) -> Vec<&str> {
    response.resources.iter().map(|resource| resource.name().as_str()).collect()
}

/// The next response, which must be of this type.
fn next(session: &mut Session, type_url: TypeUrl, now: u64) -> Response {
    let response = session.poll(now).expect("something is due");
    assert_eq!(response.type_url, type_url);
    response
}

#[test]
fn who_lets_go_of_routes_that_are_under_way_keeps_the_clusters_they_name() {
    let mut session =
        Session::new(Protocol::StateOfTheWorld, world(1, &["a", "b"]), Pacing::default(), Arc::default());
    for t in [TypeUrl::Cluster, TypeUrl::Listener] {
        say(&mut session, t, "", &[]);
        let nonce = next(&mut session, t, 0).nonce;
        say(&mut session, t, &nonce, &[]);
    }
    say(&mut session, TypeUrl::Route, "", &["route"]);
    let on_its_way = next(&mut session, TypeUrl::Route, 0);
    // It wants none, and then it wants it again, before it has seen the first one.
    say(&mut session, TypeUrl::Route, "", &[]);
    session.update(world(2, &["a"]));
    let told = next(&mut session, TypeUrl::Cluster, 0);
    assert_eq!(names(&told), ["a", "b"], "a route on its way may name it");
    say(&mut session, TypeUrl::Cluster, &told.nonce, &[]);
    assert!(session.poll(0).is_none());
    say(&mut session, TypeUrl::Route, "", &["route"]);
    assert!(session.poll(0).is_none(), "one is on its way");
    // Now it has it; what is newest follows, and only then the cluster goes.
    say(&mut session, TypeUrl::Route, &on_its_way.nonce, &["route"]);
    let newest = next(&mut session, TypeUrl::Route, 0);
    assert_eq!(newest.version, "2");
    say(&mut session, TypeUrl::Route, &newest.nonce, &["route"]);
    // Listeners have a pace.
    let listeners = next(&mut session, TypeUrl::Listener, 2_000);
    say(&mut session, TypeUrl::Listener, &listeners.nonce, &[]);
    assert_eq!(names(&next(&mut session, TypeUrl::Cluster, 2_000)), ["a"]);
}

#[test]
fn who_wants_nothing_and_answers_nothing_delays_no_removal_for_long() {
    let mut session =
        Session::new(Protocol::StateOfTheWorld, world(1, &["a", "b"]), Pacing::default(), Arc::default());
    say(&mut session, TypeUrl::Cluster, "", &[]);
    let nonce = next(&mut session, TypeUrl::Cluster, 0).nonce;
    say(&mut session, TypeUrl::Cluster, &nonce, &[]);
    say(&mut session, TypeUrl::Route, "", &["route"]);
    next(&mut session, TypeUrl::Route, 0);
    // Envoy does not answer what it has stopped asking for.
    say(&mut session, TypeUrl::Route, "", &[]);
    session.update(world(2, &["a"]));
    let told = next(&mut session, TypeUrl::Cluster, 0);
    assert_eq!(names(&told), ["a", "b"]);
    say(&mut session, TypeUrl::Cluster, &told.nonce, &[]);
    assert!(session.poll(0).is_none() && session.is_up_to_date());
    let wake = session.wake_at().expect("patience ends");
    assert_eq!(names(&next(&mut session, TypeUrl::Cluster, wake)), ["a"]);
}

#[test]
fn who_refuses_routes_keeps_the_clusters_that_the_old_ones_name() {
    let mut session =
        Session::new(Protocol::StateOfTheWorld, world(1, &["a", "b"]), Pacing::default(), Arc::default());
    for (t, wanted) in [(TypeUrl::Cluster, &[][..]), (TypeUrl::Listener, &[]), (TypeUrl::Route, &["route"])] {
        say(&mut session, t, "", wanted);
        let nonce = next(&mut session, t, 0).nonce;
        say(&mut session, t, &nonce, wanted);
    }
    // The client goes on with the first one, which may name what later ones do not.
    for (version, clusters) in [(2, &["a", "b"][..]), (3, &["a"])] {
        session.update(world(version, clusters));
        // Listeners have a pace.
        let now = 1_500 * version;
        let mut told = Vec::new();
        while let Some(response) = session.poll(now) {
            told.push(response.type_url);
            match response.type_url {
                TypeUrl::Route => refuse(&mut session, &response, &["route"]),
                other => say(&mut session, other, &response.nonce, &[]),
            }
            if response.type_url == TypeUrl::Cluster {
                assert_eq!(names(&response), ["a", "b"], "the route of before may name it");
            }
        }
        assert!(told.contains(&TypeUrl::Listener) && told.contains(&TypeUrl::Route), "{told:?}");
    }
    let wake = session.wake_at().expect("nobody waits for ever");
    let told = next(&mut session, TypeUrl::Cluster, wake);
    assert_eq!(names(&told), ["a"], "and then it goes");
}

fn refuse(session: &mut Session, response: &Response, names: &[&str]) {
    let names = Arc::new(names.iter().map(|name| (*name).into()).collect());
    let ask = Ask::Names { names, returning: false };
    let (type_url, nonce) = (response.type_url, response.nonce.clone());
    session.request(Request { type_url, nonce, error: Some("route is no good".to_owned()), ask });
}
