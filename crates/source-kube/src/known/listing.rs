//! A list that is being read, and whether it can be believed.

use std::collections::BTreeMap;

use pilot_base::Name;
use pilot_config::Tree;
use pilot_model::ConfigId;

use super::{Change, Collapse, Entry, Known, Look, Lost, farewell, id_of};

/// Less than this may go at once without anybody wondering.
const FEW: usize = 10;

/// What is made of a list that lacks most of what there was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Belief {
    /// That cannot be; what there was is kept.
    Doubts,
    /// It was seen for long enough, or somebody said that it is so.
    Believes,
}

/// Nothing of it counts before its end.
pub(crate) struct Listing<T> {
    /// Nothing if all namespaces are listed.
    within: Option<Name>,
    /// What has not been seen so far.
    before: BTreeMap<ConfigId, Entry>,
    after: Known,
    changes: Vec<Change<T>>,
    /// Objects with less in them than they had: which change that is, and what they were.
    shrunk: Vec<(usize, Entry)>,
}

impl Known {
    /// A list begins.
    pub(crate) fn begin<T>(&self) -> Listing<T> {
        self.listing(None, self.objects.clone())
    }

    /// A list of one namespace begins.
    pub(crate) fn begin_within<T>(&self, namespace: &Name) -> Listing<T> {
        let of_it = self.objects.iter().filter(|(id, _)| id.namespace == *namespace);
        self.listing(Some(namespace.clone()), of_it.map(|(id, entry)| (id.clone(), *entry)).collect())
    }

    fn listing<T>(&self, within: Option<Name>, before: BTreeMap<ConfigId, Entry>) -> Listing<T> {
        // Nothing that is listed is old.
        let after = Self { floors: BTreeMap::new(), ..self.clone() };
        Listing { within, before, after, changes: Vec::new(), shrunk: Vec::new() }
    }
}

/// Is it too much that is gone all at once, of objects and of what stands in them?
fn implausible(gone: (usize, usize), had: (usize, usize)) -> Option<Collapse> {
    let is_most = |gone: usize, had: usize| gone >= FEW && gone * 2 > had;
    let lost = |of, had, gone| is_most(gone, had).then_some(Collapse { of, had, gone });
    lost(Lost::Objects, had.0, gone.0).or_else(|| lost(Lost::Endpoints, had.1, gone.1))
}

impl<T: Send> Listing<T> {
    pub(crate) fn see<L: Look<Value = T>>(&mut self, object: Tree<'_>, look: &L) {
        let change = self.after.put(object, look);
        self.note(object, change);
    }

    /// One of which only the metadata can be read.
    pub(crate) fn see_unreadable<L: Look<Value = T>>(&mut self, head: Tree<'_>, look: &L, why: &str) {
        let change = self.after.put_unreadable(head, look, why);
        self.note(head, change);
    }

    fn note(&mut self, object: Tree<'_>, change: Option<Change<T>>) {
        let Some(id) = id_of(object) else { return };
        let before = self.before.remove(&id);
        let Some(change) = change else {
            self.after.held.remove(&id);
            return;
        };
        let now = self.after.objects.get(&id).map_or(0, |entry| entry.weight);
        if let Some(before) = before.filter(|before| before.weight > now) {
            self.shrunk.push((self.changes.len(), before));
        }
        self.changes.push(change);
    }

    /// What is different. What cannot be true is held back, unless it is believed.
    pub(crate) fn end(mut self, known: &mut Known, belief: Belief) -> (Vec<Change<T>>, Option<Collapse>) {
        let collapse = self.collapse(known).filter(|_| belief == Belief::Doubts);
        if collapse.is_some() {
            self.hold_back();
        } else {
            for (id, entry) in std::mem::take(&mut self.before) {
                self.after.objects.remove(&id);
                self.after.held.remove(&id);
                self.changes.extend(farewell(id, entry));
            }
        }
        if self.within.is_some() {
            self.after.floors = std::mem::take(&mut known.floors);
        }
        *known = self.after;
        (self.changes, collapse)
    }

    /// Is most of what there was gone?
    fn collapse(&self, known: &Known) -> Option<Collapse> {
        let is_within = |id: &ConfigId| self.within.as_ref().is_none_or(|within| id.namespace == *within);
        let told = |all: &Known| {
            let told = all.objects.iter().filter(|(id, entry)| entry.told && is_within(id));
            told.fold((0, 0), |(count, weight), (_, entry)| (count + 1, weight + entry.weight as usize))
        };
        let (had, had_weight) = told(known);
        let missing = self.before.values().filter(|entry| entry.told);
        let (gone, missing_weight) =
            missing.fold((0, 0), |(count, weight), entry| (count + 1, weight + entry.weight as usize));
        // What is missing still stands in what comes after.
        let (_, weight) = told(&self.after);
        let gone_weight = had_weight.saturating_sub(weight.saturating_sub(missing_weight));
        implausible((gone, gone_weight), (had, had_weight))
    }

    /// What is missing stays, and what shrank stays as it was.
    fn hold_back(&mut self) {
        let missing = self.before.iter().filter(|(_, entry)| entry.told).map(|(id, _)| id.clone());
        self.after.held.extend(missing);
        let mut shrunk: BTreeMap<usize, Entry> = std::mem::take(&mut self.shrunk).into_iter().collect();
        let changes = std::mem::take(&mut self.changes).into_iter().enumerate();
        for (at, change) in changes {
            match shrunk.remove(&at) {
                Some(entry) => {
                    self.after.objects.insert(change.id.clone(), entry);
                    self.after.held.insert(change.id);
                }
                None => self.changes.push(change),
            }
        }
    }
}
