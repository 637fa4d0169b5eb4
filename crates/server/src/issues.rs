use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Issue, Name, ObjectRef, Severity};
use tokio::sync::watch;

/// Where an issue was found; what is found there next replaces it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Place {
    /// Something that a source reads, such as a file.
    Source(Name, Name),
    /// An object that several sources have.
    Overlap(Name),
    /// An object, looked at together with others.
    Object(ObjectRef),
    /// A proxy that refuses something.
    Proxy(u64),
}

/// Everything that is wrong now. Each issue is logged once, when it appears.
pub(crate) struct Ledger {
    by_place: BTreeMap<Place, Vec<Issue>>,
    published: watch::Sender<Arc<Vec<Issue>>>,
    changed: bool,
    /// Objects and files of which something is refused.
    rejected: usize,
}

impl Ledger {
    pub(crate) fn new() -> (Self, watch::Receiver<Arc<Vec<Issue>>>) {
        let (published, receiver) = watch::channel(Arc::default());
        (Self { by_place: BTreeMap::new(), published, changed: false, rejected: 0 }, receiver)
    }

    pub(crate) fn set(&mut self, place: &Place, issues: Vec<Issue>) {
        let before = if issues.is_empty() {
            self.by_place.remove(place)
        } else {
            self.by_place.insert(place.clone(), issues.clone())
        };
        let before: BTreeSet<Issue> = before.unwrap_or_default().into_iter().collect();
        for issue in issues.iter().filter(|issue| !before.contains(issue)) {
            match issue.severity {
                Severity::Error => tracing::error!(target: "validation", "{issue}"),
                Severity::Warning => tracing::warn!(target: "validation", "{issue}"),
            }
        }
        if !before.is_empty() && issues.is_empty() {
            tracing::info!(target: "validation", "{} well again: {}", before.len(), said(&before));
        }
        self.changed |= before != issues.into_iter().collect();
    }

    pub(crate) fn count(&self) -> usize {
        self.published.borrow().len()
    }

    pub(crate) fn rejected(&self) -> usize {
        self.rejected
    }

    /// How many proxies refuse something that each object leads to.
    pub(crate) fn refused_objects(&self) -> BTreeMap<&ObjectRef, usize> {
        let mut counts = BTreeMap::new();
        for (_, issues) in self.by_place.iter().filter(|(place, _)| matches!(place, Place::Proxy(_))) {
            let objects: BTreeSet<&ObjectRef> = issues.iter().map(|issue| &issue.object).collect();
            objects.into_iter().for_each(|object| *counts.entry(object).or_default() += 1);
        }
        counts
    }

    /// Tells whether anything is new.
    pub(crate) fn publish(&mut self) -> bool {
        let is_new = std::mem::take(&mut self.changed);
        if is_new {
            let all: BTreeSet<&Issue> = self.by_place.values().flatten().collect();
            self.published.send_replace(Arc::new(all.into_iter().cloned().collect()));
            let by_us = self.by_place.iter().filter(|(place, _)| !matches!(place, Place::Proxy(_)));
            let errors = by_us.flat_map(|(_, issues)| issues).filter(|i| i.severity == Severity::Error);
            self.rejected = errors.map(|issue| &issue.object).collect::<BTreeSet<_>>().len();
        }
        is_new
    }
}

fn said(issues: &BTreeSet<Issue>) -> String {
    let objects: BTreeSet<String> = issues.iter().map(|issue| issue.object.to_string()).collect();
    objects.into_iter().collect::<Vec<_>>().join(", ")
}
