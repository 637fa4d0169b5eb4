//! One other cluster, and what it told.

use std::collections::{BTreeMap, BTreeSet};

use pilot_base::{Issue, Name};
use pilot_model::{Object, ObjectKey};
use pilot_source::Event;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::client::Client;
use crate::objects::weight;

/// A cluster is followed in one way. If a secret says another, that is tried beside it, and takes over once everything is
/// known: a credential that is not good costs nothing.
#[derive(Default)]
pub(super) struct Cluster {
    /// Who says how it is reached.
    pub(super) secret: String,
    /// Has it told everything, be it over an older secret?
    pub(super) is_synced: bool,
    /// When it is not waited for any longer, and whether that is over.
    late_at: Option<Instant>,
    pub(super) is_late: bool,
    believed: Option<Attempt>,
    tried: Option<Attempt>,
    /// What it told, and how much would be lost with it.
    told: BTreeMap<ObjectKey, u32>,
    /// Who is telling everything that there is.
    beginning: Option<BTreeMap<ObjectKey, Object>>,
    leaves_at: Option<Instant>,
    is_over: bool,
}

/// A way to follow a cluster. It ends when it is let go.
pub(super) struct Attempt {
    pub(super) number: u64,
    /// How the cluster is reached.
    pub(super) config: String,
    pub(super) client: Client,
    pub(super) tasks: Vec<AbortHandle>,
    /// What it goes on from.
    pub(super) before: BTreeSet<ObjectKey>,
    /// Where something is wrong with it.
    pub(super) troubled: BTreeSet<Name>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Attempt {
    fn note(&mut self, place: &Name, issues: &[Issue]) {
        if issues.is_empty() {
            self.troubled.remove(place);
        } else {
            self.troubled.insert(place.clone());
        }
    }
}

/// What others have to know.
#[derive(Default)]
pub(super) struct Told {
    pub(super) put: Vec<Object>,
    pub(super) gone: Vec<ObjectKey>,
    /// Another way to reach it is believed from now on.
    pub(super) client: Option<Client>,
    /// Where something was wrong, which does not count any more.
    pub(super) forgiven: BTreeSet<Name>,
}

impl Cluster {
    /// One that is waited for until then.
    pub(super) fn new(late_at: Instant) -> Self {
        Self { late_at: Some(late_at), ..Self::default() }
    }

    /// Is this when its time is over?
    pub(super) fn gets_late(&mut self, now: Instant) -> bool {
        if self.is_synced {
            self.late_at = None;
        }
        let is_over = self.late_at.take_if(|at| *at <= now).is_some();
        self.is_late |= is_over;
        is_over
    }

    /// Is it followed in this way, or about to be? Another that was being tried is given up.
    pub(super) fn is_reached_by(&mut self, config: &str, told: &mut Told) -> bool {
        if self.tried.as_ref().is_some_and(|tried| tried.config == config) {
            return true;
        }
        let is_so = self.believed.as_ref().is_some_and(|believed| believed.config == config);
        if is_so {
            self.let_go(told);
        }
        is_so
    }

    /// What another attempt goes on from; nothing if there is nothing to go on from.
    pub(super) fn before(&self) -> Option<BTreeMap<ObjectKey, u32>> {
        self.is_synced.then(|| self.told.clone())
    }

    pub(super) fn begin(&mut self, secret: &str, attempt: Attempt) -> Told {
        let mut told = Told::default();
        self.stay(secret);
        self.let_go(&mut told);
        if self.is_synced {
            self.tried = Some(attempt);
        } else {
            // Nothing was told that could be lost.
            self.beginning = None;
            told.client = Some(attempt.client.clone());
            told.forgiven
                .extend(self.believed.replace(attempt).into_iter().flat_map(|mut old| old.forgive()));
        }
        told
    }

    fn let_go(&mut self, told: &mut Told) {
        told.forgiven.extend(self.tried.take().into_iter().flat_map(|mut tried| tried.forgive()));
    }

    pub(super) fn stay(&mut self, secret: &str) {
        secret.clone_into(&mut self.secret);
        self.leaves_at = None;
    }

    pub(super) fn leave(&mut self, at: Instant) {
        self.leaves_at.get_or_insert(at);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaves_at.is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether an attempt counts at all, and what it says is wrong.
    pub(super) fn note(&mut self, attempt: u64, issues: &[(Name, Vec<Issue>)]) -> bool {
        let mut both = [&mut self.believed, &mut self.tried].into_iter().flatten();
        let Some(attempt) = both.find(|known| known.number == attempt) else { return false };
        issues.iter().for_each(|(place, issues)| attempt.note(place, issues));
        true
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.leaves_at.into_iter().chain(self.late_at).min()
    }

    pub(super) fn take(&mut self, attempt: u64, events: Vec<Event>) -> Told {
        let mut told = Told::default();
        // Whoever is only tried says nothing before he knows everything.
        if !events.is_empty() && self.tried.as_ref().is_some_and(|tried| tried.number == attempt) {
            self.take_over(&events, &mut told);
        }
        for event in events {
            match event {
                Event::Init => self.beginning = Some(BTreeMap::new()),
                Event::InitApply(object) => {
                    self.beginning.get_or_insert_default().insert(object.key(), object);
                }
                Event::InitDone => self.begun(&mut told),
                Event::Apply(object) => {
                    self.told.insert(object.key(), weight(&object));
                    told.put.push(object);
                }
                Event::Delete(key) => {
                    if self.told.remove(&key).is_some() {
                        told.gone.push(key);
                    }
                }
                // Only the cluster that we belong to says anything about the mesh.
                Event::Mesh(_) | Event::Networks(_) => {}
            }
        }
        told
    }

    /// The new way is believed from now on. What was only told over the old one since the new one began is gone, or is about
    /// to be told again.
    fn take_over(&mut self, events: &[Event], told: &mut Told) {
        let Some(tried) = self.tried.take() else { return };
        let named: BTreeSet<ObjectKey> = events
            .iter()
            .filter_map(|event| if let Event::Apply(object) = event { Some(object.key()) } else { None })
            .collect();
        let is_unknown = |key: &&ObjectKey| !tried.before.contains(*key) && !named.contains(*key);
        let gone: BTreeSet<ObjectKey> = self.told.keys().filter(is_unknown).cloned().collect();
        self.told.retain(|key, _| !gone.contains(key));
        told.gone.extend(gone);
        told.client = Some(tried.client.clone());
        told.forgiven.extend(self.believed.replace(tried).into_iter().flat_map(|mut old| old.forgive()));
    }

    /// Everything there is has been told.
    fn begun(&mut self, told: &mut Told) {
        self.is_synced = true;
        let Some(objects) = self.beginning.take() else { return };
        self.told = objects.iter().map(|(key, object)| (key.clone(), weight(object))).collect();
        told.put.extend(objects.into_values());
    }

    /// What is to be done by now.
    pub(super) fn settle(&mut self, now: Instant) -> Told {
        let mut told = Told::default();
        if self.leaves_at.is_some_and(|at| at <= now) {
            self.let_go(&mut told);
            told.forgiven.extend(self.believed.take().into_iter().flat_map(|mut old| old.forgive()));
            told.gone.extend(std::mem::take(&mut self.told).into_keys());
            self.is_over = true;
        }
        told
    }
}

impl Attempt {
    fn forgive(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.troubled)
    }
}

#[cfg(test)]
mod tests;
