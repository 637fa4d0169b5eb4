//! What a client is sent that asks for everything, where some of it is kept back until it is asked for by name.

use std::sync::Arc;

use pilot_base::{Hash64, Name};
use pilot_xds::{
    Ask, Encoded, Initial, Layer, Manifest, Manifests, Pacing, Protocol, Request, Response, Session, TypeUrl,
    Unserved, Why, held_entry,
};

/// Clusters by `name=content`; those with `?` behind their name are kept back.
fn world(clusters: &[&str]) -> Arc<Manifests> {
    let (mut all, mut at_once) = (Layer::new(), Layer::new());
    for text in clusters {
        let (name, content) = text.split_once('=').expect("a name and a content");
        let bare = Name::new(name.trim_end_matches('?'));
        let resource = Arc::new(Encoded::new(TypeUrl::Cluster, bare.clone(), content.as_bytes()));
        all.insert(bare.clone(), Some(Arc::clone(&resource)));
        if !name.ends_with('?') {
            at_once.insert(bare, Some(resource));
        }
    }
    let mut manifests = Manifests::default();
    manifests.by_type[TypeUrl::Cluster.index()] = Manifest::new([all]).with_at_once([at_once]);
    Arc::new(manifests)
}

fn everything(clusters: &[&str]) -> Arc<Manifests> {
    let mut manifests = Manifests::clone(&world(clusters));
    let all: Layer = manifests
        .of(TypeUrl::Cluster)
        .iter()
        .map(|resource| (resource.name().clone(), Some(Arc::clone(resource))))
        .collect();
    manifests.by_type[TypeUrl::Cluster.index()] = Manifest::new([all]);
    Arc::new(manifests)
}

struct Client(Session);

impl Client {
    fn new(world: Arc<Manifests>, names: &[&str], held: &[(&str, &str)]) -> Self {
        let session = Session::new(Protocol::Delta, world, Pacing::default(), Arc::default());
        let version =
            |content: &str| Some(Encoded::new(TypeUrl::Cluster, Name::empty(), content.as_bytes()).version());
        let held: Vec<(&str, Option<Hash64>)> =
            held.iter().map(|(name, content)| (*name, version(content))).collect();
        let entries: Vec<Vec<u8>> =
            held.iter().map(|(name, version)| held_entry(name, version.unwrap_or_default())).collect();
        let initial = if session.holds_everything(TypeUrl::Cluster, entries.iter().map(|entry| &entry[..])) {
            Initial::Everything
        } else {
            session.initial(TypeUrl::Cluster, &held)
        };
        let mut client = Self(session);
        client.request(names, &[], initial);
        client
    }

    fn request(&mut self, subscribe: &[&str], unsubscribe: &[&str], initial: Initial) {
        let subscribe = Arc::new(subscribe.iter().map(|name| Name::new(name)).collect());
        let unsubscribe = unsubscribe.iter().map(|name| Name::new(name)).collect();
        let ask = Ask::Changes { subscribe, unsubscribe, initial };
        self.0.request(Request { type_url: TypeUrl::Cluster, nonce: String::new(), error: None, ask });
    }

    fn ask(&mut self, name: &str) -> Vec<String> {
        self.request(&[name], &[], Initial::Some(Vec::new()));
        self.accept()
    }

    fn let_go(&mut self, name: &str) -> Vec<String> {
        self.request(&[], &[name], Initial::Some(Vec::new()));
        self.accept()
    }

    fn update(&mut self, world: Arc<Manifests>) -> Vec<String> {
        self.0.update(world);
        self.accept()
    }

    fn answer(&mut self, response: &Response, error: Option<&str>) {
        let (subscribe, unsubscribe) = Default::default();
        let ask = Ask::Changes { subscribe, unsubscribe, initial: Initial::Some(Vec::new()) };
        let (nonce, error) = (response.nonce.clone(), error.map(str::to_owned));
        self.0.request(Request { type_url: response.type_url, nonce, error, ask });
    }

    /// Everything that is sent until there is no more, as `name=content` and `-name`.
    fn accept(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        while let Some(response) = self.0.poll(0) {
            let text = |r: &Arc<Encoded>| format!("{}={}", r.name(), String::from_utf8_lossy(&r.message()));
            told.extend(response.resources.iter().map(text));
            told.extend(response.removed.iter().map(|name| format!("-{name}")));
            self.answer(&response, None);
        }
        told
    }
}

#[test]
fn what_is_kept_back_comes_when_it_is_asked_for() {
    let mut client = Client::new(world(&["a=1", "b?=1", "c?=1"]), &[], &[]);
    assert_eq!(client.accept(), ["a=1"]);
    assert_eq!(client.ask("b"), ["b=1"]);
    assert!(client.ask("nobody").contains(&"-nobody".to_owned()), "who waits in vain is told");
}

#[test]
fn only_who_asked_is_told_of_changes() {
    let mut client = Client::new(world(&["a=1", "b?=1", "c?=1"]), &[], &[]);
    client.accept();
    client.ask("b");
    assert_eq!(client.update(world(&["a=1", "b?=2", "c?=2"])), ["b=2"]);
    assert_eq!(client.update(world(&["a=1"])), ["-b"]);
    assert_eq!(client.update(world(&["a=1", "b?=3", "d?=1"])), ["b=3"], "it is still asked for");
}

#[test]
fn what_was_asked_for_in_vain_comes_as_soon_as_it_is_there() {
    let mut client = Client::new(world(&["a=1"]), &[], &[]);
    client.accept();
    assert_eq!(client.ask("b"), ["-b"]);
    assert_eq!(client.update(world(&["a=1", "b?=1", "c?=1"])), ["b=1"]);
}

#[test]
fn what_is_no_longer_kept_back_comes_unasked_and_what_is_kept_back_now_stays() {
    let mut client = Client::new(world(&["a=1", "b?=1"]), &[], &[]);
    client.accept();
    assert_eq!(client.update(world(&["a=1", "b=1"])), ["b=1"]);
    assert!(client.update(world(&["a?=1", "b?=1"])).is_empty(), "nothing in use is taken away");
    assert_eq!(client.update(world(&["a?=2", "b?=1"])), ["a=2"], "what is held is kept up to date");
    assert_eq!(client.update(world(&["a?=2"])), ["-b"]);
}

#[test]
fn the_switch_can_be_turned_while_a_client_is_there() {
    let mut client = Client::new(everything(&["a=1", "b?=1"]), &[], &[]);
    assert_eq!(client.accept(), ["a=1", "b=1"]);
    assert!(client.update(world(&["a=1", "b?=1", "c?=1"])).is_empty());
    assert_eq!(client.update(world(&["a=1", "b?=2", "c?=1"])), ["b=2"]);
    assert_eq!(client.update(everything(&["a=1", "b?=2", "c?=1"])), ["c=1"]);
}

#[test]
fn who_comes_back_is_sent_what_differs_and_nothing_that_it_does_not_need() {
    let held = [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("gone", "1")];
    let there = world(&["a=1", "b?=1", "c?=2", "d?=1", "e?=1"]);
    let mut client = Client::new(there, &["*", "b", "c"], &held);
    // Nobody has accepted routes yet that do without it.
    assert_eq!(client.accept(), ["c=2"]);
    assert_eq!(client.update(world(&["a=1", "b?=2", "c?=2", "d?=2", "e?=2"])), ["b=2", "d=2"]);
}

#[test]
fn who_lets_go_of_a_name_is_told_what_becomes_of_it() {
    let mut client = Client::new(world(&["a=1", "b?=1"]), &[], &[]);
    client.accept();
    client.ask("b");
    assert_eq!(client.let_go("b"), ["b=1"]);
    assert!(client.update(world(&["a=1", "b?=1", "c?=1"])).is_empty());
    assert_eq!(client.update(world(&["a=1", "c?=1"])), ["-b"]);
}

#[test]
fn what_is_refused_is_not_sent_again_until_it_changes() {
    let mut client = Client::new(world(&["a=1", "b?=1"]), &[], &[]);
    client.accept();
    client.request(&["b"], &[], Initial::Some(Vec::new()));
    let response = client.0.poll(0).expect("an answer");
    client.answer(&response, Some("no good"));
    assert!(client.accept().is_empty());
    assert_eq!(client.update(world(&["a=1", "b?=2"])), ["b=2"]);
}

fn word(name: &Name, _: Why, _: &Manifest, _: &[u8]) -> Encoded {
    Encoded::new(TypeUrl::Cluster, name.clone(), b"nobody")
}

/// The same, where names that are asked for in vain get a word.
fn answering(clusters: &[&str]) -> Arc<Manifests> {
    let mut manifests = Manifests::clone(&world(clusters));
    let all = &mut manifests.by_type[TypeUrl::Cluster.index()];
    *all = std::mem::take(all).with_unserved(Unserved { form: word, common: Arc::default() });
    Arc::new(manifests)
}

#[test]
fn only_who_asks_by_name_is_given_a_word_in_place_of_what_is_not_there() {
    let mut client = Client::new(answering(&["a=1", "b?=1", "c=1"]), &[], &[]);
    client.accept();
    client.ask("b");
    assert_eq!(client.ask("d"), ["d=nobody"]);
    assert_eq!(client.update(answering(&["a=1"])), ["b=nobody", "-c"]);
    assert_eq!(client.update(answering(&["a=1", "d?=1"])), ["d=1"]);
}

#[test]
fn who_comes_back_with_a_word_is_not_told_again() {
    let held = [("a", "1"), ("d", "nobody")];
    let mut client = Client::new(answering(&["a=1", "b?=1"]), &["*", "d"], &held);
    assert!(client.accept().is_empty());
    assert_eq!(client.update(answering(&["a=1", "b?=1", "d?=1"])), ["d=1"]);
}

#[test]
fn who_asks_for_what_has_just_gone_is_given_it_for_as_long_as_routes_may_lead_to_it() {
    let mut client = Client::new(world(&["a=1", "b?=1"]), &[], &[]);
    client.accept();
    client.0.update(world(&["a=1"]));
    assert_eq!(client.ask("b"), ["b=1", "-b"]);
}
