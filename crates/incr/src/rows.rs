use std::hash::BuildHasher as _;
use std::num::NonZeroU32;
use std::sync::Arc;

use hashbrown::HashTable;
use parking_lot::Mutex;
use pilot_base::FastMap;
use rustc_hash::FxBuildHasher;
use thin_vec::ThinVec;

use crate::blocks::Blocks;
use crate::node::{Cell, Dep, MISS, ReadBy, RowTable};
use crate::table::{Key, Value};

/// The rows of one node.
///
/// A row exists while somebody wants it (an input has a value for it, a driver has its key, a group has members) or
/// reads it. A row that is only read is the memory of a miss: it has no value, and its readers learn when it gets one.
pub(crate) struct Rows<K, V> {
    name: &'static str,
    /// Slots by their keys, which stand in the rows.
    index: HashTable<u32>,
    rows: Blocks<Row<K, V>>,
    free: Vec<u32>,
    /// How many rows have a value.
    filled: usize,
    /// What was set in this epoch. Some of it may be back at what it was.
    changes: Vec<Change<V>>,
    dirty: Vec<u32>,
    /// Rows that may be free at the end of the epoch.
    suspects: Vec<u32>,
    misses: Mutex<Misses<K>>,
}

/// There are millions of these, and most have no readers: so lists are thin, and what matters only for an epoch stands
/// elsewhere.
struct Row<K, V> {
    key: Option<K>,
    value: Option<Arc<V>>,
    readers: ThinVec<ReadBy>,
    deps: ThinVec<Dep>,
    wanted: u32,
    /// Where it stands among `changes`, counted from one.
    change: Option<NonZeroU32>,
    dirty: bool,
}

struct Change<V> {
    slot: u32,
    /// The value at the start of the epoch, if it differs.
    old: Option<Option<Arc<V>>>,
}

/// Room for so many misses is kept from one step to the next.
const KEPT: usize = 1_024;

struct Misses<K> {
    numbers: FastMap<K, u32>,
    keys: Vec<K>,
}

impl<K: Key, V: Value> Rows<K, V> {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            index: HashTable::new(),
            rows: Blocks::default(),
            free: Vec::new(),
            filled: 0,
            changes: Vec::new(),
            dirty: Vec::new(),
            suspects: Vec::new(),
            misses: Mutex::new(Misses { numbers: FastMap::default(), keys: Vec::new() }),
        }
    }

    pub(crate) fn find(&self, key: &K) -> Option<u32> {
        self.index.find(hash(key), |&slot| self.rows[slot].key.as_ref() == Some(key)).copied()
    }

    pub(crate) fn slot(&mut self, key: &K) -> u32 {
        if let Some(slot) = self.find(key) {
            return slot;
        }
        let row = Row {
            key: Some(key.clone()),
            value: None,
            readers: ThinVec::new(),
            deps: ThinVec::new(),
            wanted: 0,
            change: None,
            dirty: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.rows[slot] = row;
                slot
            }
            None => self.rows.push(row),
        };
        let rows = &self.rows;
        self.index.insert_unique(hash(key), slot, |&slot| rows[slot].key.as_ref().map_or(0, hash));
        slot
    }

    pub(crate) fn key(&self, slot: u32) -> &K {
        self.rows[slot].key.as_ref().expect("a slot in use has a key")
    }

    pub(crate) fn value(&self, slot: u32) -> Option<&Arc<V>> {
        self.rows[slot].value.as_ref()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&Arc<V>> {
        self.find(key).and_then(|slot| self.value(slot))
    }

    /// Notes a read of a key that has no row. Called from many threads while nobody writes.
    pub(crate) fn miss(&self, key: &K) -> u32 {
        let mut misses = self.misses.lock();
        let next = u32::try_from(misses.keys.len()).expect("fewer than 2^31 misses in a step");
        let number = *misses.numbers.entry(key.clone()).or_insert(next);
        if number == next {
            misses.keys.push(key.clone());
        }
        number | MISS
    }

    /// Sets a value; tells whether that is a change.
    pub(crate) fn set(&mut self, slot: u32, value: Option<Arc<V>>) -> bool {
        let row = &mut self.rows[slot];
        if row.value == value {
            return false;
        }
        let old = std::mem::replace(&mut row.value, value);
        self.filled += usize::from(row.value.is_some());
        self.filled -= usize::from(old.is_some());
        match row.change.and_then(|at| self.changes.get_mut(at.get() as usize - 1)) {
            None => {
                self.changes.push(Change { slot, old: Some(old) });
                let count = u32::try_from(self.changes.len()).expect("fewer than 2^31 changes in an epoch");
                row.change = NonZeroU32::new(count);
            }
            Some(change) => match &change.old {
                None => change.old = Some(old),
                // Back to what it was: no longer a change.
                Some(start) if *start == row.value => change.old = None,
                Some(_) => (),
            },
        }
        if row.value.is_none() {
            self.suspects.push(slot);
        }
        true
    }

    pub(crate) fn want(&mut self, slot: u32) {
        self.rows[slot].wanted += 1;
    }

    pub(crate) fn unwant(&mut self, slot: u32) {
        let row = &mut self.rows[slot];
        row.wanted = row.wanted.saturating_sub(1);
        if row.wanted == 0 {
            self.suspects.push(slot);
        }
    }

    pub(crate) fn wanted(&self, slot: u32) -> bool {
        self.rows[slot].wanted > 0
    }

    pub(crate) fn take_dirty(&mut self) -> Vec<u32> {
        let mut dirty = std::mem::take(&mut self.dirty);
        for &slot in &dirty {
            self.rows[slot].dirty = false;
        }
        dirty.sort_unstable();
        dirty
    }

    /// Every row that changed in this epoch: key, value before, value now.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (u32, &K, Option<&Arc<V>>, Option<&Arc<V>>)> {
        self.changes.iter().filter_map(|change| {
            let row = &self.rows[change.slot];
            let old = change.old.as_ref()?;
            Some((change.slot, row.key.as_ref()?, old.as_ref(), row.value.as_ref()))
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &Arc<V>)> {
        self.rows.iter().filter_map(|row| Some((row.key.as_ref()?, row.value.as_ref()?)))
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = (u32, &K)> {
        (0u32..).zip(self.rows.iter()).filter_map(|(slot, row)| Some((slot, row.key.as_ref()?)))
    }
}

impl<K: Key, V: Value> RowTable for Rows<K, V> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn len(&self) -> usize {
        self.index.len()
    }

    fn filled(&self) -> usize {
        self.filled
    }

    fn mark_dirty(&mut self, slot: u32) {
        let row = &mut self.rows[slot];
        if !row.dirty {
            row.dirty = true;
            self.dirty.push(slot);
        }
    }

    fn settle_misses(&mut self) -> Vec<u32> {
        let keys = {
            let misses = self.misses.get_mut();
            // A start misses very much at once, and nothing does afterwards.
            if misses.keys.len() > KEPT {
                misses.numbers = FastMap::default();
            } else {
                misses.numbers.clear();
            }
            std::mem::take(&mut misses.keys)
        };
        keys.iter()
            .map(|key| {
                let slot = self.slot(key);
                self.suspects.push(slot);
                slot
            })
            .collect()
    }

    fn add_reader(&mut self, slot: u32, by: ReadBy) -> u32 {
        let readers = &mut self.rows[slot].readers;
        // Most rows that are read are read by one.
        if readers.is_empty() {
            readers.reserve_exact(1);
        }
        readers.push(by);
        u32::try_from(readers.len() - 1).expect("fewer than 2^32 readers of a row")
    }

    fn remove_reader(&mut self, slot: u32, at: u32) -> Option<ReadBy> {
        let readers = &mut self.rows[slot].readers;
        readers.swap_remove(at as usize);
        if readers.is_empty() {
            readers.shrink_to_fit();
            self.suspects.push(slot);
        }
        self.rows[slot].readers.get(at as usize).copied()
    }

    fn deps(&self, slot: u32) -> &[Dep] {
        &self.rows[slot].deps
    }

    fn readers(&self, slot: u32) -> Vec<Cell> {
        self.rows[slot].readers.iter().map(|by| by.reader).collect()
    }

    fn set_deps(&mut self, slot: u32, deps: ThinVec<Dep>) -> ThinVec<Dep> {
        std::mem::replace(&mut self.rows[slot].deps, deps)
    }

    fn set_dep_place(&mut self, slot: u32, dep: u32, at: u32) {
        self.rows[slot].deps[dep as usize].at = at;
    }

    fn changed(&self, slot: u32) -> bool {
        let change = self.rows[slot].change.and_then(|at| self.changes.get(at.get() as usize - 1));
        change.is_some_and(|change| change.old.is_some())
    }

    fn readers_of_changed(&self) -> Vec<Cell> {
        let changed = self.changes.iter().filter(|change| change.old.is_some());
        changed.flat_map(|change| self.rows[change.slot].readers.iter().map(|by| by.reader)).collect()
    }

    fn vacated(&self) -> Vec<u32> {
        let vacant = |slot: &u32| {
            let row = &self.rows[*slot];
            row.key.is_some() && row.wanted == 0 && !row.deps.is_empty()
        };
        self.suspects.iter().copied().filter(vacant).collect()
    }

    fn end_epoch(&mut self) {
        for change in std::mem::take(&mut self.changes) {
            self.rows[change.slot].change = None;
        }
        for slot in std::mem::take(&mut self.suspects) {
            let row = &mut self.rows[slot];
            let unused =
                row.value.is_none() && row.wanted == 0 && row.readers.is_empty() && row.deps.is_empty();
            if unused
                && !row.dirty
                && let Some(key) = row.key.take()
            {
                if let Ok(entry) = self.index.find_entry(hash(&key), |&other| other == slot) {
                    entry.remove();
                }
                self.free.push(slot);
            }
        }
    }

    fn show_key(&self, slot: u32) -> String {
        format!("{:?}", self.key(slot))
    }
}

fn hash<K: Key>(key: &K) -> u64 {
    FxBuildHasher.hash_one(key)
}
