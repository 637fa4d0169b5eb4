use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use pilot_base::{FastSet, Hash64, Name};

use crate::Manifest;

/// Names in order, without repetition. Clients that ask for the same names share one.
#[derive(Clone, Debug, Default)]
pub struct NameSet {
    sorted: Box<[Name]>,
    /// For those who say them in no order, once there is one.
    index: OnceLock<FastSet<Name>>,
    /// Bytes of those names, and what each takes besides.
    size: usize,
    sum: u64,
}

/// The hashes of names, added up: the same in whatever order they are said.
pub(crate) fn sum_of<'a>(names: impl Iterator<Item = &'a str>) -> u64 {
    names.fold(0, |sum, name| sum.wrapping_add(Hash64::of(name.as_bytes()).0))
}

/// What a client's name costs in memory besides its text, about.
const BESIDES: usize = 64;

fn size_of(name: &Name) -> usize {
    name.len() + BESIDES
}

impl NameSet {
    pub fn len(&self) -> usize {
        self.sorted.len()
    }

    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Name> {
        self.sorted.iter()
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        self.sorted.binary_search_by(|known| known.as_str().cmp(name))
    }

    /// Are these names, each said once, the ones in here?
    pub fn is_said_by<'a>(&self, mut names: impl ExactSizeIterator<Item = &'a str>) -> bool {
        if names.len() != self.len() {
            return false;
        }
        let mut known = self.sorted.iter();
        let stray = names.find(|name| known.next().is_none_or(|known| known != name));
        // Envoy keeps names by their hash, so it says them in an order of its own.
        stray
            .into_iter()
            .chain(names)
            .all(|name| self.index.get_or_init(|| self.sorted.iter().cloned().collect()).contains(name))
    }
}

impl PartialEq for NameSet {
    fn eq(&self, other: &Self) -> bool {
        self.sorted == other.sorted
    }
}

impl Eq for NameSet {}

impl FromIterator<Name> for NameSet {
    fn from_iter<I: IntoIterator<Item = Name>>(names: I) -> Self {
        let mut sorted: Vec<Name> = names.into_iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let sum = sum_of(sorted.iter().map(Name::as_str));
        Self { size: sorted.iter().map(size_of).sum(), sorted: sorted.into(), index: OnceLock::new(), sum }
    }
}

/// The names that one client asks for one by one: those of a shared set, and how they differ from it.
#[derive(Default)]
pub(crate) struct Names {
    common: Arc<NameSet>,
    more: BTreeSet<Name>,
    fewer: BTreeSet<Name>,
    size: usize,
}

impl Names {
    pub(crate) fn contains(&self, name: &Name) -> bool {
        (self.common.contains(name) && !self.fewer.contains(name)) || self.more.contains(name)
    }

    pub(crate) fn len(&self) -> usize {
        self.common.len() + self.more.len() - self.fewer.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How much memory they would take if nothing were shared.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Takes the place of all names.
    pub(crate) fn set(&mut self, names: Arc<NameSet>) {
        *self = Self { size: names.size, common: names, ..Self::default() };
    }

    /// Goes by a shared set that has the very same names.
    pub(crate) fn share(&mut self, names: &Arc<NameSet>) {
        if !self.is(names) {
            self.set(Arc::clone(names));
        }
    }

    /// Is it the very set that was set last, without a look at any name?
    pub(crate) fn is(&self, names: &Arc<NameSet>) -> bool {
        self.more.is_empty() && self.fewer.is_empty() && Arc::ptr_eq(&self.common, names)
    }

    /// The shared set, if they are just that.
    pub(crate) fn as_set(&self) -> Option<&NameSet> {
        (self.more.is_empty() && self.fewer.is_empty()).then_some(&*self.common)
    }

    pub(crate) fn insert(&mut self, name: Name) {
        if self.contains(&name) {
            return;
        }
        self.size += size_of(&name);
        if !self.fewer.remove(&name) {
            self.more.insert(name);
        }
        self.settle();
    }

    pub(crate) fn remove(&mut self, name: &Name) {
        if !self.contains(name) {
            return;
        }
        self.size -= size_of(name);
        if !self.more.remove(name) {
            self.fewer.insert(name.clone());
        }
        self.settle();
    }

    /// Many differences from a set are a set of their own.
    fn settle(&mut self) {
        const FEW: usize = 64;
        if self.more.len() + self.fewer.len() > FEW + self.common.len() / 4 {
            self.set(Arc::new(self.iter().cloned().collect()));
        }
    }

    /// In no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Name> {
        self.common.iter().filter(|name| !self.fewer.contains(*name)).chain(&self.more)
    }

    /// Is everything in a manifest among them?
    pub(crate) fn cover_all(&self, manifest: &Manifest) -> bool {
        (0..manifest.layers().len()).all(|at| self.cover(manifest.seen(at).map(|resource| resource.name())))
    }

    /// Is each of these, which come in order, among them?
    pub(crate) fn cover<'a>(&self, mut names: impl Iterator<Item = &'a Name>) -> bool {
        let mut rest = self.common.sorted.iter();
        if !self.fewer.is_empty() {
            return names.all(|name| self.contains(name));
        }
        names.all(|name| {
            let next = rest.as_slice().first();
            if next == Some(name) {
                rest.next();
                return true;
            }
            while rest.as_slice().first().is_some_and(|known| known < name) {
                rest.next();
            }
            rest.as_slice().first() == Some(name) || self.more.contains(name)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use pilot_base::Name;
    use proptest::prelude::*;

    use super::{NameSet, Names};

    fn name(number: u8) -> Name {
        Name::from(format!("n{number:03}"))
    }

    #[test]
    fn a_set_knows_its_names_in_any_order_and_no_others() {
        let set: NameSet = [3, 1, 2, 3].map(name).into_iter().collect();
        let said = |names: &[&str]| set.is_said_by(names.iter().copied());
        assert!(said(&["n001", "n002", "n003"]) && said(&["n003", "n001", "n002"]));
        assert!(!said(&["n001", "n002"]) && !said(&["n001", "n002", "n004"]));
    }

    proptest! {
        #[test]
        fn names_are_what_was_said_of_them(
            first in prop::collection::btree_set(0..200u8, 0..150),
            steps in prop::collection::vec((0..200u8, any::<bool>()), 0..200),
            asked in prop::collection::btree_set(0..200u8, 0..10),
        ) {
            let mut names = Names::default();
            names.set(Arc::new(first.iter().copied().map(name).collect()));
            let mut expected: BTreeSet<u8> = first;
            for (number, comes) in steps {
                if comes {
                    names.insert(name(number));
                    expected.insert(number);
                } else {
                    names.remove(&name(number));
                    expected.remove(&number);
                }
            }
            let all: BTreeSet<Name> = expected.iter().copied().map(name).collect();
            prop_assert_eq!(names.len(), all.len());
            prop_assert_eq!(&names.iter().cloned().collect::<BTreeSet<_>>(), &all);
            prop_assert_eq!(names.size(), all.iter().map(super::size_of).sum::<usize>());
            let asked: Vec<Name> = asked.into_iter().map(name).collect();
            prop_assert_eq!(names.cover(asked.iter()), asked.iter().all(|name| all.contains(name)));
            prop_assert!(names.cover(all.iter()));
        }
    }
}
