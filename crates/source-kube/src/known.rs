//! What a collection is known to hold, so that a new list is told as the difference.

mod listing;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::{BTreeMap, BTreeSet};

use pilot_base::{Hash64, Issue, Name};
use pilot_config::Tree;
use pilot_model::ConfigId;

pub(crate) use listing::{Belief, Listing};

use crate::selection::Selection;

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

    /// Whose objects count, if not everybody's do. When a namespace comes to count or ceases to, its objects are looked at
    /// again, though they have not changed.
    fn selection(&self) -> Option<&Selection> {
        None
    }

    /// How much would be lost with it, beside itself: the endpoints in a slice.
    fn weight(&self, _: &Self::Value) -> u32 {
        0
    }

    /// What is told of an object of which nothing but its name can be read.
    fn unreadable(&self, _: &ConfigId, _why: &str) -> Vec<Issue> {
        Vec::new()
    }
}

/// One object, and what became of it.
#[derive(Debug)]
pub struct Change<T> {
    pub id: ConfigId,
    pub what: What<T>,
    /// Was nothing told of it before?
    pub is_new: bool,
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
    pub of: Lost,
    pub had: usize,
    pub gone: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    Objects,
    /// What stands in objects that are still there.
    Endpoints,
}

impl std::fmt::Display for Collapse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { of, had, gone } = self;
        match of {
            Lost::Objects => write!(f, "{gone} of {had} are gone all at once"),
            Lost::Endpoints => write!(f, "{gone} of {had} endpoints in them are gone all at once"),
        }
    }
}

/// The objects that a collection holds.
#[derive(Clone, Default)]
pub(crate) struct Known {
    objects: BTreeMap<ConfigId, Entry>,
    /// What a list lacks, or shows with far less in it, and is kept as it was all the same.
    held: BTreeSet<ConfigId>,
    /// Up to which version a namespace is known already, though the watch is not there yet.
    floors: BTreeMap<Name, u64>,
}

#[derive(Clone, Copy)]
struct Entry {
    /// Nothing if it has none.
    version: Option<Hash64>,
    /// Does who is told know of it?
    told: bool,
    troubled: bool,
    weight: u32,
}

impl Known {
    /// What somebody else told, and how much would be lost with each. In which version is not known.
    pub(crate) fn told_before(objects: impl IntoIterator<Item = (ConfigId, u32)>) -> Self {
        let entry = |weight| Entry { version: None, told: true, troubled: false, weight };
        let objects = objects.into_iter().map(|(id, weight)| (id, entry(weight))).collect();
        Self { objects, ..Self::default() }
    }

    /// What a watch says: an object is there.
    pub(crate) fn put<L: Look>(&mut self, object: Tree<'_>, look: &L) -> Option<Change<L::Value>> {
        let (id, version) = self.news(object, look)?;
        self.judge(id, version, (look.look(object), look))
    }

    /// The same for one of which only the metadata can be read.
    pub(crate) fn put_unreadable<L: Look>(
        &mut self,
        head: Tree<'_>,
        look: &L,
        why: &str,
    ) -> Option<Change<L::Value>> {
        let (id, version) = self.news(head, look)?;
        let issues = look.unreadable(&id, why);
        self.judge(id, version, (Verdict::Broken(issues), look))
    }

    /// What a watch says: an object is gone.
    pub(crate) fn gone<T>(&mut self, object: Tree<'_>) -> Option<Change<T>> {
        let id = id_of(object).filter(|id| !self.is_old(id, object))?;
        self.held.remove(&id);
        let entry = self.objects.remove(&id)?;
        farewell(id, entry)
    }

    /// Is nothing held back any more, be it because it is there again or because it was said to be gone?
    pub(crate) fn is_settled(&self) -> bool {
        self.held.is_empty()
    }

    /// Everything of a namespace is known as of a version which the watch has not reached yet.
    pub(crate) fn is_ahead(&mut self, namespace: &Name, version: &str) {
        // Versions that are no numbers cannot be compared; then what was listed is told again on the way.
        if let Ok(version) = version.parse() {
            self.floors.insert(namespace.clone(), version);
        }
    }

    /// The watch has come so far.
    pub(crate) fn reached(&mut self, version: &str) {
        if let Ok(version) = version.parse::<u64>() {
            self.floors.retain(|_, floor| *floor > version);
        }
    }

    fn is_old(&self, id: &ConfigId, object: Tree<'_>) -> bool {
        let Some(floor) = self.floors.get(&id.namespace) else { return false };
        let version = object.text_at(&["metadata", "resourceVersion"]).parse::<u64>();
        version.is_ok_and(|version| version <= *floor)
    }

    /// Which object it is, and its version. Nothing if that was told before.
    fn news<L: Look>(&self, object: Tree<'_>, look: &L) -> Option<(ConfigId, Option<Hash64>)> {
        let id = id_of(object).filter(|id| !self.is_old(id, object))?;
        let epoch = look.selection().map_or(0, |selection| selection.epoch_of(&id.namespace));
        let version = version_of(object).map(|version| match epoch {
            0 => version,
            epoch => Hash64::of_named(&epoch.to_string(), version),
        });
        let before = self.objects.get(&id);
        let is_known = before.is_some_and(|entry| version.is_some() && entry.version == version);
        (!is_known).then_some((id, version))
    }

    fn judge<L: Look>(
        &mut self,
        id: ConfigId,
        version: Option<Hash64>,
        (verdict, look): (Verdict<L::Value>, &L),
    ) -> Option<Change<L::Value>> {
        let before = self.objects.get(&id).copied();
        let before_told = before.is_some_and(|entry| entry.told);
        let weight = match &verdict {
            Verdict::Take(value, _) => look.weight(value),
            Verdict::Broken(_) => before.map_or(0, |entry| entry.weight),
            Verdict::Ignore => 0,
        };
        let (what, issues, told) = match verdict {
            Verdict::Take(value, issues) => (What::Put(value), issues, true),
            Verdict::Broken(issues) => (What::Same, issues, before_told),
            Verdict::Ignore if before_told => (What::Gone, Vec::new(), false),
            Verdict::Ignore => (What::Same, Vec::new(), false),
        };
        let troubled = !issues.is_empty();
        self.held.remove(&id);
        self.objects.insert(id.clone(), Entry { version, told, troubled, weight });
        let silent = matches!(what, What::Same) && !troubled && !before.is_some_and(|entry| entry.troubled);
        (!silent).then_some(Change { id, what, is_new: !before_told, issues })
    }
}

fn farewell<T>(id: ConfigId, entry: Entry) -> Option<Change<T>> {
    match (entry.told, entry.troubled) {
        (false, false) => None,
        (told, _) => {
            let what = if told { What::Gone } else { What::Same };
            Some(Change { id, what, is_new: false, issues: Vec::new() })
        }
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
