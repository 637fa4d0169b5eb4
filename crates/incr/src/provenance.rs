use std::any::Any;
use std::collections::BTreeSet;

use pilot_base::{FastSet, ObjectRef};

use crate::node::{Cell, Lookback, Node, Origin};

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

/// The input rows that rows were made of, directly or through other rows.
pub(crate) fn origins_of(nodes: &[Box<dyn Node>], start: Vec<Cell>, lookback: Lookback) -> BTreeSet<Origin> {
    let mut found = BTreeSet::new();
    let mut seen = FastSet::default();
    let mut open = start;
    while let Some(cell) = open.pop() {
        if !seen.insert((cell.node, cell.slot)) {
            continue;
        }
        let node = &nodes[usize::from(cell.node)];
        match node.origin(cell.slot) {
            Some(origin) => {
                found.insert(origin);
            }
            None => open.extend(node.sources(nodes, cell.slot, lookback)),
        }
    }
    found
}

pub(crate) fn inputs_of(nodes: &[Box<dyn Node>], start: Cell, lookback: Lookback) -> BTreeSet<ObjectRef> {
    origins_of(nodes, vec![start], lookback).into_iter().map(|origin| origin.object).collect()
}

/// The input rows that one member was made of, of all groups that a row has read, itself or through rows that only put
/// groups together. If none of them has it, everything else the row was made of may have it.
pub(crate) fn origins_of_member(nodes: &[Box<dyn Node>], start: Cell, member: &dyn Any) -> BTreeSet<Origin> {
    let node = |cell: &Cell| &nodes[usize::from(cell.node)];
    let (mut made_of, mut rest, mut open) = (Vec::new(), Vec::new(), vec![start]);
    while let Some(stack) = open.pop() {
        for cell in node(&stack).sources(nodes, stack.slot, Lookback::All) {
            if node(&cell).is_stack() {
                open.push(cell);
            } else if node(&cell).is_group() {
                made_of.extend(node(&cell).member_sources(nodes, cell.slot, member).into_iter().flatten());
            } else {
                rest.push(cell);
            }
        }
    }
    origins_of(nodes, if made_of.is_empty() { rest } else { made_of }, Lookback::All)
}
