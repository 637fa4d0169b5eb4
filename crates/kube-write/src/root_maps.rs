use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Labels, Name};
use pilot_ca::Authority;
use pilot_config::Tree;
use pilot_model::{LabelSelector, MeshConfig};
use pilot_source_kube::{
    Call, CallError, Change, Client, Content, Follow, Look, Resource, Update, Verdict, What,
};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::Leadership;
use crate::attempts::{Attempts, is_left, until};
use crate::leading::while_leading;
use crate::object::{change, set};

/// The key that agents read.
const KEY: &str = "root-cert.pem";
/// Whoever looks for what Istio writes finds it by this.
const LABEL: &str = "istio.io/config";
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
    /// Whose `discoverySelectors` leave out namespaces.
    pub mesh: watch::Receiver<Arc<MeshConfig>>,
    /// `ISTIO_WATCH_NAMESPACE`: only there.
    pub only_namespace: Option<Name>,
    pub leads: Leadership,
}

enum Message {
    Namespaces(Update<Labels>),
    Maps(Update<String>),
}

/// What is there.
#[derive(Default)]
struct State {
    namespaces: BTreeMap<Name, Labels>,
    selectors: Vec<LabelSelector>,
    /// What all maps should say.
    root: String,
    /// What our map says, by namespace.
    maps: BTreeMap<Name, String>,
    /// Namespaces of which a watch will tell something else.
    told_soon: BTreeSet<Name>,
    /// Namespaces and maps: has all been told once?
    known: [bool; 2],
}

impl RootMaps {
    pub async fn run(self) {
        let leads = self.leads.clone();
        while_leading(leads, || self.lead()).await;
    }

    async fn lead(&self) {
        let client = self.client.at_leisure();
        let (mut authority, mut mesh) = (self.authority.clone(), self.mesh.clone());
        let (teller, mut messages) = mpsc::channel(CAPACITY);
        // Ends with us.
        let _following = self.follow(&client, &teller);
        drop(teller);
        let mut state = State::default();
        let mut attempts = Attempts::among_others("the root certificate is not in every namespace");
        loop {
            state.selectors.clone_from(&mesh.borrow_and_update().discovery_selectors);
            authority.borrow_and_update().root().clone_into(&mut state.root);
            for namespace in state.left() {
                if attempts.may(&namespace) {
                    let written = self.write(&client, &namespace, &mut state).await;
                    attempts.note(&namespace, &written);
                }
            }
            let due = attempts.due(&state.left());
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => state.hear(message),
                    None => return,
                },
                changed = authority.changed() => if changed.is_err() { return },
                changed = mesh.changed() => if changed.is_err() { return },
                () = until(due) => {}
            }
        }
    }

    fn follow(&self, client: &Client, teller: &mpsc::Sender<Message>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let only = self.only_namespace.as_ref().map(|name| Name::from(format!("metadata.name={name}")));
        let namespaces =
            Resource { content: Content::Metadata, fields: only, ..Resource::new("", "v1", "namespaces") };
        let maps = Resource {
            namespace: self.only_namespace.clone(),
            fields: Some(Name::from(format!("metadata.name={}", self.name))),
            ..Resource::new("", "v1", "configmaps")
        };
        let namespaces = Follow::fixed(client.clone(), namespaces, Namespaces).believing();
        tasks.spawn(namespaces.run(teller.clone(), Message::Namespaces));
        let maps = Follow::fixed(client.clone(), maps, Maps).believing();
        tasks.spawn(maps.run(teller.clone(), Message::Maps));
        tasks
    }

    /// Brings a namespace to the same root as all.
    async fn write(&self, client: &Client, namespace: &Name, state: &mut State) -> Result<(), CallError> {
        let (place, root) = ((namespace, self.name.as_str()), state.root.as_str());
        let written = match state.maps.get(namespace) {
            Some(_) => renew(client, place, root).await,
            None => create(client, place, root).await,
        };
        match &written {
            Ok(()) => drop(state.maps.insert(namespace.clone(), state.root.clone())),
            Err(error) => {
                let is_ending = error.status() == Some(403) && error.to_string().contains("terminat");
                // The namespace is about to go, or the map has come or gone in between; a watch will tell.
                if !is_left(&written) || is_ending {
                    state.told_soon.insert(namespace.clone());
                    return Ok(());
                }
            }
        }
        written
    }
}

/// Namespaces that are not about to go.
struct Namespaces;

impl Look for Namespaces {
    type Value = Labels;

    fn look(&self, object: Tree<'_>) -> Verdict<Labels> {
        let name = object.text_at(&["metadata", "name"]);
        let goes = !object.text_at(&["metadata", "deletionTimestamp"]).is_empty();
        if goes || LEFT_OUT.contains(&name) {
            return Verdict::Ignore;
        }
        let labels = object.at(&["metadata", "labels"]).into_iter().flat_map(Tree::entries);
        let labels = labels.filter_map(|(key, value)| Some((Name::new(key), Name::new(value.text()?))));
        Verdict::Take(labels.collect(), Vec::new())
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
            Message::Namespaces(Update::Changed { whole, changes, .. }) => {
                self.known[0] |= whole;
                for Change { id, what, .. } in changes {
                    self.told_soon.remove(&id.name);
                    match what {
                        What::Put(labels) => drop(self.namespaces.insert(id.name, labels)),
                        What::Gone => drop(self.namespaces.remove(&id.name)),
                        What::Same => {}
                    }
                }
            }
            Message::Maps(Update::Changed { whole, changes, .. }) => {
                self.known[1] |= whole;
                for Change { id, what, .. } in changes {
                    self.told_soon.remove(&id.namespace);
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

    /// Namespaces where the map is missing or says something else.
    fn left(&self) -> BTreeSet<Name> {
        if self.known != [true, true] {
            return BTreeSet::new();
        }
        let counts = |labels: &Labels| {
            self.selectors.is_empty() || self.selectors.iter().any(|selector| selector.selects(labels))
        };
        let all = self.namespaces.iter().filter(|(_, labels)| counts(labels)).map(|(name, _)| name);
        let is_left =
            |name: &&Name| self.maps.get(*name) != Some(&self.root) && !self.told_soon.contains(*name);
        all.filter(is_left).cloned().collect()
    }
}

fn maps(namespace: &Name) -> Resource {
    Resource { namespace: Some(namespace.clone()), ..Resource::new("", "v1", "configmaps") }
}

async fn renew(client: &Client, (namespace, name): (&Name, &str), root: &str) -> Result<(), CallError> {
    change(client, &maps(namespace).object(name), |map| {
        set(map, &["metadata", "labels", LABEL], "true".into());
        set(map, &["data", KEY], root.into());
    })
    .await
}

async fn create(client: &Client, (namespace, name): (&Name, &str), root: &str) -> Result<(), CallError> {
    let object = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace.as_str(), "labels": {LABEL: "true"}},
        "data": {KEY: root},
    });
    client.call(Call::post(&maps(namespace).path(), object.to_string())).await.map(|_| ())
}
