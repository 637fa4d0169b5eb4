//! What is written into other clusters that have no control plane of their own: the root certificate, and whom their API
//! servers trust when sidecars are injected. Such a cluster says itself which control planes are its own.
//!
//! ```text
//!   clients of other clusters ──► one task for each ──► annotation of the namespace ──says that it is ours──► Election, RootMaps,
//!                                                                                                           WebhookConfigs
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Clock, Name};
use pilot_ca::Authority;
use pilot_config::Tree;
use pilot_model::MeshConfig;
use pilot_server::Metrics;
use pilot_source_kube::{
    Change, Client, Content, Follow, Look, RemoteClients, Resource, Update, Verdict, What,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::{DefaultRevision, Election, HookScope, Leadership, RootMaps, Seat, WebhookConfigs};

/// On the namespace of the control plane: clusters whose control planes it obeys, or a star for all.
const CONTROLLED_BY: &str = "topology.istio.io/controlPlaneClusters";
const CAPACITY: usize = 4;

pub struct RemoteWriters {
    pub clients: RemoteClients,
    pub terms: Arc<Terms>,
}

/// What is written, and as whom.
pub struct Terms {
    /// The cluster that we belong to.
    pub home: Name,
    pub namespace: String,
    pub revision: String,
    pub identity: String,
    /// The name of a ConfigMap by which it is decided who writes.
    pub lock: &'static str,
    /// `ENABLE_LEADER_ELECTION`
    pub elects: bool,
    pub root_map: String,
    pub authority: Option<watch::Receiver<Arc<Authority>>>,
    /// Nothing if nobody wants webhooks to be changed.
    pub ca_bundle: Option<watch::Receiver<Arc<str>>>,
    pub mesh: watch::Receiver<Arc<MeshConfig>>,
    pub only_namespace: Option<Name>,
    pub clock: Arc<dyn Clock>,
    pub today: fn() -> i64,
    pub metrics: Arc<Metrics>,
}

/// One cluster that is looked after.
struct Task {
    client: Client,
    stop: watch::Sender<bool>,
}

impl RemoteWriters {
    /// Runs until `stop`, and gives seats free then.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        let mut tasks = JoinSet::new();
        let mut known: BTreeMap<Name, Task> = BTreeMap::new();
        loop {
            let clients = self.clients.borrow_and_update().clone();
            // Whoever is reached in another way is begun anew.
            known.retain(|id, task| {
                let stays = clients.get(id).is_some_and(|client| client.is(&task.client));
                if !stays {
                    task.stop.send_replace(true);
                }
                stays
            });
            for (id, client) in clients {
                known.entry(id.clone()).or_insert_with(|| {
                    let (stop, stopped) = watch::channel(false);
                    let one = One { id, client: client.clone(), terms: Arc::clone(&self.terms) };
                    tasks.spawn(one.run(stopped));
                    Task { client, stop }
                });
            }
            while tasks.try_join_next().is_some() {}
            tokio::select! {
                changed = self.clients.changed() => if changed.is_err() { break },
                () = &mut stop => break,
            }
        }
        for task in known.values() {
            task.stop.send_replace(true);
        }
        while tasks.join_next().await.is_some() {}
    }
}

/// One other cluster.
struct One {
    id: Name,
    client: Client,
    terms: Arc<Terms>,
}

impl One {
    async fn run(self, mut stopped: watch::Receiver<bool>) {
        let (teller, mut updates) = mpsc::channel(CAPACITY);
        let namespaces = Resource {
            content: Content::Metadata,
            fields: Some(Name::from(format!("metadata.name={}", self.terms.namespace))),
            ..Resource::new("", "v1", "namespaces")
        };
        let look = OursLook { home: self.terms.home.clone() };
        let follow = Follow::fixed(self.client.at_leisure(), namespaces, look).believing();
        let mut following = JoinSet::new();
        following.spawn(follow.run(teller, |update| update));
        let (ours, is_ours) = watch::channel(false);
        let mut writing = JoinSet::new();
        loop {
            tokio::select! {
                update = updates.recv() => match update {
                    Some(Update::Changed { changes, .. }) => changes.iter().for_each(|change| hear(change, &ours)),
                    Some(Update::Trouble(_) | Update::Well) => {}
                    None => break,
                },
                _ = stopped.wait_for(|stopped| *stopped) => break,
                Some(_) = writing.join_next() => {}
            }
            if *ours.borrow() && writing.is_empty() {
                tracing::info!("cluster {} says that it is ours; its trust is looked after", self.id);
                self.write(&is_ours, &mut writing);
            }
        }
        ours.send_replace(false);
        while writing.join_next().await.is_some() {}
    }

    /// Writes until the cluster is ours no more.
    fn write(&self, is_ours: &watch::Receiver<bool>, tasks: &mut JoinSet<()>) {
        let over = || {
            let mut is_ours = is_ours.clone();
            async move {
                let _gone = is_ours.wait_for(|is_ours| !*is_ours).await;
            }
        };
        let terms = &*self.terms;
        if let Some(authority) = terms.authority.clone() {
            let leads = if terms.elects { self.elect(&over, tasks) } else { is_ours.clone() };
            let maps = RootMaps {
                client: self.client.clone(),
                name: terms.root_map.clone(),
                authority,
                mesh: terms.mesh.clone(),
                only_namespace: terms.only_namespace.clone(),
                leads,
            };
            tasks.spawn(until(maps.run(), over()));
        }
        if let Some(ca_bundle) = terms.ca_bundle.clone() {
            let configs = WebhookConfigs {
                client: self.client.clone(),
                namespace: terms.namespace.clone(),
                revision: terms.revision.clone(),
                ca_bundle,
                scope: HookScope::Injection,
                metrics: Arc::clone(&terms.metrics),
            };
            tasks.spawn(until(configs.run(), over()));
        }
    }

    fn elect<F>(&self, over: &impl Fn() -> F, tasks: &mut JoinSet<()>) -> Leadership
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let terms = &*self.terms;
        let seat = Seat {
            namespace: terms.namespace.clone(),
            name: terms.lock,
            identity: terms.identity.clone(),
            revision: terms.revision.clone(),
            remote: true,
        };
        let default = DefaultRevision::new(&self.client);
        let times = (Arc::clone(&terms.clock), terms.today);
        let election = Election::new(self.client.clone(), seat, default.watch(), times);
        tasks.spawn(until(default.run(), over()));
        let leads = election.leadership();
        tasks.spawn(election.run(over()));
        leads
    }
}

async fn until(work: impl Future<Output = ()>, over: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        () = over => {}
    }
}

fn hear(change: &Change<bool>, ours: &watch::Sender<bool>) {
    let is_ours = match change.what {
        What::Put(is_ours) => is_ours,
        What::Gone => false,
        What::Same => return,
    };
    ours.send_if_modified(|known| std::mem::replace(known, is_ours) != is_ours);
}

/// Does a cluster obey our control plane?
struct OursLook {
    home: Name,
}

impl Look for OursLook {
    type Value = bool;

    fn look(&self, namespace: Tree<'_>) -> Verdict<bool> {
        let named = namespace.text_at(&["metadata", "annotations", CONTROLLED_BY]);
        let is_ours = named.split(',').map(str::trim).any(|name| name == "*" || name == self.home.as_str());
        Verdict::Take(is_ours, Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::Name;
    use pilot_config::Document;
    use pilot_source_kube::{Look as _, Verdict};
    use serde_json::json;

    use super::{CONTROLLED_BY, OursLook};

    #[test]
    fn a_cluster_says_whose_it_is() {
        let look = OursLook { home: Name::new("east") };
        for (named, expected) in
            [("east", true), ("west, east", true), ("*", true), ("west", false), ("eas", false), ("", false)]
        {
            let text = json!({"metadata": {"annotations": {CONTROLLED_BY: named}}}).to_string();
            let document = Document::parse(text.as_bytes()).unwrap();
            let Verdict::Take(is_ours, _) = look.look(document.tree()) else { panic!("{named}") };
            assert_eq!(is_ours, expected, "{named}");
        }
    }
}
