use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};

use pilot_base::{FastSet, ObjectRef};

use crate::node::{Cell, Lookback, Node, NodeId, Origin};

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

/// What a row, or a part of one, was made of.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Trace {
    pub origins: BTreeSet<Origin>,
    /// So many rows were looked through for it: who traces much does so bit by bit.
    pub looked_at: usize,
}

/// The input rows that rows were made of, directly or through other rows.
pub(crate) fn origins_of(nodes: &[Box<dyn Node>], start: Vec<Cell>, lookback: Lookback) -> Trace {
    let mut trace = Trace::default();
    let mut open: BTreeMap<NodeId, FastSet<u32>> = BTreeMap::new();
    let add = |open: &mut BTreeMap<NodeId, FastSet<u32>>, cells: Vec<Cell>| {
        cells.into_iter().for_each(|cell| _ = open.entry(cell.node).or_default().insert(cell.slot));
    };
    add(&mut open, start);
    // Rows are made of rows of nodes before them: so all that are asked for of a node are known when it is its turn.
    while let Some((id, slots)) = open.pop_last() {
        let node = &nodes[usize::from(id)];
        let (mut made, mut inputs) = (Vec::new(), Vec::new());
        for slot in slots {
            node.origin(slot).map_or_else(|| made.push(slot), |origin| inputs.push(origin));
        }
        trace.origins.extend(inputs);
        if !made.is_empty() {
            trace.looked_at += made.len() + node.looked_through(nodes);
            add(&mut open, node.sources(nodes, &made, lookback));
        }
    }
    trace
}

pub(crate) fn inputs_of(nodes: &[Box<dyn Node>], start: Cell, lookback: Lookback) -> BTreeSet<ObjectRef> {
    origins_of(nodes, vec![start], lookback).origins.into_iter().map(|origin| origin.object).collect()
}

/// The input rows that one member was made of, of all groups that a row has read, itself or through rows that only put
/// groups together. If none of them has it, everything else the row was made of may have it.
pub(crate) fn origins_of_member(nodes: &[Box<dyn Node>], start: Cell, member: &dyn Any) -> Trace {
    let node = |cell: &Cell| &nodes[usize::from(cell.node)];
    let (mut made_of, mut rest, mut open) = (Vec::new(), Vec::new(), vec![start]);
    let mut looked_at = 0;
    while let Some(stack) = open.pop() {
        for cell in node(&stack).sources(nodes, &[stack.slot], Lookback::All) {
            if node(&cell).is_stack() {
                open.push(cell);
            } else if node(&cell).is_group() {
                let Some(of_member) = node(&cell).member_sources(nodes, cell.slot, member) else { continue };
                looked_at += node(&cell).looked_through(nodes);
                made_of.extend(of_member);
            } else {
                rest.push(cell);
            }
        }
    }
    let trace = origins_of(nodes, if made_of.is_empty() { rest } else { made_of }, Lookback::All);
    Trace { looked_at: trace.looked_at + looked_at, ..trace }
}
