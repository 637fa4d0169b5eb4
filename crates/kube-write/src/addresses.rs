//! Addresses for services that have none, in the status of their ServiceEntries.
//!
//! ```text
//!   ServiceEntries ──Follow──► Ledger: who has what ──what is missing or taken twice──► status.addresses
//! ```
//!
//! What stands in a status is where it is read again, so addresses stay the same when servers come and go.

mod ledger;
mod pool;

use std::collections::BTreeSet;

use pilot_base::Cidr;
use pilot_config::Tree;
use pilot_model::{ConfigId, Kind};
use pilot_source_kube::{
    Call, CallError, Change, Client, Follow, Look, Resource, RulePlaces, Selection, Update, Verdict, What,
    place_of,
};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::ledger::{Entry, HostAddress, Ledger, written};
use crate::Leadership;
use crate::attempts::{Attempts, is_left, until};
use crate::leading::while_leading;

/// Whoever lists a large cluster waits for us.
const CAPACITY: usize = 64;

/// Gives addresses to hosts of ServiceEntries while we lead.
pub struct Addresses {
    pub client: Client,
    pub places: RulePlaces,
    /// `PILOT_IP_AUTOALLOCATE_IPV4_PREFIX`
    pub v4: Cidr,
    /// `PILOT_IP_AUTOALLOCATE_IPV6_PREFIX`
    pub v6: Cidr,
    pub leads: Leadership,
    /// Of which namespaces ServiceEntries count; the others may be those of another mesh.
    pub selection: Selection,
}

struct EntryLook(Selection);

impl Look for EntryLook {
    type Value = Entry;

    fn selection(&self) -> Option<&Selection> {
        Some(&self.0)
    }

    fn look(&self, object: Tree<'_>) -> Verdict<Entry> {
        if !self.0.includes(object.text_at(&["metadata", "namespace"])) {
            return Verdict::Ignore;
        }
        Verdict::Take(Entry::read(object), Vec::new())
    }
}

impl Addresses {
    pub async fn run(self) {
        let leads = self.leads.clone();
        while_leading(leads, || self.lead()).await;
    }

    async fn lead(&self) {
        let Some(place) = place_of(&mut self.places.clone(), Kind::ServiceEntry).await else {
            return std::future::pending().await;
        };
        let client = self.client.at_leisure();
        let (teller, mut updates) = mpsc::channel(CAPACITY);
        let look = EntryLook(self.selection.clone());
        let follow = Follow::new(client.clone(), place.clone(), look).believing();
        // Ends with us.
        let mut following = JoinSet::new();
        following.spawn(follow.run(teller, |update| update));
        let mut work = Work {
            ledger: Ledger::new(self.v4, self.v6),
            open: BTreeSet::new(),
            is_whole: false,
            attempts: Attempts::new("some ServiceEntries are left without addresses"),
        };
        loop {
            let due = work.round(&client, &place).await;
            tokio::select! {
                update = updates.recv() => match update {
                    Some(update) => work.hear(update),
                    None => return,
                },
                () = until(due) => {}
            }
        }
    }
}

/// What is left to do.
struct Work {
    ledger: Ledger,
    open: BTreeSet<ConfigId>,
    /// Before all of them are known an address that seems free may be somebody's.
    is_whole: bool,
    attempts: Attempts<ConfigId>,
}

impl Work {
    fn hear(&mut self, update: Update<Entry>) {
        let Update::Changed { whole, changes, .. } = update else { return };
        self.is_whole |= whole;
        for Change { id, what, .. } in changes {
            let touched = match what {
                What::Put(entry) => self.ledger.put(&id, entry),
                What::Gone => self.ledger.remove(&id),
                What::Same => BTreeSet::new(),
            };
            self.open.extend(touched);
        }
    }

    /// Writes what may be written now. Tells when there is more to do.
    async fn round(&mut self, client: &Client, place: &watch::Receiver<Resource>) -> Option<Instant> {
        if !self.is_whole {
            return None;
        }
        for id in std::mem::take(&mut self.open) {
            if !self.attempts.may(&id) {
                self.open.insert(id);
                continue;
            }
            let Some(planned) = self.ledger.plan(&id) else { continue };
            let Some(entry) = self.ledger.entry(&id) else { continue };
            let short = entry.hosts.len() * 2 > planned.len();
            if short {
                tracing::warn!("ServiceEntry {id}: a range of addresses is exhausted; some hosts have none");
            }
            let resource = Resource { namespace: Some(id.namespace.clone()), ..place.borrow().clone() };
            let written = store(client, &resource.object(&id.name), (&entry.version, &planned)).await;
            if written.is_ok() {
                tracing::info!("ServiceEntry {id}: {} addresses in its status", planned.len());
            }
            self.attempts.note(&id, &written);
            if is_left(&written) {
                self.open.insert(id);
            }
        }
        self.attempts.due(&self.open)
    }
}

async fn store(
    client: &Client,
    path: &str,
    (version, planned): (&str, &[HostAddress]),
) -> Result<(), CallError> {
    let body = json!({"metadata": {"resourceVersion": version}, "status": {"addresses": written(planned)}});
    client.call(Call::merge(&format!("{path}/status"), body.to_string())).await.map(|_| ())
}
