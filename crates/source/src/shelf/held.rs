//! What a whole answer no longer has, though that is hardly true: a server that has just begun anew, a peer that knows
//! nothing yet, a token that may see less.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{Shelf, Suspicion};
use crate::registration::{Instance, Packed, Registration, hash_of};
use crate::{Batch, Patience};

/// Instances that are kept though the registry does not have them, by service.
#[derive(Default)]
pub(super) struct Held {
    ids: BTreeMap<String, BTreeSet<String>>,
    /// When they are given up; nothing while the registry cannot be asked.
    until: Option<Instant>,
    patience: Patience,
    why: String,
}

/// Fewer than this may go at once without anybody wondering.
const MANY: usize = 10;

impl Held {
    pub(super) fn has(&self, service: &str) -> bool {
        self.ids.contains_key(service)
    }

    pub(super) fn why(&self) -> Option<&str> {
        (!self.ids.is_empty()).then_some(self.why.as_str())
    }

    /// Nobody knows how long it takes until the registry can be asked.
    pub(super) fn wait(&mut self) {
        self.until = None;
        self.patience.rest();
    }

    fn count(&self, service: &str) -> usize {
        self.ids.get(service).map_or(0, BTreeSet::len)
    }

    fn is_held(&self, service: &str, id: &str) -> bool {
        self.ids.get(service).is_some_and(|ids| ids.contains(id))
    }

    /// A service has come back with some of its instances: the others are added. Those that are there are held no more.
    pub(super) fn add_to(&mut self, registration: &mut Registration, before: &Packed) {
        let Some(ids) = self.ids.get_mut(&registration.name) else { return };
        let old: Vec<Instance> = before.open().instances;
        let old: Vec<Instance> = {
            let present = Present::of(registration);
            old.into_iter().filter(|one| ids.contains(&one.id) && !present.has(one)).collect()
        };
        *ids = old.iter().map(|instance| instance.id.clone()).collect();
        if ids.is_empty() {
            self.ids.remove(&registration.name);
        }
        registration.instances.extend(old);
    }
}

/// Who is there: also those that cannot be read, and those that have come back to their place under another id.
#[derive(Default)]
struct Present<'a> {
    ids: BTreeSet<&'a str>,
    places: BTreeSet<(&'a str, Vec<u32>)>,
}

impl<'a> Present<'a> {
    fn of(registration: &'a Registration) -> Self {
        let unreadable = registration.unreadable.iter().map(|(id, _)| id.as_str());
        let ids = registration.instances.iter().map(|instance| instance.id.as_str());
        Self {
            ids: ids.chain(unreadable).collect(),
            places: registration.instances.iter().map(place).collect(),
        }
    }

    fn has(&self, instance: &Instance) -> bool {
        self.ids.contains(instance.id.as_str()) || self.places.contains(&place(instance))
    }
}

fn place(instance: &Instance) -> (&str, Vec<u32>) {
    (&instance.address, instance.ports.iter().map(|port| port.number).collect())
}

/// What an answer lacks, and how much there was before.
#[derive(Default)]
struct Missing {
    had: usize,
    gone: usize,
    ids: BTreeMap<String, BTreeSet<String>>,
}

impl Missing {
    fn is_collapse(&self, doubt: Suspicion) -> bool {
        let Self { had, gone, .. } = *self;
        let services = match doubt {
            Suspicion::KnowsLess => return gone > 0,
            Suspicion::Lost => 1,
            Suspicion::None => 2,
        };
        self.ids.len() >= services && (gone == had || (had >= MANY && gone * 2 > had))
    }
}

impl Shelf {
    /// Looks for what a whole answer lacks, and holds it if that is everything, or most of much.
    pub(super) fn hold_what_is_missing(&mut self, all: &BTreeMap<String, Registration>) {
        let (doubt, grace) = (std::mem::take(&mut self.doubt), self.options.grace);
        if grace.is_zero() {
            return;
        }
        let missing = self.missing(all);
        let is_collapse = missing.is_collapse(doubt);
        if is_collapse {
            let Missing { had, gone, ids } = missing;
            self.held.why = format!(
                "{gone} of {had} instances are missing from its answer; they are kept until they come back, for {grace:?} at most"
            );
            for (service, ids) in ids {
                self.held.ids.entry(service).or_default().extend(ids);
            }
        }
        if self.held.ids.is_empty() {
            self.held.patience = Patience::default();
        }
        if is_collapse || self.held.until.is_none() {
            self.held.until = Some(self.held.patience.until(grace));
        }
    }

    fn missing(&self, all: &BTreeMap<String, Registration>) -> Missing {
        let mut missing = Missing::default();
        for (service, kept) in &self.services {
            missing.had += kept.instances.saturating_sub(self.held.count(service));
            let now = all.get(service);
            if now.is_some_and(|now| now.is_unknown() || hash_of(now) == kept.content) {
                continue;
            }
            let now = now.map(Present::of).unwrap_or_default();
            let before = kept.packed.open().instances.into_iter();
            let before = before.filter(|one| !now.has(one) && !self.held.is_held(service, &one.id));
            let lacks: BTreeSet<String> = before.map(|instance| instance.id).collect();
            missing.gone += lacks.len();
            if !lacks.is_empty() {
                missing.ids.insert(service.clone(), lacks);
            }
        }
        missing
    }

    /// When something is to be told though nothing new is known.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.held.until.filter(|_| !self.held.ids.is_empty())
    }

    /// What has been held for long enough is gone.
    pub(crate) fn give_up(&mut self) -> Batch {
        let mut batch = Batch::default();
        let held = std::mem::take(&mut self.held);
        for (service, ids) in held.ids {
            let Some(kept) = self.services.get(&service) else { continue };
            let mut registration = kept.packed.open();
            registration.instances.retain(|instance| !ids.contains(&instance.id));
            if registration.instances.is_empty() && registration.unreadable.is_empty() {
                self.remove_into(&service, &mut batch);
            } else {
                self.put_into(registration, &mut batch);
            }
        }
        self.tell_own(&mut batch);
        batch
    }
}
