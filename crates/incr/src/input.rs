use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::ObjectRef;

use crate::node::{Cell, Lookback, Node, Origin, RowTable, Step, Stopwatch};
use crate::rows::Rows;
use crate::table::{Key, Value};
use crate::txn::{Op, Ops, Shard};

/// A table that transactions write. Every row belongs to a shard; of several that write it, to the lowest one, whoever came
/// first.
pub(crate) struct InputNode<K, V> {
    rows: Rows<K, V>,
    owners: Vec<Option<Shard>>,
    /// What others say of a row, by its slot. It counts when the owner has gone silent.
    others: BTreeMap<u32, BTreeMap<Shard, Arc<V>>>,
    /// When each row was last written.
    changed: Vec<u64>,
    origin: fn(&K) -> ObjectRef,
}

impl<K: Key, V: Value> InputNode<K, V> {
    pub(crate) fn new(name: &'static str, origin: fn(&K) -> ObjectRef) -> Self {
        let (owners, others, changed) = Default::default();
        Self { rows: Rows::new(name), owners, others, changed, origin }
    }

    fn upsert(&mut self, (shard, epoch): (Shard, u64), key: &K, value: V) {
        let slot = self.rows.slot(key);
        let at = slot as usize;
        if self.owners.len() <= at {
            self.owners.resize(at + 1, None);
            self.changed.resize(at + 1, 0);
        }
        let value = Arc::new(value);
        match self.owners[at] {
            None => self.rows.want(slot),
            Some(owner) if owner < shard => {
                self.others.entry(slot).or_default().insert(shard, value);
                return;
            }
            Some(owner) if owner > shard => {
                let before = self.rows.value(slot).cloned();
                self.others.entry(slot).or_default().extend(before.map(|before| (owner, before)));
            }
            Some(_) => {}
        }
        self.owners[at] = Some(shard);
        self.set((slot, epoch), value);
    }

    fn set(&mut self, (slot, epoch): (u32, u64), value: Arc<V>) {
        let is_new = self.rows.value(slot).is_none_or(|old| *old != value);
        if is_new {
            self.changed[slot as usize] = epoch;
        }
        self.rows.set(slot, Some(value));
    }

    /// A source that never had a row cannot empty what another one wrote.
    fn remove(&mut self, (shard, epoch): (Shard, u64), key: &K) {
        let Some(slot) = self.rows.find(key) else { return };
        let mut others = self.others.remove(&slot).unwrap_or_default();
        if self.owners.get(slot as usize).copied().flatten() != Some(shard) {
            others.remove(&shard);
        } else if let Some((next, value)) = others.pop_first() {
            self.owners[slot as usize] = Some(next);
            self.set((slot, epoch), value);
        } else {
            self.owners[slot as usize] = None;
            self.rows.unwant(slot);
            self.rows.set(slot, None);
        }
        if !others.is_empty() {
            self.others.insert(slot, others);
        }
    }

    /// The shard becomes exactly `rows`. A walk over the table: a relist costs what the listing cost.
    fn replace(&mut self, (shard, epoch): (Shard, u64), rows: Vec<(K, V)>) {
        let keep: pilot_base::FastSet<&K> = rows.iter().map(|(k, _)| k).collect();
        let owned = |slot: u32| self.owners.get(slot as usize).copied().flatten() == Some(shard);
        let own = self.rows.slots().filter(|(slot, _)| owned(*slot)).map(|(_, key)| key);
        let others = self.others.iter().filter(|(_, others)| others.contains_key(&shard));
        let said = own.chain(others.map(|(slot, _)| self.rows.key(*slot)));
        let gone: Vec<K> = said.filter(|key| !keep.contains(key)).cloned().collect();
        for key in gone {
            self.remove((shard, epoch), &key);
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
                Op::Remove(shard, key) => self.remove((shard, epoch), &key),
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
