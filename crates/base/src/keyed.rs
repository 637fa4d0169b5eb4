use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher as _, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use rustc_hash::FxBuildHasher;

/// A shared value that much is looked up by: its hash is worked out once, and copies are told to be equal at a glance.
pub struct Keyed<T>(Arc<Inner<T>>);

struct Inner<T> {
    hash: u64,
    value: T,
}

impl<T: Hash> Keyed<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(Inner { hash: FxBuildHasher.hash_one(&value), value }))
    }
}

impl<T> Clone for Keyed<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Keyed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Hash for Keyed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

impl<T: PartialEq> PartialEq for Keyed<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.hash == other.0.hash && self.0.value == other.0.value
    }
}

impl<T: Eq> Eq for Keyed<T> {}

impl<T: Ord> PartialOrd for Keyed<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> Ord for Keyed<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.value.cmp(&other.0.value) }
    }
}

impl<T: fmt::Debug> fmt::Debug for Keyed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    use rustc_hash::FxBuildHasher;

    use super::Keyed;

    #[test]
    fn equal_values_are_equal_keys() {
        let [one, same, other] = ["one", "one", "other"].map(Keyed::new);
        assert_eq!(one, same);
        assert_eq!(FxBuildHasher.hash_one(&one), FxBuildHasher.hash_one(&same));
        assert_ne!(one, other);
        assert!(one < other && one.clone() == one);
    }
}
