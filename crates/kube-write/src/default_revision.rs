use pilot_base::Name;
use pilot_config::Tree;
use pilot_source_kube::{Change, Client, Follow, Look, Resource, Update, Verdict, What};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Where Istio notes which revision serves those who name none.
const TAG: &str = "istio-revision-tag-default";
const REVISION: &str = "istio.io/rev";
const CAPACITY: usize = 4;

/// Follows the tag of the default revision in a cluster.
pub struct DefaultRevision {
    client: Client,
    told: watch::Sender<String>,
}

struct TagLook;

impl Look for TagLook {
    type Value = String;

    fn look(&self, object: Tree<'_>) -> Verdict<String> {
        Verdict::Take(object.text_at(&["metadata", "labels", REVISION]).to_owned(), Vec::new())
    }
}

impl DefaultRevision {
    pub fn new(client: &Client) -> Self {
        Self { client: client.at_leisure(), told: watch::Sender::default() }
    }

    /// The revision; empty while there is none, or nobody knows.
    pub fn watch(&self) -> watch::Receiver<String> {
        self.told.subscribe()
    }

    /// Runs until nobody wants to know.
    pub async fn run(self) {
        let (teller, mut updates) = mpsc::channel(CAPACITY);
        let tags = Resource {
            fields: Some(Name::from(format!("metadata.name={TAG}"))),
            ..Resource::new("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
        };
        let follow = Follow::fixed(self.client, tags, TagLook).believing();
        let mut following = JoinSet::new();
        following.spawn(follow.run(teller, |update| update));
        loop {
            let update = tokio::select! {
                update = updates.recv() => update,
                () = self.told.closed() => return,
            };
            let changes = match update {
                Some(Update::Changed { changes, .. }) => changes,
                Some(Update::Trouble(_) | Update::Well) => continue,
                None => return,
            };
            for Change { what, .. } in changes {
                match what {
                    What::Put(revision) => drop(self.told.send_replace(revision)),
                    What::Gone => drop(self.told.send_replace(String::new())),
                    What::Same => {}
                }
            }
        }
    }
}
