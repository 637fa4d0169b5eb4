use std::cell::RefCell;
use std::sync::Arc;

use crate::node::{Cell, Node};
use crate::rows::Rows;
use crate::table::{Key, Table, Value};

/// The only way to look at rows from inside the graph. Whatever is looked at becomes a dependency, also a row that is not
/// there.
pub struct Reader<'a> {
    nodes: &'a [Box<dyn Node>],
    reads: RefCell<Vec<Cell>>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(nodes: &'a [Box<dyn Node>]) -> Self {
        Self { nodes, reads: RefCell::new(Vec::new()) }
    }

    pub fn get<K: Key, V: Value>(&self, table: &Table<K, V>, key: &K) -> Option<&'a V> {
        self.row(table, key).map(|value| &**value)
    }

    /// As [`get`](Self::get), with a share of the row for keeping.
    pub fn share<K: Key, V: Value>(&self, table: &Table<K, V>, key: &K) -> Option<Arc<V>> {
        self.row(table, key).cloned()
    }

    fn row<K: Key, V: Value>(&self, table: &Table<K, V>, key: &K) -> Option<&'a Arc<V>> {
        let rows = rows_of(self.nodes, table);
        let (slot, value) = match rows.find(key) {
            Some(slot) => (slot, rows.value(slot)),
            None => (rows.miss(key), None),
        };
        self.reads.borrow_mut().push(Cell { node: table.id, slot });
        value
    }

    /// What was read, each row once, in an order that does not depend on the order of reading.
    pub(crate) fn into_reads(self) -> Vec<Cell> {
        let mut reads = self.reads.into_inner();
        reads.sort_unstable();
        reads.dedup();
        reads
    }
}

pub(crate) fn rows_of<'a, K: Key, V: Value>(
    nodes: &'a [Box<dyn Node>],
    table: &Table<K, V>,
) -> &'a Rows<K, V> {
    let node = nodes.get(usize::from(table.id)).expect("a node reads only nodes declared before it");
    node.rows().downcast_ref().expect("a handle has the types of its node")
}
