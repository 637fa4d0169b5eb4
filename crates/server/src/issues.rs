use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
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

/// Everything that is wrong now. It is put in order by who wants to read it: thousands of proxies may refuse something at
/// once, and each that does changes the list.
#[derive(Clone, Default)]
pub(crate) struct Issues(Arc<Mutex<BTreeMap<Place, Arc<[Issue]>>>>);

/// Without what proxies refuse: they come and go, and what is wrong with an object stays. The list is another whenever
/// something in it changes.
pub(crate) type IssuesOfObjects = watch::Receiver<Arc<Vec<Issue>>>;

impl Issues {
    /// In order, and each once.
    pub(crate) fn all(&self) -> Vec<Issue> {
        let all: Vec<Arc<[Issue]>> = self.0.lock().values().cloned().collect();
        listed(all.iter().flat_map(|issues| issues.iter()))
    }

    /// Why objects are wrong: for each of them, in order, and each once.
    pub(crate) fn errors_of(&self, objects: &[ObjectRef]) -> Vec<Vec<Issue>> {
        let mut of: BTreeMap<&ObjectRef, BTreeSet<Issue>> =
            objects.iter().map(|object| (object, BTreeSet::new())).collect();
        let all: Vec<Arc<[Issue]>> = self.0.lock().values().cloned().collect();
        let errors = all.iter().flat_map(|issues| issues.iter());
        for issue in errors.filter(|issue| issue.severity == Severity::Error) {
            of.get_mut(&issue.object).into_iter().for_each(|of| _ = of.insert(issue.clone()));
        }
        let found = |object| of.get(object).into_iter().flatten().cloned().collect();
        objects.iter().map(found).collect()
    }
}

/// Each issue is logged once, when it appears.
pub(crate) struct Ledger {
    issues: Issues,
    of_objects: watch::Sender<Arc<Vec<Issue>>>,
    changed: bool,
    objects_changed: bool,
    count: usize,
    /// Objects and files of which something is refused.
    rejected: usize,
    /// How many proxies refuse something that an object leads to.
    refused: BTreeMap<ObjectRef, usize>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self {
            issues: Issues::default(),
            of_objects: watch::Sender::default(),
            changed: false,
            objects_changed: false,
            count: 0,
            rejected: 0,
            refused: BTreeMap::new(),
        }
    }

    /// All of it, and the same without what proxies refuse.
    pub(crate) fn subscribe(&self) -> (Issues, IssuesOfObjects) {
        (self.issues.clone(), self.of_objects.subscribe())
    }

    pub(crate) fn set(&mut self, place: &Place, issues: &[Issue]) {
        let now: BTreeSet<&Issue> = issues.iter().collect();
        let before = {
            let mut all = self.issues.0.lock();
            if issues.is_empty() { all.remove(place) } else { all.insert(place.clone(), issues.into()) }
        };
        let before = before.unwrap_or_default();
        self.count = self.count + issues.len() - before.len();
        let before: BTreeSet<&Issue> = before.iter().collect();
        for issue in now.difference(&before) {
            match issue.severity {
                Severity::Error => tracing::error!(target: "validation", "{issue}"),
                Severity::Warning => tracing::warn!(target: "validation", "{issue}"),
            }
        }
        if !before.is_empty() && now.is_empty() {
            tracing::info!(target: "validation", "{} well again: {}", before.len(), said(&before));
        }
        let is_new = before != now;
        self.changed |= is_new;
        if matches!(place, Place::Proxy(_)) {
            self.count_refused(&before, &now);
        } else {
            self.objects_changed |= is_new;
        }
    }

    fn count_refused(&mut self, before: &BTreeSet<&Issue>, now: &BTreeSet<&Issue>) {
        let objects = |issues: &BTreeSet<&Issue>| -> BTreeSet<ObjectRef> {
            let of_rules = issues.iter().filter(|issue| issue.object.kind != "Proxy");
            of_rules.map(|issue| issue.object.clone()).collect()
        };
        for object in objects(now) {
            *self.refused.entry(object).or_default() += 1;
        }
        for object in objects(before) {
            let Some(count) = self.refused.get_mut(&object) else { continue };
            *count -= 1;
            if *count == 0 {
                self.refused.remove(&object);
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn rejected(&self) -> usize {
        self.rejected
    }

    /// How many proxies refuse something that each object leads to.
    pub(crate) fn refused_objects(&self) -> &BTreeMap<ObjectRef, usize> {
        &self.refused
    }

    /// Tells whether anything is new.
    pub(crate) fn publish(&mut self) -> bool {
        if std::mem::take(&mut self.objects_changed) {
            let all = self.issues.0.lock();
            // Proxies stand behind everything else.
            let of_objects = all.iter().take_while(|(place, _)| !matches!(place, Place::Proxy(_)));
            let of_objects = Arc::new(listed(of_objects.flat_map(|(_, issues)| issues.iter())));
            let errors = of_objects.iter().filter(|issue| issue.severity == Severity::Error);
            self.rejected = errors.map(|issue| &issue.object).collect::<BTreeSet<_>>().len();
            self.of_objects.send_replace(of_objects);
        }
        std::mem::take(&mut self.changed)
    }
}

/// In order, and each once.
fn listed<'a>(issues: impl Iterator<Item = &'a Issue>) -> Vec<Issue> {
    issues.collect::<BTreeSet<_>>().into_iter().cloned().collect()
}

fn said(issues: &BTreeSet<&Issue>) -> String {
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
        ledger.set(&Place::Object(object.clone()), &[issue("no route")]);
        assert!(ledger.publish() && of_objects.has_changed().unwrap());
        assert_eq!(**of_objects.borrow_and_update(), [issue("no route")]);
        for proxy in 0..3 {
            ledger.set(&Place::Proxy(proxy), &[issue(&format!("refused by {proxy}"))]);
        }
        assert!(ledger.publish());
        assert_eq!((all.all().len(), ledger.count(), ledger.rejected()), (4, 4, 1));
        assert_eq!(ledger.refused_objects().get(&object), Some(&3));
        assert_eq!(all.errors_of(std::slice::from_ref(&object))[0].len(), 4);
        assert!(!of_objects.has_changed().unwrap(), "nothing else is wrong with the object");
        ledger.set(&Place::Object(object.clone()), &[]);
        ledger.publish();
        assert!(of_objects.borrow_and_update().is_empty());
        assert_eq!((all.all().len(), ledger.rejected()), (3, 0));
        for proxy in 0..3 {
            ledger.set(&Place::Proxy(proxy), &[]);
        }
        assert!(ledger.publish() && ledger.refused_objects().is_empty() && ledger.count() == 0);
    }
}
