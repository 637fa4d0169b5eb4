use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::node::NodeId;

/// What rows are found by. The order makes every walk the same in every process.
pub trait Key: Clone + Ord + Hash + Debug + Send + Sync + 'static {}
impl<T: Clone + Ord + Hash + Debug + Send + Sync + 'static> Key for T {}

/// What a row holds. Equality is what stops a change from spreading, so it must be exact.
pub trait Value: PartialEq + Send + Sync + 'static {}
impl<T: PartialEq + Send + Sync + 'static> Value for T {}

/// A handle to a table of the graph. It holds no rows; it is the right to ask a [`Reader`](crate::Reader) for them.
pub struct Table<K, V> {
    pub(crate) id: NodeId,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V> Table<K, V> {
    pub(crate) fn new(id: NodeId) -> Self {
        Self { id, types: PhantomData }
    }
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Table<K, V> {}

/// A table that transactions write. Every other table is derived.
pub struct Input<K, V>(pub(crate) Table<K, V>);

impl<K, V> Clone for Input<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for Input<K, V> {}

impl<K, V> Deref for Input<K, V> {
    type Target = Table<K, V>;
    fn deref(&self) -> &Table<K, V> {
        &self.0
    }
}
