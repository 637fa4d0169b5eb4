use crate::{FastSet, Labels, Name};

/// Words and sets of labels that many objects have in common, each kept once.
///
/// Ten thousand services have few keys of labels, zones and accounts between them. Names that come and go, such as
/// addresses, do not belong here. What nobody else holds any more is forgotten before the table grows.
#[derive(Default)]
pub struct Words {
    names: FastSet<Name>,
    labels: FastSet<Labels>,
    /// With so many it is looked what nobody has any more.
    full: usize,
}

impl Words {
    /// Puts the copy that everybody shares in place of a name.
    pub fn name(&mut self, name: &mut Name) {
        if name.is_empty() {
            return;
        }
        if let Some(known) = self.names.get(name) {
            name.clone_from(known);
            return;
        }
        self.make_room();
        self.names.insert(name.clone());
    }

    /// The same for a set of labels.
    pub fn labels(&mut self, labels: &mut Labels) {
        if labels.is_empty() {
            return;
        }
        if let Some(known) = self.labels.get(labels) {
            labels.clone_from(known);
            return;
        }
        let shared = |word: &Name, words: &mut Self| {
            let mut word = word.clone();
            words.name(&mut word);
            word
        };
        *labels = labels.iter().map(|(key, value)| (shared(key, self), shared(value, self))).collect();
        self.make_room();
        self.labels.insert(labels.clone());
    }

    fn make_room(&mut self) {
        if self.names.len() + self.labels.len() < self.full {
            return;
        }
        self.labels.retain(Labels::is_shared);
        self.names.retain(Name::is_shared);
        self.full = 2 * (self.names.len() + self.labels.len()) + 1024;
    }
}

#[cfg(test)]
mod tests {
    use super::Words;
    use crate::{Labels, Name};

    fn address(name: &Name) -> *const u8 {
        name.as_str().as_ptr()
    }

    #[test]
    fn equal_words_become_one() {
        let mut words = Words::default();
        let (mut one, mut other) = (Name::new("zone-a"), Name::new("zone-a"));
        words.name(&mut one);
        words.name(&mut other);
        assert_eq!(address(&one), address(&other));
        let mut sets = [("app", "a"), ("app", "b")].map(|label| Labels::new([label]));
        let mut again = Labels::new([("app", "a")]);
        sets.iter_mut().chain([&mut again]).for_each(|labels| words.labels(labels));
        let key = |labels: &Labels| labels.iter().next().map(|(key, _)| address(key));
        assert_eq!(key(&sets[0]), key(&sets[1]), "sets that differ share words");
        assert_eq!(again, sets[0]);
        assert!(sets[0].is_shared());
    }

    #[test]
    fn words_that_nobody_has_are_forgotten() {
        let mut words = Words::default();
        let mut kept = Name::new("kept");
        words.name(&mut kept);
        for number in 0..100_000 {
            words.name(&mut Name::from(format!("pod-{number}")));
            words.labels(&mut Labels::new([("pod", format!("pod-{number}"))]));
        }
        assert!(words.names.len() + words.labels.len() < 5_000, "{} words", words.names.len());
        let mut again = Name::new("kept");
        words.name(&mut again);
        assert_eq!(address(&kept), address(&again));
    }
}
