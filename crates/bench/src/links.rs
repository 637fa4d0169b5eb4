use pilot_base::{FastMap, FastSet};
use smallvec::SmallVec;

use crate::names::Id;

/// Which resources name which others, so that a change is followed without looking at all of them.
#[derive(Default)]
pub(crate) struct Links {
    of: FastMap<Id, SmallVec<[Id; 2]>>,
    /// How many name it.
    counts: FastMap<Id, u32>,
    /// Whose count became zero, or more, since somebody asked.
    touched: FastSet<Id>,
}

impl Links {
    pub(crate) fn set(&mut self, from: Id, to: SmallVec<[Id; 2]>) {
        if self.of.get(&from) == Some(&to) {
            return;
        }
        for id in &to {
            let count = self.counts.entry(*id).or_insert(0);
            *count += 1;
            if *count == 1 {
                self.touched.insert(*id);
            }
        }
        let before = if to.is_empty() { self.of.remove(&from) } else { self.of.insert(from, to) };
        self.release(&before.unwrap_or_default());
    }

    pub(crate) fn remove(&mut self, from: Id) {
        let before = self.of.remove(&from);
        self.release(&before.unwrap_or_default());
    }

    fn release(&mut self, ids: &[Id]) {
        for id in ids {
            let Some(count) = self.counts.get_mut(id) else { continue };
            *count -= 1;
            if *count == 0 {
                self.counts.remove(id);
                self.touched.insert(*id);
            }
        }
    }

    /// What is named now and was not, and what was and is not, each in order.
    pub(crate) fn take_changes(&mut self, subscribed: &FastSet<Id>) -> (Vec<Id>, Vec<Id>) {
        let (mut new, mut gone) = (Vec::new(), Vec::new());
        for id in self.touched.drain() {
            match (self.counts.contains_key(&id), subscribed.contains(&id)) {
                (true, false) => new.push(id),
                (false, true) => gone.push(id),
                _ => {}
            }
        }
        new.sort_unstable();
        gone.sort_unstable();
        (new, gone)
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::FastSet;
    use smallvec::smallvec;

    use super::Links;
    use crate::names::Names;

    #[test]
    fn only_what_nobody_names_any_more_is_given_up() {
        let names = Names::default();
        let [a, b, x, y] = ["a", "b", "x", "y"].map(|text| names.id(text.as_bytes()));
        let (mut links, mut subscribed) = (Links::default(), FastSet::default());
        links.set(a, smallvec![x, y]);
        links.set(b, smallvec![x]);
        assert_eq!(links.take_changes(&subscribed), (vec![x, y], vec![]));
        subscribed.extend([x, y]);
        links.remove(a);
        assert_eq!(links.take_changes(&subscribed), (vec![], vec![y]));
        // What comes back before anybody looked has not changed.
        links.remove(b);
        links.set(a, smallvec![x]);
        subscribed.remove(&y);
        assert_eq!(links.take_changes(&subscribed), (vec![], vec![]));
    }
}
