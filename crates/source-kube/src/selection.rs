//! Of which namespaces rules count.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_base::{Labels, Name};
use pilot_model::LabelSelector;
use tokio::sync::watch;

/// Every namespace of Kubernetes has its name as a label.
const NAME: &str = "kubernetes.io/metadata.name";
/// More namespaces than this are listed faster all together.
const FEW: usize = 10;
/// Of so many namespaces it is known when they came to count or ceased to; then everything is looked at again.
const MANY: usize = 10_000;

/// The namespaces that `discoverySelectors` select; all of them if there are none. Copies are one and the same.
///
/// Each time that something counts which did not, or the other way round, an *epoch* begins.
#[derive(Clone)]
pub struct Selection {
    inner: Arc<Mutex<Inner>>,
    epoch: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    selectors: Vec<LabelSelector>,
    namespaces: BTreeMap<Name, Labels>,
    epoch: u64,
    /// When all namespaces were looked at last.
    all_at: u64,
    /// When some were since then.
    each_at: BTreeMap<Name, u64>,
}

/// What has to be listed again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Since {
    Nothing,
    Namespaces(Vec<Name>),
    Everything,
}

impl Default for Selection {
    fn default() -> Self {
        Self { inner: Arc::default(), epoch: watch::Sender::new(0) }
    }
}

impl Selection {
    /// Do objects in a namespace count?
    pub fn includes(&self, namespace: &str) -> bool {
        self.inner.lock().includes(namespace)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.inner.lock().epoch
    }

    /// As of when it was decided whether a namespace counts.
    pub(crate) fn epoch_of(&self, namespace: &str) -> u64 {
        let inner = self.inner.lock();
        inner.each_at.get(namespace).copied().unwrap_or(inner.all_at)
    }

    /// Tells of each epoch.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    /// What is different since an epoch.
    pub(crate) fn since(&self, epoch: u64) -> Since {
        let inner = self.inner.lock();
        if inner.epoch <= epoch {
            return Since::Nothing;
        }
        let changed = || inner.each_at.iter().filter(|(_, at)| **at > epoch).map(|(name, _)| name.clone());
        if inner.all_at > epoch || changed().count() > FEW {
            return Since::Everything;
        }
        Since::Namespaces(changed().collect())
    }

    /// Says which namespaces are selected.
    pub(crate) fn select(&self, selectors: &[LabelSelector]) {
        let mut inner = self.inner.lock();
        if inner.selectors != selectors {
            inner.selectors = selectors.to_vec();
            drop(inner);
            self.look_again();
        }
    }

    /// Everything is looked at again, whatever is selected.
    pub(crate) fn look_again(&self) {
        let mut inner = self.inner.lock();
        inner.look_at_all();
        self.epoch.send_replace(inner.epoch);
    }

    /// Notes the labels of a namespace; nothing if it is gone.
    pub(crate) fn label(&self, namespace: &Name, labels: Option<Labels>) {
        let mut inner = self.inner.lock();
        let before = inner.includes(namespace);
        match labels {
            Some(labels) => inner.namespaces.insert(namespace.clone(), labels),
            None => inner.namespaces.remove(namespace),
        };
        if before == inner.includes(namespace) {
            return;
        }
        if inner.each_at.len() >= MANY {
            inner.look_at_all();
        } else {
            inner.epoch += 1;
            let epoch = inner.epoch;
            inner.each_at.insert(namespace.clone(), epoch);
        }
        self.epoch.send_replace(inner.epoch);
    }
}

impl Inner {
    fn look_at_all(&mut self) {
        self.epoch += 1;
        self.all_at = self.epoch;
        self.each_at.clear();
    }

    fn includes(&self, namespace: &str) -> bool {
        if self.selectors.is_empty() {
            return true;
        }
        let name = (Name::new(NAME), Name::new(namespace));
        let declared = self.namespaces.get(namespace).into_iter().flat_map(Labels::iter);
        let declared = declared.map(|(key, value)| (key.clone(), value.clone()));
        let labels: Labels = std::iter::once(name).chain(declared).collect();
        self.selectors.iter().any(|selector| selector.selects(&labels))
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::{Labels, Name};
    use pilot_model::LabelSelector;

    use super::{Selection, Since};

    fn labels(value: &str) -> Labels {
        Labels::new([(Name::new("mesh"), Name::new(value))])
    }

    #[test]
    fn namespaces_are_selected_by_their_labels_and_only_what_differs_is_looked_at() {
        let selection = Selection::default();
        let (shop, other) = (Name::new("shop"), Name::new("other"));
        selection.label(&shop, Some(labels("off")));
        assert!(selection.includes("shop") && selection.since(0) == Since::Nothing);
        let on = LabelSelector { labels: labels("on"), expressions: Vec::new() };
        selection.select(std::slice::from_ref(&on));
        let selected = selection.epoch();
        assert_eq!((selected, selection.since(0)), (1, Since::Everything));
        selection.select(&[on]);
        assert_eq!(selection.epoch(), selected, "they are the same");
        assert!(!selection.includes("shop") && !selection.includes("other"));

        selection.label(&shop, Some(labels("on")));
        assert!(selection.includes("shop"));
        assert_eq!(selection.since(selected), Since::Namespaces(vec![shop.clone()]));
        assert_eq!((selection.epoch_of("shop"), selection.epoch_of("other")), (2, 1));
        selection.label(&other, Some(labels("off")));
        assert_eq!(selection.since(2), Since::Nothing, "nothing of it counted before");
        for i in 0..20 {
            selection.label(&Name::from(format!("n{i}")), Some(labels("on")));
        }
        assert_eq!(selection.since(2), Since::Everything, "so many are listed together");
        selection.label(&shop, None);
        selection.select(&[]);
        assert!(selection.includes("shop"));
    }
}
