use std::collections::BTreeSet;

use pilot_model::ConfigId;

use super::Patch;

/// A patch that could not be applied, and why.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fault {
    pub filter: ConfigId,
    /// Its place among the patches of its EnvoyFilter.
    pub index: usize,
    pub message: String,
}

/// Each fault once, however many resources show it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Faults(BTreeSet<Fault>);

impl Faults {
    pub(super) fn add(&mut self, patch: &Patch, message: impl Into<String>) {
        self.0.insert(Fault {
            filter: patch.filter.clone(),
            index: patch.spec.index,
            message: message.into(),
        });
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }
}
