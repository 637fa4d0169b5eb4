//! What has been heard of API servers so far, for who counts it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_base::Name;
use pilot_model::Kind;

use crate::known::{Change, What};

/// Copies are one and the same.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<BTreeMap<Heard, u64>>>);

/// Something that was heard.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Heard {
    Object(Kind, Became),
    /// A secret that says how another cluster is reached.
    Secret(Became),
    /// A cluster that was not waited for any longer.
    Late(Name),
}

/// What became of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Became {
    Added,
    Changed,
    Gone,
}

impl Became {
    /// In istiod's words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "add",
            Self::Changed => "update",
            Self::Gone => "delete",
        }
    }

    /// Nothing if only what is wrong with it is different.
    pub(crate) fn of<T>(change: &Change<T>) -> Option<Self> {
        match change.what {
            What::Put(_) if change.is_new => Some(Self::Added),
            What::Put(_) => Some(Self::Changed),
            What::Gone => Some(Self::Gone),
            What::Same => None,
        }
    }
}

impl Tally {
    pub(crate) fn note(&self, heard: Heard) {
        *self.0.lock().entry(heard).or_default() += 1;
    }

    /// Everything so far, and how often.
    pub fn all(&self) -> Vec<(Heard, u64)> {
        self.0.lock().iter().map(|(heard, times)| (heard.clone(), *times)).collect()
    }
}
