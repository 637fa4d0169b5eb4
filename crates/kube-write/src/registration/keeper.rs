//! Keeps entries true: who left, how workloads are, and who stays away for too long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use pilot_config::Tree;
use pilot_model::{ConfigId, Kind};
use pilot_source_kube::{
    Call, CallError, Change, Client, Content, Follow, Look, Resource, Update, Verdict, What, place_of,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::entry::{self, CONNECTED, CONTROLLER, DISCONNECTED, Farewell, GROUP, Mark, Nanos, Workload};
use super::scribe::Scribe;
use super::{Pending, Registration, Shown};
use crate::attempts::{Attempts, is_left, until};
use crate::object::read;

const CAPACITY: usize = 64;
/// Entries that somebody else's workloads left are given so much more time: he is to look after them first.
const OTHERS: u32 = 10;
/// So long streams may take to end when the server ends.
const FAREWELLS: Duration = Duration::from_secs(1);

/// Runs beside a [`Registration`].
pub struct Keeper {
    registration: Registration,
    scribe: Scribe,
    pending: BTreeMap<ConfigId, Pending>,
    away: BTreeMap<ConfigId, Away>,
    writing: Attempts<ConfigId>,
    leaving: Attempts<ConfigId>,
}

/// A workload that is not there, or that nobody may have seen leave.
struct Away {
    mark: Mark,
    /// When it is given up, counted from when we heard of it: clocks of others are not believed.
    until: Instant,
}

/// What annotations of an entry say.
struct Seen {
    controller: String,
    mark: Option<Mark>,
}

struct EntryLook;

impl Look for EntryLook {
    type Value = Seen;

    fn look(&self, object: Tree<'_>) -> Verdict<Seen> {
        let text = |name: &str| object.text_at(&["metadata", "annotations", name]);
        let is_ours = !text(GROUP).is_empty() || !text(CONTROLLER).is_empty();
        let mark = Mark::of(text(CONNECTED), text(DISCONNECTED)).filter(|_| is_ours);
        Verdict::Take(Seen { controller: text(CONTROLLER).to_owned(), mark }, Vec::new())
    }
}

struct GroupLook;

impl Look for GroupLook {
    type Value = ();

    fn look(&self, _: Tree<'_>) -> Verdict<()> {
        Verdict::Take((), Vec::new())
    }
}

enum Message {
    Entries(Update<Seen>),
    Groups(Update<()>),
}

impl Keeper {
    pub(super) fn new(registration: Registration) -> Self {
        let client = registration.0.client.at_leisure();
        Self {
            scribe: Scribe { registration: registration.clone(), client },
            registration,
            pending: BTreeMap::new(),
            away: BTreeMap::new(),
            writing: Attempts::new("entries of workloads are not up to date"),
            leaving: Attempts::new("entries of workloads that are gone are not cleaned up"),
        }
    }

    /// Runs until `stop`; what was said until then is written.
    pub async fn run(mut self, stop: impl Future<Output = ()>) {
        let (teller, mut messages) = mpsc::channel(CAPACITY);
        let mut following = JoinSet::new();
        self.follow(&teller, &mut following);
        drop(teller);
        let register = Arc::clone(&self.registration.0);
        tokio::pin!(stop);
        loop {
            self.listen();
            let work = async {
                self.write().await;
                self.give_up().await;
            };
            tokio::select! {
                () = work => {}
                () = &mut stop => break,
            }
            let due = self.due();
            tokio::select! {
                () = register.notes.news.notified() => {}
                message = messages.recv() => match message {
                    Some(message) => self.hear(message).await,
                    None => break,
                },
                () = until(due) => {}
                () = &mut stop => break,
            }
        }
        let farewells = async {
            while !register.present.lock().is_empty() {
                register.notes.news.notified().await;
            }
        };
        // Streams end at the same time as we do.
        let _late = tokio::time::timeout(FAREWELLS, farewells).await;
        self.listen();
        // There is no time to wait any more.
        let client = register.client.clone();
        Scribe { client, ..self.scribe }.write_all(self.pending).await;
    }

    /// When there is something to do though nobody says anything.
    fn due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let open: BTreeSet<ConfigId> = self.pending.keys().cloned().collect();
        let (gone, away): (Vec<_>, Vec<_>) = self.away.iter().partition(|(_, away)| away.until <= now);
        let next = away.into_iter().map(|(_, away)| away.until).min();
        let gone: BTreeSet<ConfigId> = gone.into_iter().map(|(id, _)| id.clone()).collect();
        [self.writing.due(&open), self.leaving.due(&gone), next].into_iter().flatten().min()
    }

    fn follow(&self, teller: &mpsc::Sender<Message>, tasks: &mut JoinSet<()>) {
        let register = &self.registration.0;
        let (client, mut places, to) = (register.client.clone(), register.places.clone(), teller.clone());
        tasks.spawn(async move {
            let Some(place) = place_of(&mut places, Kind::WorkloadEntry).await else { return };
            follow_metadata((client, place, EntryLook), to, Message::Entries).await;
        });
        let (client, mut places, to) = (register.client.clone(), register.places.clone(), teller.clone());
        tasks.spawn(async move {
            let Some(place) = place_of(&mut places, Kind::WorkloadGroup).await else { return };
            follow_metadata((client, place, GroupLook), to, Message::Groups).await;
        });
    }

    /// Takes what streams have said. What they said before and is not written yet counts no more.
    fn listen(&mut self) {
        for (id, news) in std::mem::take(&mut *self.registration.0.notes.open.lock()) {
            let pending = self.pending.entry(id).or_default();
            pending.left = news.left.or(pending.left);
            pending.health = news.health.or(pending.health.take());
        }
    }

    async fn hear(&mut self, message: Message) {
        match message {
            Message::Entries(Update::Changed { changes, .. }) => {
                let mut untrue = Vec::new();
                for Change { id, what, .. } in changes {
                    // Whoever is here has not left, and has an entry, whatever others made of it.
                    if matches!(&what, What::Put(Seen { mark: Some(Mark::Left(_)), .. }) | What::Gone) {
                        untrue.extend(self.here(|present| *present == id));
                    }
                    match what {
                        What::Put(seen) => self.see(id, seen),
                        What::Gone => drop(self.away.remove(&id)),
                        What::Same => {}
                    }
                }
                self.enter_again(untrue).await;
            }
            Message::Groups(Update::Changed { changes, .. }) => {
                let new = changes.into_iter().filter(|change| matches!(change.what, What::Put(())));
                // One that is new, or was made anew: entries of it went with the old one, but workloads may still be there.
                for Change { id, .. } in new {
                    let of_group = |workload: &Workload| {
                        workload.group == id.name && workload.id.namespace == id.namespace
                    };
                    let here = self.here(|_| true).into_iter().filter(|(workload, _)| of_group(workload));
                    self.enter_again(here.collect()).await;
                }
            }
            Message::Entries(Update::Trouble(_) | Update::Well)
            | Message::Groups(Update::Trouble(_) | Update::Well) => {}
        }
    }

    fn see(&mut self, id: ConfigId, seen: Seen) {
        let Seen { controller, mark } = seen;
        let patience = mark.as_ref().and_then(|mark| self.patience(mark, &controller));
        let Some((mark, patience)) = mark.zip(patience) else {
            self.away.remove(&id);
            return;
        };
        if self.away.get(&id).is_none_or(|away| away.mark != mark) {
            self.away.insert(id, Away { mark, until: Instant::now() + patience });
        }
    }

    /// How long an entry may stay as it is; for ever if nothing is said.
    fn patience(&self, mark: &Mark, controller: &str) -> Option<Duration> {
        let options = &self.registration.0.options;
        match mark {
            Mark::Left(_) if controller == options.instance => Some(options.grace),
            Mark::Left(_) => Some(options.grace * OTHERS),
            // Whoever is there connects anew before that, which is written down.
            Mark::Came(_) => options.max_age.map(|age| age + age / 2),
        }
    }

    /// Workloads that are here, of those with an entry made for them.
    fn here(&self, is_meant: impl Fn(&ConfigId) -> bool) -> Vec<(Workload, Nanos)> {
        let present = self.registration.0.present.lock();
        let meant = present.iter().filter(|(id, known)| known.workload.registers_itself() && is_meant(id));
        meant.map(|(_, known)| (known.workload.clone(), known.since)).collect()
    }

    async fn enter_again(&self, here: Vec<(Workload, Nanos)>) {
        let register = &self.registration.0;
        for (workload, since) in here {
            // They proved who they are when they came.
            match register.enter(&workload, since, Shown::Unasked).await {
                Ok(since) => register.came(&workload.id, since),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }

    /// Writes what may be written now. What is not written when it is given up is still to be written.
    async fn write(&mut self) {
        let open: Vec<ConfigId> = self.pending.keys().cloned().collect();
        for id in open {
            let Some(pending) = self.pending.get(&id).filter(|_| self.writing.may(&id)) else { continue };
            let written = self.scribe.write(&id, pending).await;
            self.writing.note(&id, &written);
            // Somebody else wrote at the same time, perhaps the same; it is looked at again.
            if written.is_ok() {
                self.pending.remove(&id);
            }
        }
    }

    /// Takes leave of those who were away for too long.
    async fn give_up(&mut self) {
        let now = Instant::now();
        let due = self.away.iter().filter(|(_, away)| away.until <= now);
        let due: Vec<_> = due.map(|(id, away)| (id.clone(), away.mark.clone())).collect();
        for (id, mark) in due {
            if !self.leaving.may(&id) {
                continue;
            }
            let left = self.leave(&id, &mark).await;
            self.leaving.note(&id, &left);
            if is_left(&left) {
                self.registration.0.metrics.registrations().failed.inc();
            } else {
                // If somebody wrote to it in between, a watch tells.
                self.away.remove(&id);
            }
        }
    }

    async fn leave(&self, id: &ConfigId, mark: &Mark) -> Result<(), CallError> {
        // A connection may last for longer than was asked for.
        if self.registration.0.present.lock().contains_key(id) {
            return Ok(());
        }
        let path = self.scribe.path(id)?;
        let Some(entry) = read(&self.scribe.client, &path).await? else { return Ok(()) };
        match entry::farewell(&entry, mark) {
            Farewell::Nothing => Ok(()),
            Farewell::Forget(patch) => {
                self.scribe.call(Call::merge(&format!("{path}/status"), patch.to_string())).await
            }
            Farewell::Delete => {
                let call =
                    Call { method: Method::DELETE, ..Call::post(&path, unchanged(&entry).to_string()) };
                self.scribe.call(call).await?;
                tracing::info!("WorkloadEntry {id} is deleted: its workload did not come back");
                self.registration.0.metrics.registrations().deleted.inc();
                Ok(())
            }
        }
    }
}

/// Options that let an object be deleted only if nobody wrote to it in between.
fn unchanged(entry: &Value) -> Value {
    let version = &entry["metadata"]["resourceVersion"];
    json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": version}})
}

/// Follows the same objects without what they say, wherever they stand.
async fn follow_metadata<L: Look>(
    (client, mut whole, look): (Client, watch::Receiver<Resource>, L),
    to: mpsc::Sender<Message>,
    wrap: impl Fn(Update<L::Value>) -> Message + Send,
) {
    let metadata = |resource: &Resource| Resource { content: Content::Metadata, ..resource.clone() };
    let (moving, place) = watch::channel(metadata(&whole.borrow_and_update()));
    let moves = async {
        while whole.changed().await.is_ok() {
            moving.send_replace(metadata(&whole.borrow_and_update()));
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = Follow::new(client, place, look).believing().run(to, wrap) => {}
        () = moves => {}
    }
}
