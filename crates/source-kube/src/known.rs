//! What a collection is known to hold, so that a new list is told as the difference.

use std::collections::BTreeMap;

use pilot_base::{Hash64, Issue, Name};
use pilot_config::Tree;
use pilot_model::ConfigId;

/// What somebody makes of an object.
pub enum Verdict<T> {
    Take(T, Vec<Issue>),
    /// It cannot be used; what was known of it stays.
    Broken(Vec<Issue>),
    /// It is none of our business.
    Ignore,
}

/// Looks at objects.
pub trait Look: Send + Sync + 'static {
    type Value: Send;
    fn look(&self, object: Tree<'_>) -> Verdict<Self::Value>;
}

/// One object, and what became of it.
#[derive(Debug)]
pub struct Change<T> {
    pub id: ConfigId,
    pub what: What<T>,
    /// All that is wrong with it now.
    pub issues: Vec<Issue>,
}

#[derive(Debug)]
pub enum What<T> {
    Put(T),
    Gone,
    /// Only what is wrong with it is different.
    Same,
}

/// How much is gone, if it is true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Collapse {
    pub had: usize,
    pub gone: usize,
}

/// The objects that a collection holds.
#[derive(Clone, Default)]
pub(crate) struct Known {
    objects: BTreeMap<ConfigId, Entry>,
    /// How many lists in a row said that most of it is gone.
    doubts: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    /// Nothing if it has none.
    version: Option<Hash64>,
    /// Does who is told know of it?
    told: bool,
    troubled: bool,
}

/// Fewer than this may go at once without anybody wondering.
const FEW: usize = 10;
/// So many lists in a row must agree before most of what there was is taken back.
const CONFIRMATIONS: usize = 3;

impl Known {
    /// What a watch says: an object is there.
    pub(crate) fn put<L: Look>(&mut self, object: Tree<'_>, look: &L) -> Option<Change<L::Value>> {
        let id = id_of(object)?;
        let version = version_of(object);
        let before = self.objects.get(&id).copied();
        // Told again after a cut.
        if before.is_some_and(|entry| version.is_some() && entry.version == version) {
            return None;
        }
        let before_told = before.is_some_and(|entry| entry.told);
        let (what, issues, told) = match look.look(object) {
            Verdict::Take(value, issues) => (What::Put(value), issues, true),
            Verdict::Broken(issues) => (What::Same, issues, before_told),
            Verdict::Ignore if before_told => (What::Gone, Vec::new(), false),
            Verdict::Ignore => (What::Same, Vec::new(), false),
        };
        let troubled = !issues.is_empty();
        self.objects.insert(id.clone(), Entry { version, told, troubled });
        let silent = matches!(what, What::Same) && !troubled && !before.is_some_and(|entry| entry.troubled);
        (!silent).then_some(Change { id, what, issues })
    }

    /// What a watch says: an object is gone.
    pub(crate) fn gone<T>(&mut self, object: Tree<'_>) -> Option<Change<T>> {
        let id = id_of(object)?;
        let entry = self.objects.remove(&id)?;
        farewell(id, entry)
    }

    /// A list begins. Nothing of it counts before its end.
    pub(crate) fn begin<T>(&self) -> Listing<T> {
        Listing { before: self.objects.clone(), after: self.clone(), changes: Vec::new() }
    }
}

fn farewell<T>(id: ConfigId, entry: Entry) -> Option<Change<T>> {
    match (entry.told, entry.troubled) {
        (false, false) => None,
        (told, _) => {
            Some(Change { id, what: if told { What::Gone } else { What::Same }, issues: Vec::new() })
        }
    }
}

/// A list that is being read.
pub(crate) struct Listing<T> {
    /// What has not been seen so far.
    before: BTreeMap<ConfigId, Entry>,
    after: Known,
    changes: Vec<Change<T>>,
}

impl<T: Send> Listing<T> {
    pub(crate) fn see<L: Look<Value = T>>(&mut self, object: Tree<'_>, look: &L) {
        let Some(id) = id_of(object) else { return };
        self.before.remove(&id);
        self.changes.extend(self.after.put(object, look));
    }

    /// What is different. If most of what there was is missing, it is kept until several lists have said so.
    pub(crate) fn end(mut self, known: &mut Known) -> (Vec<Change<T>>, Option<Collapse>) {
        let had = known.objects.values().filter(|entry| entry.told).count();
        let gone = self.before.values().filter(|entry| entry.told).count();
        let implausible = gone >= FEW && gone * 2 > had;
        if implausible && known.doubts + 1 < CONFIRMATIONS {
            self.after.doubts += 1;
            *known = self.after;
            return (self.changes, Some(Collapse { had, gone }));
        }
        self.after.doubts = 0;
        for (id, entry) in self.before {
            self.after.objects.remove(&id);
            self.changes.extend(farewell(id, entry));
        }
        *known = self.after;
        (self.changes, None)
    }
}

/// Which object it is.
pub(crate) fn id_of(object: Tree<'_>) -> Option<ConfigId> {
    let metadata = object.get("metadata")?;
    let name = metadata.text_at(&["name"]);
    (!name.is_empty()).then(|| ConfigId::new(Name::new(metadata.text_at(&["namespace"])), Name::new(name)))
}

/// One that was deleted and made anew is another one.
fn version_of(object: Tree<'_>) -> Option<Hash64> {
    let metadata = |field: &str| object.text_at(&["metadata", field]);
    let version = metadata("resourceVersion");
    (!version.is_empty()).then(|| Hash64::of_named(metadata("uid"), Hash64::of(version.as_bytes())))
}

#[cfg(test)]
mod tests;
