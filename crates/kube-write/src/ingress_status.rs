//! Ingresses of ours say at which addresses they are served.
//!
//! ```text
//!   the gateway's Service, or its pods and their nodes ──► addresses ──where they differ──► status of our Ingresses
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use pilot_base::Name;
use pilot_config::Tree;
use pilot_model::{ConfigId, IngressSettings, MeshConfig};
use pilot_source_kube::{
    Call, CallError, Change, ClassLook, Client, Follow, Ingress, Look, Resource, Update, Verdict, What,
    ingress_classes, ingresses,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::Leadership;
use crate::attempts::{Attempts, is_left, until};
use crate::leading::while_leading;

const CAPACITY: usize = 64;

/// Writes the status of Ingresses while we lead.
pub struct IngressStatus {
    pub client: Client,
    /// The namespace of the gateway.
    pub namespace: Name,
    /// `ISTIO_WATCH_NAMESPACE`: only Ingresses of it.
    pub only_namespace: Option<Name>,
    pub mesh: watch::Receiver<Arc<MeshConfig>>,
    pub leads: Leadership,
}

/// An Ingress, and the addresses that its status tells.
struct Told {
    ingress: Ingress,
    version: String,
    addresses: BTreeSet<String>,
    /// It is another by now.
    is_old: bool,
}

struct ToldLook;

impl Look for ToldLook {
    type Value = Told;

    fn look(&self, object: Tree<'_>) -> Verdict<Told> {
        let told = Told {
            ingress: Ingress::read(object),
            version: object.text_at(&["metadata", "resourceVersion"]).to_owned(),
            addresses: balancer(object),
            is_old: false,
        };
        Verdict::Take(told, Vec::new())
    }
}

/// What stands below `status.loadBalancer`: addresses, or names.
fn balancer(object: Tree<'_>) -> BTreeSet<String> {
    let all = object.at(&["status", "loadBalancer", "ingress"]).into_iter().flat_map(Tree::items);
    let one = |at: Tree<'_>| match at.text_at(&["ip"]) {
        "" => at.text_at(&["hostname"]).to_owned(),
        ip => ip.to_owned(),
    };
    all.map(one).filter(|text| !text.is_empty()).collect()
}

/// At which addresses a service can be called from outside.
struct ServiceLook;

impl Look for ServiceLook {
    type Value = BTreeSet<String>;

    fn look(&self, service: Tree<'_>) -> Verdict<Self::Value> {
        if service.text_at(&["spec", "type"]) == "ExternalName" {
            let name = service.text_at(&["spec", "externalName"]).to_owned();
            return Verdict::Take(BTreeSet::from([name]), Vec::new());
        }
        let external = service.at(&["spec", "externalIPs"]).into_iter().flat_map(Tree::items);
        let external = external.filter_map(Tree::text).map(str::to_owned);
        Verdict::Take(balancer(service).into_iter().chain(external).collect(), Vec::new())
    }
}

/// The node that a running pod is on.
struct PodLook;

impl Look for PodLook {
    type Value = Name;

    fn look(&self, pod: Tree<'_>) -> Verdict<Name> {
        if pod.text_at(&["status", "phase"]) != "Running" {
            return Verdict::Ignore;
        }
        Verdict::Take(Name::new(pod.text_at(&["spec", "nodeName"])), Vec::new())
    }
}

/// The addresses of a node that can be called from outside.
struct NodeLook;

impl Look for NodeLook {
    type Value = BTreeSet<String>;

    fn look(&self, node: Tree<'_>) -> Verdict<Self::Value> {
        let all = node.at(&["status", "addresses"]).into_iter().flat_map(Tree::items);
        let external = all.filter(|address| address.text_at(&["type"]) == "ExternalIP");
        let text = external.map(|address| address.text_at(&["address"]).to_owned());
        Verdict::Take(text.filter(|text| !text.is_empty()).collect(), Vec::new())
    }
}

enum Message {
    Ingresses(Update<Told>),
    Classes(Update<String>),
    Service(Update<BTreeSet<String>>),
    Pods(Update<Name>),
    Nodes(Update<BTreeSet<String>>),
}

impl IngressStatus {
    pub async fn run(self) {
        let leads = self.leads.clone();
        while_leading(leads, || self.lead()).await;
    }

    async fn lead(&self) {
        let mut mesh = self.mesh.clone();
        loop {
            let settings = mesh.borrow_and_update().ingress.clone();
            tokio::select! {
                () = self.follow(&settings) => return,
                changed = changed(&mut mesh, &settings) => if !changed { return },
            }
        }
    }

    async fn follow(&self, settings: &IngressSettings) {
        let (teller, mut messages) = mpsc::channel(CAPACITY);
        let client = self.client.at_leisure();
        let mut following = Following { client: &client, teller, tasks: JoinSet::new() };
        let mut board = Board::default();
        let namespace = self.only_namespace.clone();
        following.start(Resource { namespace, ..ingresses() }, ToldLook, Message::Ingresses);
        following.start(ingress_classes(), ClassLook, Message::Classes);
        let within = |plural: &str| Resource {
            namespace: Some(self.namespace.clone()),
            ..Resource::new("", "v1", plural)
        };
        if settings.service.is_empty() {
            let labels = Some(Name::from(format!("istio={}", settings.gateway())));
            following.start(Resource { labels, ..within("pods") }, PodLook, Message::Pods);
            following.start(Resource::new("", "v1", "nodes"), NodeLook, Message::Nodes);
            board.pending.extend(["pods", "nodes"]);
        } else {
            let fields = Some(Name::from(format!("metadata.name={}", settings.service)));
            following.start(Resource { fields, ..within("services") }, ServiceLook, Message::Service);
            board.pending.insert("services");
        }
        board.pending.extend(["ingresses", "ingressclasses"]);
        let mut attempts = Attempts::new("some Ingresses do not say where they are served");
        loop {
            for id in board.left(settings) {
                if attempts.may(&id) {
                    let written = board.write(&client, &id).await;
                    attempts.note(&id, &written);
                }
            }
            let due = attempts.due(&board.left(settings));
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => board.hear(message),
                    None => return,
                },
                () = until(due) => {}
            }
        }
    }
}

/// Waits until the settings are others. False if they will never be.
async fn changed(mesh: &mut watch::Receiver<Arc<MeshConfig>>, settings: &IngressSettings) -> bool {
    mesh.wait_for(|mesh| mesh.ingress != *settings).await.is_ok()
}

struct Following<'a> {
    client: &'a Client,
    teller: mpsc::Sender<Message>,
    tasks: JoinSet<()>,
}

impl Following<'_> {
    fn start<L: Look>(
        &mut self,
        resource: Resource,
        look: L,
        wrap: impl Fn(Update<L::Value>) -> Message + Send + Sync + 'static,
    ) {
        let follow = Follow::fixed(self.client.clone(), resource, look).believing();
        self.tasks.spawn(follow.run(self.teller.clone(), wrap));
    }
}

/// What is there.
#[derive(Default)]
struct Board {
    ingresses: BTreeMap<ConfigId, Told>,
    classes: BTreeMap<Name, String>,
    service: BTreeSet<String>,
    pods: BTreeMap<ConfigId, Name>,
    nodes: BTreeMap<Name, BTreeSet<String>>,
    /// What is not known yet.
    pending: BTreeSet<&'static str>,
}

impl Board {
    fn hear(&mut self, message: Message) {
        match message {
            Message::Ingresses(update) => {
                for Change { id, what, .. } in heard("ingresses", update, &mut self.pending) {
                    keep(&mut self.ingresses, id, what);
                }
            }
            Message::Classes(update) => {
                for Change { id, what, .. } in heard("ingressclasses", update, &mut self.pending) {
                    keep(&mut self.classes, id.name, what);
                }
            }
            Message::Service(update) => {
                for Change { what, .. } in heard("services", update, &mut self.pending) {
                    match what {
                        What::Put(addresses) => self.service = addresses,
                        What::Gone => self.service.clear(),
                        What::Same => {}
                    }
                }
            }
            Message::Pods(update) => {
                for Change { id, what, .. } in heard("pods", update, &mut self.pending) {
                    keep(&mut self.pods, id, what);
                }
            }
            Message::Nodes(update) => {
                for Change { id, what, .. } in heard("nodes", update, &mut self.pending) {
                    keep(&mut self.nodes, id.name, what);
                }
            }
        }
    }

    /// Of the service, or of the node that the first of the gateway's pods runs on.
    fn addresses(&self) -> BTreeSet<String> {
        let of_pod = self.pods.values().find_map(|node| self.nodes.get(node)).into_iter().flatten();
        self.service.iter().chain(of_pod).cloned().collect()
    }

    /// Ingresses of ours that do not say where they are served.
    fn left(&self, settings: &IngressSettings) -> BTreeSet<ConfigId> {
        if !self.pending.is_empty() {
            return BTreeSet::new();
        }
        let wanted = self.addresses();
        let is_left = |told: &Told| {
            let controller = told.ingress.class().and_then(|class| self.classes.get(class));
            let is_ours = told.ingress.is_ours(settings, controller.map(String::as_str));
            is_ours && told.addresses != wanted && !told.is_old
        };
        self.ingresses.iter().filter(|(_, told)| is_left(told)).map(|(id, _)| id.clone()).collect()
    }

    async fn write(&mut self, client: &Client, id: &ConfigId) -> Result<(), CallError> {
        let wanted = self.addresses();
        let Some(told) = self.ingresses.get_mut(id) else { return Ok(()) };
        let written = store(client, (id, &told.version), &wanted).await;
        if written.is_ok() {
            told.addresses = wanted;
        } else if !is_left(&written) {
            // It was changed or is gone, and a watch will tell.
            told.is_old = true;
        }
        written
    }
}

/// What is different; all that there is, once it is told as a whole.
fn heard<T>(what: &'static str, update: Update<T>, pending: &mut BTreeSet<&'static str>) -> Vec<Change<T>> {
    let Update::Changed { whole, changes, .. } = update else { return Vec::new() };
    if whole {
        pending.remove(what);
    }
    changes
}

fn keep<K: Ord, T>(known: &mut BTreeMap<K, T>, key: K, what: What<T>) {
    match what {
        What::Put(value) => drop(known.insert(key, value)),
        What::Gone => drop(known.remove(&key)),
        What::Same => {}
    }
}

async fn store(
    client: &Client,
    (id, version): (&ConfigId, &str),
    addresses: &BTreeSet<String>,
) -> Result<(), CallError> {
    // Addresses before names, both in order, as istiod writes them.
    let (ips, names): (Vec<&String>, Vec<&String>) =
        addresses.iter().partition(|text| text.parse::<IpAddr>().is_ok());
    let names = names.into_iter().map(|name| json!({"hostname": name}));
    let all: Vec<Value> = ips.into_iter().map(|ip| json!({"ip": ip})).chain(names).collect();
    let body =
        json!({"metadata": {"resourceVersion": version}, "status": {"loadBalancer": {"ingress": all}}});
    let resource = Resource { namespace: Some(id.namespace.clone()), ..ingresses() };
    let path = format!("{}/status", resource.object(&id.name));
    client.call(Call::merge(&path, body.to_string())).await?;
    tracing::info!("Ingress {id}: {} addresses in its status", addresses.len());
    Ok(())
}
