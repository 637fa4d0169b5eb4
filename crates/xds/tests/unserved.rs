//! What a client is told of names that nobody serves.

use std::sync::Arc;

use pilot_base::Name;
use pilot_xds::{
    Ask, Encoded, Initial, Manifest, Manifests, Pacing, Protocol, Request, Response, Session, TypeUrl,
    Unserved, Why,
};

fn word(name: &Name, why: Why, _: &Manifest, common: &[u8]) -> Encoded {
    let text = if why == Why::Gone { &b"gone"[..] } else { common };
    Encoded::new(TypeUrl::Endpoint, name.clone(), text)
}

fn world(clusters: &[&str]) -> Arc<Manifests> {
    let layer = |t: TypeUrl| {
        let entry =
            |name: &&str| ((*name).into(), Some(Arc::new(Encoded::new(t, (*name).into(), b"served"))));
        clusters.iter().map(entry).collect()
    };
    let mut manifests = Manifests::default();
    manifests.by_type[TypeUrl::Cluster.index()] = Manifest::new([layer(TypeUrl::Cluster)]);
    let unserved = Unserved { form: word, common: (*b"nobody").into() };
    manifests.by_type[TypeUrl::Endpoint.index()] =
        Manifest::new([layer(TypeUrl::Endpoint)]).with_unserved(unserved);
    Arc::new(manifests)
}

struct Client(Session);

impl Client {
    fn new(world: Arc<Manifests>) -> Self {
        let mut client = Self(Session::new(Protocol::Delta, world, Pacing::default(), Arc::default()));
        client.ask(TypeUrl::Cluster, &["*"]);
        client.accept();
        client
    }

    fn ask(&mut self, type_url: TypeUrl, names: &[&str]) {
        let subscribe = Arc::new(names.iter().map(|name| Name::new(name)).collect());
        let ask = Ask::Changes { subscribe, unsubscribe: Vec::new(), initial: Initial::Some(Vec::new()) };
        self.0.request(Request { type_url, nonce: String::new(), error: None, ask });
    }

    fn answer(&mut self, response: &Response, error: Option<&str>) {
        let ask = Ask::Changes {
            subscribe: Arc::default(),
            unsubscribe: Vec::new(),
            initial: Initial::Some(Vec::new()),
        };
        let (nonce, error) = (response.nonce.clone(), error.map(str::to_owned));
        self.0.request(Request { type_url: response.type_url, nonce, error, ask });
    }

    /// Everything that is sent until there is no more, as `type name=content` and `type -name`.
    fn accept(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(response) = self.0.poll(0) {
            told.extend(said(&response));
            self.answer(&response, None);
        }
        told
    }
}

fn said(response: &Response) -> Vec<String> {
    let kind = if response.type_url == TypeUrl::Cluster { "cluster" } else { "endpoints" };
    let sent = response.resources.iter().map(|resource| {
        format!("{kind} {}={}", resource.name(), String::from_utf8_lossy(&resource.message()))
    });
    sent.chain(response.removed.iter().map(|name| format!("{kind} -{name}"))).collect()
}

#[test]
fn who_asks_in_vain_is_answered_once() {
    let mut client = Client::new(world(&["a"]));
    client.ask(TypeUrl::Endpoint, &["a", "b"]);
    assert_eq!(client.accept(), ["endpoints a=served", "endpoints b=nobody"]);
    client.0.update(world(&["a", "c"]));
    assert_eq!(client.accept(), ["cluster c=served"]);
    client.0.update(world(&["a", "b", "c"]));
    assert_eq!(client.accept(), ["cluster b=served", "endpoints b=served"]);
}

#[test]
fn a_cluster_keeps_its_endpoints_until_it_is_gone() {
    let mut client = Client::new(world(&["a", "b"]));
    client.ask(TypeUrl::Endpoint, &["a", "b"]);
    client.accept();
    client.0.update(world(&["b"]));
    let removal = client.0.poll(0).expect("the cluster goes");
    assert_eq!(said(&removal), ["cluster -a"]);
    assert!(client.0.poll(1_000_000).is_none(), "not before the client has let go of the cluster");
    client.answer(&removal, None);
    assert_eq!(client.accept(), ["endpoints a=gone"]);
}

#[test]
fn a_word_that_is_refused_is_not_said_again() {
    let mut client = Client::new(world(&["a"]));
    client.ask(TypeUrl::Endpoint, &["b"]);
    let first = client.0.poll(0).expect("an answer");
    client.answer(&first, Some("no good"));
    assert!(client.accept().is_empty());
    client.0.update(world(&["a", "c"]));
    assert_eq!(client.accept(), ["cluster c=served"]);
}

#[test]
fn a_made_up_name_is_told_nothing_of_what_was_there() {
    let mut client = Client::new(world(&["a", "b"]));
    client.ask(TypeUrl::Endpoint, &["b", "c"]);
    assert_eq!(client.accept(), ["endpoints b=served", "endpoints c=nobody"]);
    client.0.update(world(&["a"]));
    assert_eq!(client.accept(), ["cluster -b", "endpoints b=gone"]);
    client.0.update(world(&[]));
    assert_eq!(client.accept(), ["cluster -a"], "what was said of both stays true");
}

#[test]
fn routes_stay_while_the_client_refuses_to_change_its_listener() {
    let of = |listener: &[u8], routes: &[&str]| {
        let mut manifests = Manifest::new([]);
        manifests.push(
            [("l".into(), Some(Arc::new(Encoded::new(TypeUrl::Listener, "l".into(), listener))))]
                .into_iter()
                .collect(),
        );
        let route = |name: &&str| {
            ((*name).into(), Some(Arc::new(Encoded::new(TypeUrl::Route, (*name).into(), b"served"))))
        };
        let mut world = Manifests::default();
        world.by_type[TypeUrl::Listener.index()] = manifests;
        world.by_type[TypeUrl::Route.index()] = Manifest::new([routes.iter().map(route).collect()])
            .with_unserved(Unserved { form: word, common: (*b"nobody").into() });
        Arc::new(world)
    };
    let mut client =
        Client(Session::new(Protocol::Delta, of(b"1", &["80"]), Pacing::default(), Arc::default()));
    client.ask(TypeUrl::Listener, &["*"]);
    client.ask(TypeUrl::Route, &["80"]);
    client.accept();
    client.0.update(of(b"2", &[]));
    let listener = client.0.poll(1_000_000).expect("the listener changes");
    client.answer(&listener, Some("l: not like this"));
    assert!(client.0.poll(2_000_000).is_none(), "its old form still asks for the routes");
    client.0.update(of(b"3", &[]));
    let listener = client.0.poll(3_000_000).expect("the listener changes");
    client.answer(&listener, None);
    let route = client.0.poll(4_000_000).expect("nobody asks for the routes any more");
    assert_eq!((route.type_url, route.resources.len()), (TypeUrl::Route, 1));
}

#[test]
fn that_something_is_gone_is_no_news() {
    let mut client = Client::new(world(&["a", "b"]));
    client.ask(TypeUrl::Endpoint, &["a", "b"]);
    let endpoints = client.0.poll(0).expect("an answer");
    assert!(client.0.is_news(&endpoints));
    client.answer(&endpoints, None);
    client.0.update(world(&["b"]));
    let removal = client.0.poll(0).expect("the cluster goes");
    client.answer(&removal, None);
    let word = client.0.poll(0).expect("its endpoints are gone");
    assert_eq!(said(&word), ["endpoints a=gone"]);
    assert!(!client.0.is_news(&removal) && !client.0.is_news(&word));
}
