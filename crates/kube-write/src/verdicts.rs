//! What is wrong with rules, in their own status: where people look who cannot see our log.
//!
//! ```text
//!   issues ─────────────┐
//!   rules ──Follow──► Book: what each status says, and what it should say ──where they differ──► status
//! ```
//!
//! Rules that are well, and always were, are not written to. What somebody else wrote into a status stays there.

mod book;

use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Issue, Name};
use pilot_config::Tree;
use pilot_model::{ConfigId, Kind};
use pilot_source_kube::{
    Call, CallError, Client, Follow, Look, RULES, Resource, RulePlaces, Selection, Update, Verdict,
    is_for_another, place_of,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::book::{Book, Key, Told};
use crate::Leadership;
use crate::attempts::{Attempts, is_left, until};
use crate::leading::while_leading;

const CAPACITY: usize = 64;
/// At least so long between two rounds: a rule that changes all the time is written to once a second.
const PAUSE: Duration = Duration::from_secs(1);

/// Writes what is wrong with rules into their status while we lead.
pub struct Verdicts {
    pub client: Client,
    pub places: RulePlaces,
    pub issues: watch::Receiver<Arc<Vec<Issue>>>,
    pub leads: Leadership,
    /// Rules for others are theirs to judge.
    pub readers: Readers,
    /// The time now, as `2026-01-01T00:00:00Z`.
    pub now: fn() -> String,
}

/// Which rules are read here.
#[derive(Clone)]
pub struct Readers {
    /// `REVISION`; all rules are ours if it is empty.
    pub revision: Name,
    pub selection: Selection,
}

struct StatusLook(Readers);

impl Look for StatusLook {
    type Value = Told;

    fn selection(&self) -> Option<&Selection> {
        Some(&self.0.selection)
    }

    fn look(&self, object: Tree<'_>) -> Verdict<Told> {
        let Readers { revision, selection } = &self.0;
        if is_for_another(object, revision) || !selection.includes(object.text_at(&["metadata", "namespace"]))
        {
            return Verdict::Ignore;
        }
        Verdict::Take(Told::read(object), Vec::new())
    }
}

impl Verdicts {
    pub async fn run(self) {
        let leads = self.leads.clone();
        while_leading(leads, || self.lead()).await;
    }

    async fn lead(&self) {
        let client = self.client.at_leisure();
        let (teller, mut updates) = mpsc::channel(CAPACITY);
        let mut following = JoinSet::new();
        for (kind, ..) in RULES {
            let (client, mut places, teller) = (client.clone(), self.places.clone(), teller.clone());
            let look = StatusLook(self.readers.clone());
            following.spawn(async move {
                let Some(place) = place_of(&mut places, kind).await else { return };
                let follow = Follow::new(client, place, look).believing();
                follow.run(teller, move |update| (kind, update)).await;
            });
        }
        drop(teller);
        let mut issues = self.issues.clone();
        let mut book = Book::default();
        book.judge(&issues.borrow_and_update());
        let mut attempts = Attempts::new("what is wrong with rules is not written into their status");
        let mut rested = Instant::now();
        loop {
            // What comes meanwhile is heard, and written together.
            let due = attempts.due(book.open()).map(|due| due.max(rested));
            tokio::select! {
                update = updates.recv() => match update {
                    Some((kind, Update::Changed { changes, .. })) => book.hear(kind, changes),
                    Some((_, Update::Trouble(_) | Update::Well)) => {}
                    None => return,
                },
                changed = issues.changed() => match changed {
                    Ok(()) => book.judge(&issues.borrow_and_update()),
                    Err(_) => return,
                },
                () = until(due) => {
                    self.round(&client, &mut book, &mut attempts).await;
                    rested = Instant::now() + PAUSE;
                }
            }
        }
    }

    /// Writes what may be written now.
    async fn round(&self, client: &Client, book: &mut Book, attempts: &mut Attempts<Key>) {
        for key in book.take_open() {
            if !attempts.may(&key) {
                book.reopen(key);
                continue;
            }
            let (kind, id) = &key;
            let Some(status) = book.wanted((*kind, id), &(self.now)()) else { continue };
            let Some(place) = self.places.borrow().get(kind).map(|place| place.borrow().clone()) else {
                continue;
            };
            let written = store(client, &place, (id, &status)).await;
            attempts.note(&key, &written);
            if is_left(&written) {
                book.reopen(key);
            }
        }
    }
}

async fn store(
    client: &Client,
    place: &Resource,
    (id, status): (&ConfigId, &serde_json::Value),
) -> Result<(), CallError> {
    let resource = Resource { namespace: Some(id.namespace.clone()), ..place.clone() };
    let path = format!("{}/status", resource.object(&id.name));
    client.call(Call::merge(&path, status.to_string())).await.map(|_| ())
}

/// The kind that people mean by a name.
fn kind_of(name: &str) -> Option<Kind> {
    RULES.iter().map(|(kind, ..)| *kind).find(|kind| kind.name() == name)
}
