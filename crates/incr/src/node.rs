use std::any::Any;
use std::collections::BTreeSet;

use pilot_base::ObjectRef;
use thin_vec::ThinVec;

/// The place of a node in the graph; a node reads only nodes with smaller ids.
pub(crate) type NodeId = u16;

/// One row of one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Cell {
    pub(crate) node: NodeId,
    pub(crate) slot: u32,
}

/// "I read that row", kept by the reader. `at` is where the reader stands among the readers of that row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dep {
    pub(crate) cell: Cell,
    pub(crate) at: u32,
}

/// "That row reads me", kept by the row that was read. `dep` is the place among the reader's own reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadBy {
    pub(crate) reader: Cell,
    pub(crate) dep: u32,
}

/// A slot with this bit is not a slot yet: it is the number of a miss that becomes one when the step is over.
pub(crate) const MISS: u32 = 1 << 31;

/// What one row read, as found while it was computed.
pub(crate) struct Reads {
    pub(crate) slot: u32,
    pub(crate) cells: Vec<Cell>,
}

/// What a step leaves for the engine to do, because it touches other nodes.
#[derive(Default)]
pub(crate) struct Step {
    pub(crate) reads: Vec<Reads>,
    pub(crate) panics: Vec<(u32, String)>,
    pub(crate) recovered: Vec<u32>,
    pub(crate) computed: usize,
    pub(crate) most_reads: usize,
    /// Nanoseconds that other threads have computed for it.
    pub(crate) elsewhere: u64,
}

/// Tells for how many nanoseconds the calling thread has computed so far. The engine has no clock of its own, and what it
/// computes never depends on this one.
pub type Stopwatch = fn() -> u64;

/// An object that a row was made of.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Origin {
    pub object: ObjectRef,
    /// The epoch in which it last changed.
    pub changed: u64,
}

/// How far back [`Node::sources`] looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookback {
    /// All rows that a row was made of.
    All,
    /// Only those that changed in this epoch.
    Changed,
}

/// A node without its types: what the engine needs to move changes from one to the next.
pub(crate) trait Node: Send + Sync {
    /// The node's `Rows<K, V>`, for readers that know the types.
    fn rows(&self) -> &dyn Any;
    fn table(&self) -> &dyn RowTable;
    fn table_mut(&mut self) -> &mut dyn RowTable;
    /// Brings the rows up to date with the changes of the nodes before.
    fn step(&mut self, before: &[Box<dyn Node>], stopwatch: Stopwatch) -> Step;
    /// Applies the operations of a transaction. Only inputs have any.
    fn write(&mut self, _ops: Box<dyn Any + Send>, _epoch: u64) {}
    /// The rows of other nodes that rows were made of. For groups this is a walk over the feeding tables, one for however
    /// many rows: it answers people and finds the guilty, and is no part of a commit.
    fn sources(&self, nodes: &[Box<dyn Node>], slots: &[u32], lookback: Lookback) -> Vec<Cell>;
    /// Of a row that is a group with such a member: the rows of other nodes that the member was made of.
    fn member_sources(&self, _nodes: &[Box<dyn Node>], _slot: u32, _member: &dyn Any) -> Option<Vec<Cell>> {
        None
    }
    /// How many rows of other nodes that takes.
    fn looked_through(&self, _nodes: &[Box<dyn Node>]) -> usize {
        0
    }
    /// The nodes whose rows contribute to groups of this one, each once.
    fn feeders(&self) -> BTreeSet<NodeId> {
        BTreeSet::new()
    }
    /// The groups of this node that a row of another node contributes to.
    fn fed_by(&self, _nodes: &[Box<dyn Node>], _cell: Cell) -> Vec<u32> {
        Vec::new()
    }
    /// Are rows made of members that other rows contribute?
    fn is_group(&self) -> bool {
        false
    }
    /// Do rows only put together what they read?
    fn is_stack(&self) -> bool {
        false
    }
    /// The object a row stands for, if this node is an input.
    fn origin(&self, _slot: u32) -> Option<Origin> {
        None
    }
    /// Adds the objects whose rows changed in this epoch, if this node is an input.
    fn changed_objects(&self, _objects: &mut Vec<ObjectRef>) {}
}

/// The part of `Rows<K, V>` that needs no types.
pub(crate) trait RowTable {
    fn name(&self) -> &'static str;
    fn len(&self) -> usize;
    /// How many rows have a value: the others are memories of misses.
    fn filled(&self) -> usize;
    fn mark_dirty(&mut self, slot: u32);
    /// Gives every miss of the last step a row without a value, and tells their slots in the order of the misses.
    fn settle_misses(&mut self) -> Vec<u32>;
    fn add_reader(&mut self, slot: u32, by: ReadBy) -> u32;
    /// Takes one reader out; the last one moves into its place and is told where it stands now.
    fn remove_reader(&mut self, slot: u32, at: u32) -> Option<ReadBy>;
    fn deps(&self, slot: u32) -> &[Dep];
    fn readers(&self, slot: u32) -> Vec<Cell>;
    fn set_deps(&mut self, slot: u32, deps: ThinVec<Dep>) -> ThinVec<Dep>;
    fn set_dep_place(&mut self, slot: u32, dep: u32, at: u32);
    fn changed(&self, slot: u32) -> bool;
    /// The readers of every row that changed in this epoch.
    fn readers_of_changed(&self) -> Vec<Cell>;
    /// Rows that have lost their value and must let go of what they read.
    fn vacated(&self) -> Vec<u32>;
    /// Forgets the changes of the epoch and frees rows that nobody wants or reads any more.
    fn end_epoch(&mut self);
    fn show_key(&self, slot: u32) -> String;
}
