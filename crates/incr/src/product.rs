use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::FastMap;

use crate::graph::Graph;
use crate::node::{Cell, Lookback, Node, RowTable, Step, Stopwatch};
use crate::reader::rows_of;
use crate::rows::Rows;
use crate::table::{Key, Table, Value};

/// The members of both sides of one group.
struct Sides<A, B> {
    left: BTreeSet<A>,
    right: BTreeSet<B>,
}

impl<A, B> Default for Sides<A, B> {
    fn default() -> Self {
        Self { left: BTreeSet::new(), right: BTreeSet::new() }
    }
}

/// Calls back for every key that came (`true`) or went (`false`) on one side.
type KeyChanges<G, M> = Box<dyn Fn(&[Box<dyn Node>], &mut dyn FnMut(&G, &M, bool)) + Send + Sync>;
type FindRow<G, M> = Box<dyn Fn(&[Box<dyn Node>], &G, &M) -> Option<Cell> + Send + Sync>;

pub(crate) struct Side<G, M> {
    changes: KeyChanges<G, M>,
    row: FindRow<G, M>,
}

impl<G: Key, M: Key> Side<G, M> {
    pub(crate) fn new<V: Value>(graph: &Graph, table: &Table<(G, M), V>) -> Self {
        graph.check_declared(table);
        let table = *table;
        let changes = move |nodes: &[Box<dyn Node>], each: &mut dyn FnMut(&G, &M, bool)| {
            for (_, (group, member), old, new) in rows_of(nodes, &table).changes() {
                if old.is_some() != new.is_some() {
                    each(group, member, new.is_some());
                }
            }
        };
        let row = move |nodes: &[Box<dyn Node>], group: &G, member: &M| {
            let slot = rows_of(nodes, &table).find(&(group.clone(), member.clone()))?;
            Some(Cell { node: table.id, slot })
        };
        Self { changes: Box::new(changes), row: Box::new(row) }
    }
}

/// Every member of the left with every member of the right, within each group.
pub(crate) struct ProductNode<G, A, B> {
    rows: Rows<(G, A, B), ()>,
    left: Side<G, A>,
    right: Side<G, B>,
    groups: FastMap<G, Sides<A, B>>,
    there: Arc<()>,
}

impl<G: Key, A: Key, B: Key> ProductNode<G, A, B> {
    pub(crate) fn new(name: &'static str, left: Side<G, A>, right: Side<G, B>) -> Self {
        Self { rows: Rows::new(name), left, right, groups: FastMap::default(), there: Arc::new(()) }
    }

    fn add(&mut self, pair: &(G, A, B)) {
        let slot = self.rows.slot(pair);
        self.rows.want(slot);
        self.rows.set(slot, Some(Arc::clone(&self.there)));
    }

    fn remove(&mut self, pair: &(G, A, B)) {
        let slot = self.rows.slot(pair);
        self.rows.unwant(slot);
        self.rows.set(slot, None);
    }
}

impl<G: Key, A: Key, B: Key> Node for ProductNode<G, A, B> {
    fn rows(&self) -> &dyn Any {
        &self.rows
    }

    fn table(&self) -> &dyn RowTable {
        &self.rows
    }

    fn table_mut(&mut self) -> &mut dyn RowTable {
        &mut self.rows
    }

    /// What a pair is about stands on the left; the right only asks for it, and matters only while a cause is sought.
    fn sources(&self, nodes: &[Box<dyn Node>], slots: &[u32], lookback: Lookback) -> Vec<Cell> {
        let of = |slot: &u32| {
            let (group, a, b) = self.rows.key(*slot);
            let right = (self.right.row)(nodes, group, b).filter(|_| lookback == Lookback::Changed);
            (self.left.row)(nodes, group, a).into_iter().chain(right)
        };
        let mut cells: Vec<Cell> = slots.iter().flat_map(of).collect();
        if lookback == Lookback::Changed {
            cells.retain(|cell| nodes[usize::from(cell.node)].table().changed(cell.slot));
        }
        cells
    }

    fn step(&mut self, before: &[Box<dyn Node>], _stopwatch: Stopwatch) -> Step {
        let mut moves: Vec<((G, A, B), bool)> = Vec::new();
        let mut touched: BTreeSet<G> = BTreeSet::new();
        let groups = &mut self.groups;
        (self.left.changes)(before, &mut |group, member, came| {
            touched.insert(group.clone());
            let sides = groups.entry(group.clone()).or_default();
            moves.extend(sides.right.iter().map(|b| ((group.clone(), member.clone(), b.clone()), came)));
            if came {
                sides.left.insert(member.clone());
            } else {
                sides.left.remove(member);
            }
        });
        (self.right.changes)(before, &mut |group, member, came| {
            touched.insert(group.clone());
            let sides = groups.entry(group.clone()).or_default();
            moves.extend(sides.left.iter().map(|a| ((group.clone(), a.clone(), member.clone()), came)));
            if came {
                sides.right.insert(member.clone());
            } else {
                sides.right.remove(member);
            }
        });
        for group in touched {
            if groups.get(&group).is_some_and(|sides| sides.left.is_empty() && sides.right.is_empty()) {
                groups.remove(&group);
            }
        }
        let computed = moves.len();
        for (pair, came) in &moves {
            if *came {
                self.add(pair);
            } else {
                self.remove(pair);
            }
        }
        Step { computed, ..Step::default() }
    }
}
