use pilot_base::{ObjectRef, SharedMap};

use crate::engine::Engine;
use crate::group::{Feeds, Members};
use crate::input::InputNode;
use crate::map::{Driver, MapNode};
use crate::node::{Cell, Node, NodeId};
use crate::product::{ProductNode, Side};
use crate::reader::{Reader, rows_of};
use crate::table::{Input, Key, Table, Value};

/// The declaration of all tables. The order of declaration is the order of computation.
#[derive(Default)]
pub struct Graph {
    nodes: Vec<Box<dyn Node>>,
}

impl Graph {
    pub fn new() -> Self {
        Self::default()
    }

    /// A table that transactions write. `origin` tells which object a row stands for.
    pub fn input<K: Key, V: Value>(
        &mut self,
        name: &'static str,
        origin: fn(&K) -> ObjectRef,
    ) -> Input<K, V> {
        Input(self.add(InputNode::<K, V>::new(name, origin)))
    }

    /// One row per key of `driver`, computed by a pure function of the key and what it reads.
    ///
    /// A row is computed again when its key comes or when something it read changes. It does not depend on the driver's
    /// *value* unless it reads it.
    pub fn map<K: Key, D: Value, V: Value>(
        &mut self,
        name: &'static str,
        driver: &Table<K, D>,
        compute: impl Fn(&K, &Reader<'_>) -> Option<V> + Send + Sync + 'static,
    ) -> Table<K, V> {
        let node = self.map_node(name, driver, compute);
        self.add(node)
    }

    /// As [`map`](Self::map), of rows that only put together groups that they read: whoever asks where a member of one
    /// comes from is told where it comes from in the groups.
    pub fn stack<K: Key, D: Value, V: Value>(
        &mut self,
        name: &'static str,
        driver: &Table<K, D>,
        compute: impl Fn(&K, &Reader<'_>) -> Option<V> + Send + Sync + 'static,
    ) -> Table<K, V> {
        let node = self.map_node(name, driver, compute);
        self.add(node.that_stacks())
    }

    fn map_node<K: Key, D: Value, V: Value>(
        &self,
        name: &'static str,
        driver: &Table<K, D>,
        compute: impl Fn(&K, &Reader<'_>) -> Option<V> + Send + Sync + 'static,
    ) -> MapNode<K, V> {
        self.check_declared(driver);
        let driver = *driver;
        let changes = move |nodes: &[Box<dyn Node>], each: &mut dyn FnMut(&K, bool)| {
            for (_, key, old, new) in rows_of(nodes, &driver).changes() {
                if old.is_some() != new.is_some() {
                    each(key, new.is_some());
                }
            }
        };
        let row = move |nodes: &[Box<dyn Node>], key: &K| {
            rows_of(nodes, &driver).find(key).map(|slot| Cell { node: driver.id, slot })
        };
        let driver = Driver { changes: Box::new(changes), row: Box::new(row) };
        MapNode::new(name, driver, Box::new(compute))
    }

    /// One ordered map per group key, of what the rows of the feeding tables contribute. No two rows may contribute the
    /// same member to the same group: where that could happen, the contributor's key belongs into the member's.
    pub fn group<G: Key, M: Key, V: Value + Clone>(
        &mut self,
        name: &'static str,
        declare: impl FnOnce(&mut Feeds<'_, G, M, V>),
    ) -> Table<G, SharedMap<M, V>> {
        let mut feeds = Feeds::new(self);
        declare(&mut feeds);
        let node = feeds.into_node(name, Members::Owned);
        self.add(node)
    }

    /// A group that only knows that a member is there. Any number of rows may contribute the same one.
    pub fn tally<G: Key, M: Key>(
        &mut self,
        name: &'static str,
        declare: impl FnOnce(&mut Feeds<'_, G, M, ()>),
    ) -> Table<G, SharedMap<M, ()>> {
        let mut feeds = Feeds::new(self);
        declare(&mut feeds);
        let node = feeds.into_node(name, Members::Counted);
        self.add(node)
    }

    /// Within each group every row of `left` with every row of `right`: the keys for a map that has to be computed once
    /// for each kind of asker.
    pub fn product<G: Key, A: Key, B: Key, X: Value, Y: Value>(
        &mut self,
        name: &'static str,
        left: &Table<(G, A), X>,
        right: &Table<(G, B), Y>,
    ) -> Table<(G, A, B), ()> {
        let (left, right) = (Side::new(self, left), Side::new(self, right));
        self.add(ProductNode::new(name, left, right))
    }

    pub fn build(self) -> Engine {
        Engine::new(self.nodes)
    }

    pub(crate) fn check_declared<K, V>(&self, table: &Table<K, V>) {
        assert!(usize::from(table.id) < self.nodes.len(), "a table is declared before it is used");
    }

    fn add<K, V>(&mut self, node: impl Node + 'static) -> Table<K, V> {
        let id = NodeId::try_from(self.nodes.len()).expect("fewer than 2^16 tables");
        self.nodes.push(Box::new(node));
        Table::new(id)
    }
}
