use std::any::Any;
use std::collections::BTreeMap;

use crate::node::NodeId;
use crate::table::{Input, Key, Value};

/// Who wrote a row: one source, or one part of a source that is listed on its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Shard(pub u32);

pub(crate) enum Op<K, V> {
    Upsert(Shard, K, V),
    Remove(Shard, K),
    Replace(Shard, Vec<(K, V)>),
}

pub(crate) struct Ops<K, V>(pub(crate) Vec<Op<K, V>>);

/// Row changes that become visible together or not at all.
#[derive(Default)]
pub struct Txn {
    pub(crate) ops: BTreeMap<NodeId, Box<dyn Any + Send>>,
}

impl Txn {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub fn upsert<K: Key, V: Value>(&mut self, input: &Input<K, V>, shard: Shard, key: K, value: V) {
        self.push(input, Op::Upsert(shard, key, value));
    }

    pub fn remove<K: Key, V: Value>(&mut self, input: &Input<K, V>, shard: Shard, key: K) {
        self.push(input, Op::Remove(shard, key));
    }

    /// Makes the shard exactly these rows: how a relist arrives, without a moment of emptiness.
    pub fn replace<K: Key, V: Value>(&mut self, input: &Input<K, V>, shard: Shard, rows: Vec<(K, V)>) {
        self.push(input, Op::Replace(shard, rows));
    }

    fn push<K: Key, V: Value>(&mut self, input: &Input<K, V>, op: Op<K, V>) {
        let ops = self.ops.entry(input.id).or_insert_with(|| Box::new(Ops::<K, V>(Vec::new())));
        let ops: &mut Ops<K, V> = ops.downcast_mut().expect("operations have the types of their input");
        ops.0.push(op);
    }
}
