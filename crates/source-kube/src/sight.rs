//! Whether the pods of a cluster can be seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pilot_model::PodSight;

use crate::selection::Selection;

/// Copies are one and the same. When it changes, slices are looked at again.
#[derive(Clone, Default)]
pub(crate) struct Sight {
    is_lost: Arc<AtomicBool>,
    looks: Selection,
}

impl Sight {
    pub(crate) fn pods(&self) -> PodSight {
        if self.is_lost.load(Ordering::Relaxed) { PodSight::Lost } else { PodSight::Clear }
    }

    pub(crate) fn set(&self, pods: PodSight) {
        let is_lost = pods == PodSight::Lost;
        if self.is_lost.swap(is_lost, Ordering::Relaxed) != is_lost {
            self.looks.look_again();
        }
    }

    /// Whose epochs begin whenever it changes.
    pub(crate) fn looks(&self) -> &Selection {
        &self.looks
    }
}
