use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::ObjectRef;
use thin_vec::ThinVec;

use crate::node::{Cell, Dep, Lookback, MISS, Node, NodeId, ReadBy, Reads, Stopwatch};
use crate::provenance::{Fault, Trace, inputs_of, origins_of_member};
use crate::reader::rows_of;
use crate::table::{Key, Table, Value};
use crate::txn::Txn;

/// Faults are traced to their inputs only up to this number in one commit: tracing walks tables.
const TRACED_FAULTS: usize = 64;

/// All rows, and the one place that changes them.
pub struct Engine {
    pub(crate) nodes: Vec<Box<dyn Node>>,
    /// For each node the groups that its rows contribute to.
    pub(crate) fed: Vec<Vec<NodeId>>,
    epoch: u64,
    faults: BTreeMap<(NodeId, u32), Fault>,
    stats: Vec<NodeStats>,
    stopwatch: Stopwatch,
}

/// What a commit did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    pub epoch: u64,
    /// Rows computed and group members moved, over all nodes.
    pub computed: usize,
    /// Did rows begin or cease to be at fault?
    pub faults_changed: bool,
    /// How many rows' functions panicked.
    pub panicked: usize,
    /// Nanoseconds that it took of processors, of all threads together; zero if nobody measures.
    pub spent: u64,
}

/// What one node has cost so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeStats {
    pub name: &'static str,
    pub rows: usize,
    pub computed: u64,
    /// The most rows that any row of this node has read: a number that grows with the mesh is a mistake in the graph.
    pub most_reads: usize,
}

impl Engine {
    pub(crate) fn new(nodes: Vec<Box<dyn Node>>) -> Self {
        let stats = nodes
            .iter()
            .map(|node| NodeStats { name: node.table().name(), ..NodeStats::default() })
            .collect();
        let mut fed = vec![Vec::new(); nodes.len()];
        for (id, node) in (0..).zip(&nodes) {
            node.feeders().into_iter().for_each(|from| fed[usize::from(from)].push(id));
        }
        Self { nodes, fed, epoch: 0, faults: BTreeMap::new(), stats, stopwatch: || 0 }
    }

    /// From now on commits tell how long they took.
    pub fn measure(&mut self, stopwatch: Stopwatch) {
        self.stopwatch = stopwatch;
    }

    /// Applies a transaction and brings every table up to date. Nobody sees a table between two epochs.
    pub fn commit(&mut self, txn: Txn) -> Commit {
        let began = (self.stopwatch)();
        self.epoch += 1;
        self.settle();
        for (id, ops) in txn.ops {
            self.nodes[usize::from(id)].write(ops, self.epoch);
        }
        let (mut computed, mut faults_changed) = (0, false);
        let (mut panicked, mut elsewhere) = (0, 0);
        for at in 0..self.nodes.len() {
            let (before, rest) = self.nodes.split_at_mut(at);
            let step = rest[0].step(before, self.stopwatch);
            let id = NodeId::try_from(at).expect("fewer than 2^16 tables");
            computed += step.computed;
            panicked += step.panics.len();
            elsewhere += step.elsewhere;
            self.note_step(at, step.computed, step.most_reads);
            self.record_reads(id, step.reads);
            self.release_vacated(id);
            for cell in self.nodes[at].table().readers_of_changed() {
                self.nodes[usize::from(cell.node)].table_mut().mark_dirty(cell.slot);
            }
            faults_changed |= !step.panics.is_empty();
            for slot in step.recovered {
                faults_changed |= self.faults.remove(&(id, slot)).is_some();
            }
            for (slot, message) in step.panics {
                self.note_fault(Cell { node: id, slot }, message);
            }
        }
        let spent = (self.stopwatch)().saturating_sub(began) + elsewhere;
        Commit { epoch: self.epoch, computed, faults_changed, panicked, spent }
    }

    /// Forgets what the last commit changed, and with it the values from before. The next commit would do the same, but
    /// that may be hours away, and the first one changes everything.
    pub fn settle(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.table_mut().end_epoch());
    }

    /// The objects that the last commit changed.
    pub fn changed_objects(&self) -> Vec<ObjectRef> {
        let mut objects = Vec::new();
        self.nodes.iter().for_each(|node| node.changed_objects(&mut objects));
        objects
    }

    /// How many rows a table has.
    pub fn count<K: Key, V: Value>(&self, table: &Table<K, V>) -> usize {
        self.nodes[usize::from(table.id)].table().filled()
    }

    /// How many rows each table has.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.nodes.iter().map(|node| (node.table().name(), node.table().filled()))
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn get<K: Key, V: Value>(&self, table: &Table<K, V>, key: &K) -> Option<&Arc<V>> {
        rows_of(&self.nodes, table).get(key)
    }

    /// What the last commit changed in a table, in order of keys: key, value before, value now.
    pub fn changes<K: Key, V: Value>(
        &self,
        table: &Table<K, V>,
    ) -> Vec<(&K, Option<&Arc<V>>, Option<&Arc<V>>)> {
        let mut changes: Vec<_> =
            rows_of(&self.nodes, table).changes().map(|(_, key, old, new)| (key, old, new)).collect();
        changes.sort_unstable_by_key(|(key, ..)| *key);
        changes
    }

    /// A whole table, in order of keys: for debug pages and tests, not for the graph.
    pub fn dump<K: Key, V: Value>(&self, table: &Table<K, V>) -> Vec<(&K, &Arc<V>)> {
        let mut rows: Vec<_> = rows_of(&self.nodes, table).iter().collect();
        rows.sort_unstable_by_key(|(key, _)| *key);
        rows
    }

    /// The objects that a row was made of.
    pub fn provenance<K: Key, V: Value>(&self, table: &Table<K, V>, key: &K) -> BTreeSet<ObjectRef> {
        match rows_of(&self.nodes, table).find(key) {
            Some(slot) => inputs_of(&self.nodes, Cell { node: table.id, slot }, Lookback::All),
            None => BTreeSet::new(),
        }
    }

    /// The objects that one member was made of, of the groups that a row has read.
    pub fn member_provenance<K: Key, V: Value, M: Key>(
        &self,
        table: &Table<K, V>,
        key: &K,
        member: &M,
    ) -> Trace {
        match rows_of(&self.nodes, table).find(key) {
            Some(slot) => origins_of_member(&self.nodes, Cell { node: table.id, slot }, member),
            None => Trace::default(),
        }
    }

    /// Rows that hold an older value because their function panicked.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.faults.values()
    }

    pub fn stats(&self) -> Vec<NodeStats> {
        let rows = self.nodes.iter().map(|node| node.table().len());
        self.stats.iter().zip(rows).map(|(stats, rows)| NodeStats { rows, ..*stats }).collect()
    }

    fn note_step(&mut self, at: usize, computed: usize, most_reads: usize) {
        let stats = &mut self.stats[at];
        stats.computed += computed as u64;
        stats.most_reads = stats.most_reads.max(most_reads);
    }

    /// Writes down who read what in this step.
    fn record_reads(&mut self, id: NodeId, reads: Vec<Reads>) {
        let mut settled: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
        for Reads { slot, mut cells } in reads {
            for cell in &mut cells {
                if cell.slot & MISS != 0 {
                    let node = &mut self.nodes[usize::from(cell.node)];
                    let slots = settled.entry(cell.node).or_insert_with(|| node.table_mut().settle_misses());
                    cell.slot = slots[(cell.slot & !MISS) as usize];
                }
            }
            self.relink(Cell { node: id, slot }, cells);
        }
    }

    fn relink(&mut self, reader: Cell, mut cells: Vec<Cell>) {
        cells.sort_unstable();
        let old = self.nodes[usize::from(reader.node)].table().deps(reader.slot);
        if old.iter().map(|dep| dep.cell).eq(cells.iter().copied()) {
            return;
        }
        let old = self.nodes[usize::from(reader.node)].table_mut().set_deps(reader.slot, ThinVec::new());
        self.unlink(reader, old);
        let deps: ThinVec<Dep> = (0u32..)
            .zip(cells)
            .map(|(dep, cell)| {
                let by = ReadBy { reader, dep };
                Dep { cell, at: self.nodes[usize::from(cell.node)].table_mut().add_reader(cell.slot, by) }
            })
            .collect();
        self.nodes[usize::from(reader.node)].table_mut().set_deps(reader.slot, deps);
    }

    fn unlink(&mut self, reader: Cell, mut deps: ThinVec<Dep>) {
        while let Some(dep) = deps.pop() {
            let table = self.nodes[usize::from(dep.cell.node)].table_mut();
            let Some(moved) = table.remove_reader(dep.cell.slot, dep.at) else { continue };
            debug_assert_ne!(moved.reader, reader, "a row reads another only once");
            let table = self.nodes[usize::from(moved.reader.node)].table_mut();
            table.set_dep_place(moved.reader.slot, moved.dep, dep.at);
        }
    }

    /// A row that nobody wants any more lets go of what it read.
    fn release_vacated(&mut self, id: NodeId) {
        for slot in self.nodes[usize::from(id)].table().vacated() {
            let deps = self.nodes[usize::from(id)].table_mut().set_deps(slot, ThinVec::new());
            self.unlink(Cell { node: id, slot }, deps);
        }
    }

    fn note_fault(&mut self, cell: Cell, message: String) {
        let table = self.nodes[usize::from(cell.node)].table();
        let (table, key) = (table.name(), table.show_key(cell.slot));
        let traced = self.faults.len() < TRACED_FAULTS;
        let inputs = |lookback| {
            if traced { inputs_of(&self.nodes, cell, lookback) } else { BTreeSet::new() }
        };
        let (changed, inputs) = (inputs(Lookback::Changed), inputs(Lookback::All));
        self.faults.insert((cell.node, cell.slot), Fault { table, key, message, changed, inputs });
    }
}
