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

/// A list that is another whenever something in it changes.
pub(crate) type Issues = watch::Receiver<Arc<Vec<Issue>>>;

/// Everything that is wrong now. Each issue is logged once, when it appears.
pub(crate) struct Ledger {
    by_place: BTreeMap<Place, Vec<Issue>>,
    published: watch::Sender<Arc<Vec<Issue>>>,
    /// Without what proxies refuse: they come and go, and what is wrong with an object stays.
    of_objects: watch::Sender<Arc<Vec<Issue>>>,
    changed: bool,
    objects_changed: bool,
    /// Objects and files of which something is refused.
    rejected: usize,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self {
            by_place: BTreeMap::new(),
            published: watch::Sender::default(),
            of_objects: watch::Sender::default(),
            changed: false,
            objects_changed: false,
            rejected: 0,
        }
    }

    /// All of it, and the same without what proxies refuse.
    pub(crate) fn subscribe(&self) -> (Issues, Issues) {
        (self.published.subscribe(), self.of_objects.subscribe())
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
        let is_new = before != issues.into_iter().collect();
        self.changed |= is_new;
        self.objects_changed |= is_new && !matches!(place, Place::Proxy(_));
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
            self.published.send_replace(listed(self.by_place.values().flatten()));
        }
        if std::mem::take(&mut self.objects_changed) {
            let of_objects = self.by_place.iter().filter(|(place, _)| !matches!(place, Place::Proxy(_)));
            let of_objects = listed(of_objects.flat_map(|(_, issues)| issues));
            let errors = of_objects.iter().filter(|issue| issue.severity == Severity::Error);
            self.rejected = errors.map(|issue| &issue.object).collect::<BTreeSet<_>>().len();
            self.of_objects.send_replace(of_objects);
        }
        is_new
    }
}

/// In order, and each once.
fn listed<'a>(issues: impl Iterator<Item = &'a Issue>) -> Arc<Vec<Issue>> {
    Arc::new(issues.collect::<BTreeSet<_>>().into_iter().cloned().collect())
}

fn said(issues: &BTreeSet<Issue>) -> String {
    let objects: BTreeSet<String> = issues.iter().map(|issue| issue.object.to_string()).collect();
    objects.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use pilot_base::{Issue, Name, ObjectRef};

    use super::{Ledger, Place};

    #[test]
    fn what_proxies_refuse_is_not_about_the_object() {
        let mut ledger = Ledger::new();
        let (all, mut of_objects) = ledger.subscribe();
        let object = ObjectRef::new("VirtualService", Name::new("shop"), Name::new("cart"));
        let issue = |what: &str| Issue::error(object.clone(), "", what);
        ledger.set(&Place::Object(object.clone()), vec![issue("no route")]);
        assert!(ledger.publish() && of_objects.has_changed().unwrap());
        assert_eq!(**of_objects.borrow_and_update(), [issue("no route")]);
        for proxy in 0..3 {
            ledger.set(&Place::Proxy(proxy), vec![issue(&format!("refused by {proxy}"))]);
        }
        assert!(ledger.publish());
        assert_eq!((all.borrow().len(), ledger.count(), ledger.rejected()), (4, 4, 1));
        assert!(!of_objects.has_changed().unwrap(), "nothing else is wrong with the object");
        ledger.set(&Place::Object(object.clone()), Vec::new());
        ledger.publish();
        assert!(of_objects.borrow_and_update().is_empty());
        assert_eq!((all.borrow().len(), ledger.rejected()), (3, 0));
    }
}
