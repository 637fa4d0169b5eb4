use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

/// Up to this many entries are kept in one sorted slice. Most groups have one or two members, and a tree node would cost
/// them half a kilobyte each.
const SMALL: usize = 8;

/// An ordered map whose copies share what they have in common.
///
/// A copy costs one increment, a change O(log n), and the difference of two maps is found in time proportional to what
/// differs, because shared parts are recognised by address.
pub struct SharedMap<K, V>(Repr<K, V>);

enum Repr<K, V> {
    /// As long as it needs to be, and nothing if there is nothing: there are hundreds of thousands of these.
    Small(Option<Arc<[(K, V)]>>),
    Large(OrdMap<K, V>),
}

/// How one entry differs between two maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapChange<'a, K, V> {
    Added(&'a K, &'a V),
    Removed(&'a K, &'a V),
    Changed(&'a K, &'a V, &'a V),
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    pub const fn new() -> Self {
        Self(Repr::Small(None))
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Small(entries) => slice(entries).len(),
            Repr::Large(map) => map.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        match &self.0 {
            Repr::Small(entries) => {
                let entries = slice(entries);
                entries.binary_search_by(|(k, _)| k.borrow().cmp(key)).ok().map(|at| &entries[at].1)
            }
            Repr::Large(map) => map.get(key),
        }
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match &mut self.0 {
            Repr::Small(shared) => {
                let entries = slice(shared);
                match entries.binary_search_by(|(k, _)| k.cmp(&key)) {
                    Ok(at) => {
                        let entries = shared.as_mut().map(Arc::make_mut).unwrap_or_default();
                        return entries.get_mut(at).map(|entry| std::mem::replace(&mut entry.1, value));
                    }
                    Err(_) if entries.len() == SMALL => {
                        let mut map: OrdMap<K, V> = entries.iter().cloned().collect();
                        map.insert(key, value);
                        self.0 = Repr::Large(map);
                    }
                    Err(at) => {
                        let (before, behind) = entries.split_at(at);
                        let all = before.iter().cloned().chain([(key, value)]).chain(behind.iter().cloned());
                        *shared = Some(all.collect());
                    }
                }
                None
            }
            Repr::Large(map) => map.insert(key, value),
        }
    }

    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match &mut self.0 {
            Repr::Small(shared) => {
                let entries = slice(shared);
                let at = entries.binary_search_by(|(k, _)| k.borrow().cmp(key)).ok()?;
                let old = entries[at].1.clone();
                let rest = entries[..at].iter().chain(&entries[at + 1..]).cloned();
                *shared = (entries.len() > 1).then(|| rest.collect());
                Some(old)
            }
            Repr::Large(map) => {
                let old = map.remove(key);
                // Half the limit, so that a map at the limit does not change its form with every change.
                if map.len() <= SMALL / 2 {
                    self.0 = Repr::Small(Some(map.iter().map(|(k, v)| (k.clone(), v.clone())).collect()));
                }
                old
            }
        }
    }

    pub fn iter(&self) -> Iter<'_, K, V> {
        match &self.0 {
            Repr::Small(entries) => Iter::Small(slice(entries).iter()),
            Repr::Large(map) => Iter::Large(map.iter()),
        }
    }

    pub fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// Are both the very same map, without a look at any entry?
    pub fn ptr_eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Repr::Small(Some(a)), Repr::Small(Some(b))) => Arc::ptr_eq(a, b),
            (Repr::Small(None), Repr::Small(None)) => true,
            (Repr::Large(a), Repr::Large(b)) => a.ptr_eq(b),
            _ => false,
        }
    }

    /// Calls `each`, in order of keys, for every entry that differs between `self` and `newer`.
    pub fn diff<'a>(&'a self, newer: &'a Self, mut each: impl FnMut(MapChange<'a, K, V>))
    where
        V: PartialEq,
    {
        if self.ptr_eq(newer) {
            return;
        }
        if let (Repr::Large(old), Repr::Large(new)) = (&self.0, &newer.0) {
            for item in old.diff(new) {
                match item {
                    DiffItem::Add(k, v) => each(MapChange::Added(k, v)),
                    DiffItem::Remove(k, v) => each(MapChange::Removed(k, v)),
                    DiffItem::Update { old: (k, old), new: (_, new) } => {
                        each(MapChange::Changed(k, old, new));
                    }
                }
            }
            return;
        }
        diff_by_walking(self.iter(), newer.iter(), each);
    }
}

fn slice<K, V>(entries: &Option<Arc<[(K, V)]>>) -> &[(K, V)] {
    entries.as_deref().unwrap_or_default()
}

fn diff_by_walking<'a, K: Ord, V: PartialEq>(
    old: Iter<'a, K, V>,
    new: Iter<'a, K, V>,
    mut each: impl FnMut(MapChange<'a, K, V>),
) {
    let (mut old, mut new) = (old.peekable(), new.peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        match order {
            Ordering::Less => old.next().map(|(k, v)| each(MapChange::Removed(k, v))),
            Ordering::Greater => new.next().map(|(k, v)| each(MapChange::Added(k, v))),
            Ordering::Equal => old.next().zip(new.next()).map(|((k, a), (_, b))| {
                if a != b {
                    each(MapChange::Changed(k, a, b));
                }
            }),
        };
    }
}

/// Entries in order of keys.
pub enum Iter<'a, K, V> {
    Small(std::slice::Iter<'a, (K, V)>),
    Large(imbl::ordmap::Iter<'a, K, V, imbl::shared_ptr::DefaultSharedPtr>),
}

impl<'a, K: Ord, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Small(entries) => entries.next().map(|(k, v)| (k, v)),
            Self::Large(map) => map.next(),
        }
    }
}

impl<K, V> Clone for SharedMap<K, V> {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Repr::Small(entries) => Repr::Small(entries.clone()),
            Repr::Large(map) => Repr::Large(map.clone()),
        })
    }
}

impl<K: Ord + Clone, V: Clone> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> PartialEq for SharedMap<K, V> {
    /// As cheap as the difference: what both share is not looked at.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            _ if self.len() != other.len() => false,
            (Repr::Large(a), Repr::Large(b)) => a.diff(b).next().is_none(),
            _ => self.ptr_eq(other) || self.iter().eq(other.iter()),
        }
    }
}

impl<K: Ord + Clone + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        for (k, v) in entries {
            map.insert(k, v);
        }
        map
    }
}

impl<'a, K: Ord + Clone, V: Clone> IntoIterator for &'a SharedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;
    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::{MapChange, SharedMap};

    fn apply(map: &SharedMap<u8, u8>, steps: &[(u8, Option<u8>)]) -> SharedMap<u8, u8> {
        let mut map = map.clone();
        for &(k, v) in steps {
            match v {
                Some(v) => map.insert(k, v),
                None => map.remove(&k),
            };
        }
        map
    }

    fn plain(map: &SharedMap<u8, u8>) -> BTreeMap<u8, u8> {
        map.iter().map(|(k, v)| (*k, *v)).collect()
    }

    proptest! {
        /// Whatever happened to two maps with a common ancestor, the difference turns one into the other and names only
        /// what differs.
        #[test]
        fn the_difference_leads_from_old_to_new(
            start in prop::collection::vec((0..40u8, prop::option::of(0..4u8)), 0..60),
            steps in prop::collection::vec((0..40u8, prop::option::of(0..4u8)), 0..30),
        ) {
            let old = apply(&SharedMap::new(), &start);
            let new = apply(&old, &steps);
            let mut rebuilt = plain(&old);
            let mut named = vec![];
            old.diff(&new, |change| match change {
                MapChange::Added(k, v) => { assert_eq!(rebuilt.insert(*k, *v), None); named.push(*k); }
                MapChange::Removed(k, v) => { assert_eq!(rebuilt.remove(k), Some(*v)); named.push(*k); }
                MapChange::Changed(k, a, b) => {
                    assert_ne!(a, b);
                    assert_eq!(rebuilt.insert(*k, *b), Some(*a));
                    named.push(*k);
                }
            });
            prop_assert_eq!(&rebuilt, &plain(&new));
            prop_assert!(named.is_sorted());
            prop_assert_eq!(old == new, named.is_empty());
            let expected = plain(&new);
            for k in 0..40 {
                prop_assert_eq!(new.get(&k), expected.get(&k));
            }
        }
    }
}
