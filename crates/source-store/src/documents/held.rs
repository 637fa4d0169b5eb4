//! Documents that the first answer after a loss lacks, though that is hardly true.

use std::collections::BTreeSet;
use std::time::Duration;

use pilot_source::{Patience, Suspicion};
use tokio::time::Instant;

#[derive(Default)]
pub(super) struct Held {
    keys: BTreeSet<String>,
    /// When they are given up; nothing while the store cannot be asked.
    until: Option<Instant>,
    patience: Patience,
    /// Of the next whole answer.
    doubt: Suspicion,
    why: String,
}

/// Fewer than this may go at once without anybody wondering.
const MANY: usize = 10;

impl Held {
    pub(super) fn doubt(&mut self, doubt: Suspicion) {
        (self.doubt, self.until) = (self.doubt.max(doubt), None);
        self.patience.rest();
    }

    pub(super) fn why(&self) -> Option<&str> {
        (!self.keys.is_empty()).then_some(self.why.as_str())
    }

    /// A document is there, or is known to be gone.
    pub(super) fn back(&mut self, key: &str) {
        self.keys.remove(key);
    }

    /// Which of those that a whole answer lacks are gone. Of a store that was asked all the time everything is believed.
    pub(super) fn gone(
        &mut self,
        missing: &BTreeSet<String>,
        (had, grace): (usize, Duration),
    ) -> BTreeSet<String> {
        let doubt = std::mem::take(&mut self.doubt);
        let fresh: BTreeSet<String> = missing.difference(&self.keys).cloned().collect();
        let (had, gone) = (had.saturating_sub(self.keys.len()), fresh.len());
        let most = gone == had || (had >= MANY && gone * 2 > had);
        let is_doubted = doubt == Suspicion::KnowsLess || (doubt == Suspicion::Lost && most);
        let is_collapse = is_doubted && gone > 0 && !grace.is_zero();
        if is_collapse {
            self.why = format!(
                "{gone} of {had} documents are missing from its answer; they are kept until they come back, for {grace:?} at most"
            );
            self.keys.extend(fresh.iter().cloned());
        }
        if self.keys.is_empty() {
            self.patience = Patience::default();
        }
        if is_collapse || self.until.is_none() {
            self.until = Some(self.patience.until(grace));
        }
        if is_collapse { BTreeSet::new() } else { fresh }
    }

    /// It has what it had, though it could not be asked meanwhile.
    pub(super) fn is_the_same(&mut self, grace: Duration) {
        self.doubt = Suspicion::None;
        if self.until.is_none() {
            self.until = Some(self.patience.until(grace));
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.until.filter(|_| !self.keys.is_empty())
    }

    pub(super) fn give_up(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.keys)
    }
}
