//! Pods that a list lacks, though no watch said that they are gone. If the slices that lead to them cannot be believed either,
//! their endpoints are kept; and without its pod an endpoint would be of no use.

use std::collections::BTreeMap;
use std::time::Duration;

use pilot_model::{ConfigId, Object};
use tokio::time::Instant;

use crate::known::{Change, What};

/// Fewer are let go at once.
const FEW: usize = 10;
/// Slices are listed at the same time, but not at the same moment.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Parting {
    pods: BTreeMap<ConfigId, Instant>,
    /// Are there slices that are not believed?
    pub(super) slices_are_held: bool,
}

impl Parting {
    /// What of a list counts at once.
    pub(super) fn keep(&mut self, changes: Vec<Change<Object>>) -> Vec<Change<Object>> {
        let is_gone = |change: &Change<Object>| matches!(change.what, What::Gone);
        if changes.iter().filter(|change| is_gone(change)).count() < FEW {
            return changes;
        }
        let (gone, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_gone);
        let until = Instant::now() + PATIENCE;
        self.pods.extend(gone.into_iter().map(|change| (change.id, until)));
        others
    }

    /// Something else is said of a pod.
    pub(super) fn forget(&mut self, id: &ConfigId) {
        self.pods.remove(id);
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.pods.values().min().copied().filter(|_| !self.slices_are_held)
    }

    /// Those that are let go now.
    pub(super) fn gone(&mut self) -> Vec<Change<Object>> {
        if self.slices_are_held {
            return Vec::new();
        }
        let now = Instant::now();
        let gone = self.pods.extract_if(.., |_, until| *until <= now);
        gone.map(|(id, _)| Change { id, what: What::Gone, is_new: false, issues: Vec::new() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pilot_model::{ConfigId, Object};
    use tokio::time::advance;

    use super::Parting;
    use crate::known::{Change, What};

    fn gone(count: usize) -> Vec<Change<Object>> {
        let id = |i| ConfigId::new("shop", format!("p{i:02}"));
        let gone = |i| Change { id: id(i), what: What::Gone, is_new: false, issues: Vec::new() };
        (0..count).map(gone).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn pods_stay_for_as_long_as_slices_that_are_not_believed() {
        let mut parting = Parting::default();
        assert_eq!(parting.keep(gone(9)).len(), 9, "so few may go");
        assert!(parting.keep(gone(12)).is_empty() && parting.gone().is_empty());
        parting.forget(&ConfigId::new("shop", "p03"));
        parting.slices_are_held = true;
        advance(Duration::from_secs(60)).await;
        assert!(parting.gone().is_empty() && parting.due().is_none());
        parting.slices_are_held = false;
        assert!(parting.due().is_some());
        assert_eq!(parting.gone().len(), 11);
        assert!(parting.due().is_none());
    }
}
