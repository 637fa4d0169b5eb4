use std::fmt;
use std::sync::Arc;

use crate::Name;

/// A set of labels: one shared slice, sorted by key, each key once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Labels(Option<Arc<[(Name, Name)]>>);

impl Labels {
    pub fn new<K: Into<Name>, V: Into<Name>>(pairs: impl IntoIterator<Item = (K, V)>) -> Self {
        pairs.into_iter().map(|(k, v)| (k.into(), v.into())).collect()
    }

    pub fn get(&self, key: &str) -> Option<&Name> {
        let pairs = self.0.as_deref()?;
        let at = pairs.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        Some(&pairs[at].1)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Name, &Name)> {
        self.0.as_deref().unwrap_or_default().iter().map(|(k, v)| (k, v))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Does anybody else hold this very copy?
    pub(crate) fn is_shared(&self) -> bool {
        self.0.as_ref().is_none_or(|pairs| Arc::strong_count(pairs) > 1)
    }

    /// Read as a selector: does every label here stand in `other` too? The empty selector selects everything.
    pub fn subset_of(&self, other: &Self) -> bool {
        self.iter().all(|(k, v)| other.get(k) == Some(v))
    }
}

impl FromIterator<(Name, Name)> for Labels {
    /// Of several values for one key the last counts, as in a map that is written in order.
    fn from_iter<I: IntoIterator<Item = (Name, Name)>>(pairs: I) -> Self {
        let map: std::collections::BTreeMap<Name, Name> = pairs.into_iter().collect();
        if map.is_empty() { Self(None) } else { Self(Some(map.into_iter().collect())) }
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Labels;

    #[test]
    fn a_selector_selects_supersets() {
        let pod = Labels::new([("app", "reviews"), ("version", "v1")]);
        assert!(Labels::new([("app", "reviews")]).subset_of(&pod));
        assert!(Labels::default().subset_of(&pod));
        assert!(!Labels::new([("app", "ratings")]).subset_of(&pod));
        assert!(!pod.subset_of(&Labels::new([("app", "reviews")])));
    }

    #[test]
    fn order_and_repetition_do_not_matter() {
        let a = Labels::new([("b", "2"), ("a", "0"), ("a", "1")]);
        assert_eq!(a, Labels::new([("a", "1"), ("b", "2")]));
        assert_eq!(a.get("a").map(|v| v.as_str()), Some("1"));
    }
}
