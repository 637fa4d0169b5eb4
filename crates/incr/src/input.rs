use std::any::Any;
use std::sync::Arc;

use pilot_base::ObjectRef;

use crate::node::{Cell, Lookback, Node, Origin, RowTable, Step, Stopwatch};
use crate::rows::Rows;
use crate::table::{Key, Value};
use crate::txn::{Op, Ops, Shard};

/// A table that transactions write. Every row belongs to the shard that wrote it.
pub(crate) struct InputNode<K, V> {
    rows: Rows<K, V>,
    owners: Vec<Option<Shard>>,
    /// When each row was last written.
    changed: Vec<u64>,
    origin: fn(&K) -> ObjectRef,
}

impl<K: Key, V: Value> InputNode<K, V> {
    pub(crate) fn new(name: &'static str, origin: fn(&K) -> ObjectRef) -> Self {
        Self { rows: Rows::new(name), owners: Vec::new(), changed: Vec::new(), origin }
    }

    fn upsert(&mut self, (shard, epoch): (Shard, u64), key: &K, value: V) {
        let slot = self.rows.slot(key);
        let at = slot as usize;
        if self.owners.len() <= at {
            self.owners.resize(at + 1, None);
            self.changed.resize(at + 1, 0);
        }
        if self.owners[at].is_none() {
            self.rows.want(slot);
        }
        self.owners[at] = Some(shard);
        let is_new = self.rows.value(slot).is_none_or(|old| **old != value);
        if is_new {
            self.changed[at] = epoch;
        }
        self.rows.set(slot, Some(Arc::new(value)));
    }

    /// Only the owner can take a row away: a source that never had it cannot empty what another one wrote.
    fn remove(&mut self, shard: Shard, key: &K) {
        let Some(slot) = self.rows.find(key) else { return };
        if self.owners.get(slot as usize).copied().flatten() == Some(shard) {
            self.owners[slot as usize] = None;
            self.rows.unwant(slot);
            self.rows.set(slot, None);
        }
    }

    /// The shard becomes exactly `rows`. A walk over the table: a relist costs what the listing cost.
    fn replace(&mut self, (shard, epoch): (Shard, u64), rows: Vec<(K, V)>) {
        let keep: pilot_base::FastSet<&K> = rows.iter().map(|(k, _)| k).collect();
        let owned = |slot: u32| self.owners.get(slot as usize).copied().flatten() == Some(shard);
        let gone: Vec<K> = self
            .rows
            .slots()
            .filter(|(slot, key)| owned(*slot) && !keep.contains(key))
            .map(|(_, key)| key.clone())
            .collect();
        for key in gone {
            self.remove(shard, &key);
        }
        for (key, value) in rows {
            self.upsert((shard, epoch), &key, value);
        }
    }
}

impl<K: Key, V: Value> Node for InputNode<K, V> {
    fn rows(&self) -> &dyn Any {
        &self.rows
    }

    fn table(&self) -> &dyn RowTable {
        &self.rows
    }

    fn table_mut(&mut self) -> &mut dyn RowTable {
        &mut self.rows
    }

    fn step(&mut self, _before: &[Box<dyn Node>], _stopwatch: Stopwatch) -> Step {
        Step::default()
    }

    fn write(&mut self, ops: Box<dyn Any + Send>, epoch: u64) {
        let ops = ops.downcast::<Ops<K, V>>().expect("operations have the types of their input");
        for op in ops.0 {
            match op {
                Op::Upsert(shard, key, value) => self.upsert((shard, epoch), &key, value),
                Op::Remove(shard, key) => self.remove(shard, &key),
                Op::Replace(shard, rows) => self.replace((shard, epoch), rows),
            }
        }
    }

    fn sources(&self, _nodes: &[Box<dyn Node>], _slots: &[u32], _lookback: Lookback) -> Vec<Cell> {
        Vec::new()
    }

    fn origin(&self, slot: u32) -> Option<Origin> {
        let changed = self.changed.get(slot as usize).copied().unwrap_or(0);
        Some(Origin { object: (self.origin)(self.rows.key(slot)), changed })
    }

    fn changed_objects(&self, objects: &mut Vec<ObjectRef>) {
        objects.extend(self.rows.changes().map(|(_, key, ..)| (self.origin)(key)));
    }
}
