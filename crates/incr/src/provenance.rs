use std::collections::BTreeSet;

use pilot_base::{FastSet, ObjectRef};

use crate::node::{Cell, Lookback, Node};

/// A row whose function panicked. It keeps its last good value until it can be computed again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    pub table: &'static str,
    pub key: String,
    pub message: String,
    /// The objects that changed when it happened, of those the row was made of.
    pub changed: BTreeSet<ObjectRef>,
    /// All objects the row was made of.
    pub inputs: BTreeSet<ObjectRef>,
}

/// The input rows that a row was made of, directly or through other rows.
pub(crate) fn inputs_of(nodes: &[Box<dyn Node>], start: Cell, lookback: Lookback) -> BTreeSet<ObjectRef> {
    let mut found = BTreeSet::new();
    let mut seen = FastSet::default();
    let mut open = vec![start];
    while let Some(cell) = open.pop() {
        if !seen.insert((cell.node, cell.slot)) {
            continue;
        }
        let node = &nodes[usize::from(cell.node)];
        match node.origin(cell.slot) {
            Some(object) => {
                found.insert(object);
            }
            None => open.extend(node.sources(nodes, cell.slot, lookback)),
        }
    }
    found
}
