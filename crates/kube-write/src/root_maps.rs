use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::Name;
use pilot_ca::Authority;
use pilot_config::Tree;
use pilot_source_kube::{
    Backoff, Call, CallError, Change, Client, Content, Follow, Look, Resource, Update, Verdict, What,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::Leadership;

/// The key that agents read.
const KEY: &str = "root-cert.pem";
/// Nobody runs workloads there.
const LEFT_OUT: [&str; 3] = ["kube-public", "kube-node-lease", "local-path-storage"];
/// Whoever lists a large cluster waits for us.
const CAPACITY: usize = 64;

/// The root certificate in every namespace, so that workloads know whom to trust.
pub struct RootMaps {
    pub client: Client,
    /// `PILOT_CA_CERT_CONFIGMAP`
    pub name: String,
    pub authority: watch::Receiver<Arc<Authority>>,
    pub leads: Leadership,
}

enum Message {
    Namespaces(Update<()>),
    Maps(Update<String>),
}

/// What is there.
#[derive(Default)]
struct State {
    namespaces: BTreeSet<Name>,
    /// What our map says, by namespace.
    maps: BTreeMap<Name, String>,
    /// Namespaces and maps: has all been told once?
    known: [bool; 2],
}

impl RootMaps {
    pub async fn run(self) {
        let Self { client, name, mut authority, mut leads } = self;
        let (teller, mut messages) = mpsc::channel(CAPACITY);
        let mut following = follow(&client, &name, &teller);
        drop(teller);
        let mut state = State::default();
        let mut backoff = Backoff::new();
        let mut told = String::new();
        loop {
            let root = authority.borrow_and_update().root().to_owned();
            let mut again = None;
            if *leads.borrow_and_update() && state.known == [true, true] {
                match state.write(&client, &name, &root).await {
                    Ok(()) => {
                        backoff.reset();
                        told.clear();
                    }
                    Err(error) => {
                        let text = error.to_string();
                        if text != told {
                            tracing::warn!("the root certificate is not in every namespace: {text}");
                            told = text;
                        }
                        again = Some(backoff.wait(None));
                    }
                }
            }
            let later = async {
                match again {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => state.hear(message),
                    None => break,
                },
                changed = authority.changed() => if changed.is_err() { break },
                changed = leads.changed() => if changed.is_err() { break },
                () = later => {}
            }
        }
        following.shutdown().await;
    }
}

fn follow(client: &Client, name: &str, teller: &mpsc::Sender<Message>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let namespaces = Resource { content: Content::Metadata, ..Resource::new("", "v1", "namespaces") };
    let fields = Some(Name::from(format!("metadata.name={name}")));
    let maps = Resource { fields, ..Resource::new("", "v1", "configmaps") };
    let (_, place) = watch::channel(namespaces);
    let namespaces = Follow { client: client.clone(), place, look: Arc::new(Namespaces) };
    tasks.spawn(namespaces.run(teller.clone(), Message::Namespaces));
    let (_, place) = watch::channel(maps);
    let maps = Follow { client: client.clone(), place, look: Arc::new(Maps) };
    tasks.spawn(maps.run(teller.clone(), Message::Maps));
    tasks
}

/// Namespaces that are not about to go.
struct Namespaces;

impl Look for Namespaces {
    type Value = ();

    fn look(&self, object: Tree<'_>) -> Verdict<()> {
        let name = object.text_at(&["metadata", "name"]);
        let goes = !object.text_at(&["metadata", "deletionTimestamp"]).is_empty();
        if goes || LEFT_OUT.contains(&name) { Verdict::Ignore } else { Verdict::Take((), Vec::new()) }
    }
}

/// What maps say.
struct Maps;

impl Look for Maps {
    type Value = String;

    fn look(&self, object: Tree<'_>) -> Verdict<String> {
        Verdict::Take(object.text_at(&["data", KEY]).to_owned(), Vec::new())
    }
}

impl State {
    fn hear(&mut self, message: Message) {
        match message {
            Message::Namespaces(Update::Changed { whole, changes }) => {
                self.known[0] |= whole;
                for Change { id, what, .. } in changes {
                    match what {
                        What::Put(()) => drop(self.namespaces.insert(id.name)),
                        What::Gone => drop(self.namespaces.remove(&id.name)),
                        What::Same => {}
                    }
                }
            }
            Message::Maps(Update::Changed { whole, changes }) => {
                self.known[1] |= whole;
                for Change { id, what, .. } in changes {
                    match what {
                        What::Put(text) => drop(self.maps.insert(id.namespace, text)),
                        What::Gone => drop(self.maps.remove(&id.namespace)),
                        What::Same => {}
                    }
                }
            }
            Message::Namespaces(Update::Trouble(_) | Update::Well)
            | Message::Maps(Update::Trouble(_) | Update::Well) => {}
        }
    }

    /// Brings every namespace to the same root. One that refuses does not keep the others from it.
    async fn write(&mut self, client: &Client, name: &str, root: &str) -> Result<(), CallError> {
        let mut failed = Ok(());
        for namespace in &self.namespaces {
            let there = self.maps.get(namespace);
            if there.is_some_and(|text| text == root) {
                continue;
            }
            let written = match there {
                Some(_) => change(client, (namespace, name), root).await,
                None => create(client, (namespace, name), root).await,
            };
            match written {
                Ok(()) => drop(self.maps.insert(namespace.clone(), root.to_owned())),
                // The namespace is about to go, or the map came in between; a watch will tell.
                Err(error) if matches!(error.status(), Some(404 | 409)) => {}
                Err(error) if error.status() == Some(403) && error.to_string().contains("terminat") => {}
                Err(error) => failed = Err(error),
            }
        }
        failed
    }
}

fn maps(namespace: &Name) -> Resource {
    Resource { namespace: Some(namespace.clone()), ..Resource::new("", "v1", "configmaps") }
}

fn labels() -> Value {
    json!({"istio.io/config": "true"})
}

async fn change(client: &Client, (namespace, name): (&Name, &str), root: &str) -> Result<(), CallError> {
    let change = json!({"metadata": {"labels": labels()}, "data": {KEY: root}});
    client.call(Call::merge(&maps(namespace).object(name), change.to_string())).await.map(|_| ())
}

async fn create(client: &Client, (namespace, name): (&Name, &str), root: &str) -> Result<(), CallError> {
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace.as_str(), "labels": labels()},
        "data": {KEY: root},
    });
    client.call(Call::post(&maps(namespace).path(), object.to_string())).await.map(|_| ())
}
