use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::node::{Cell, Lookback, Node, Reads, RowTable, Step, Stopwatch};
use crate::parallel::{Run, on_all_cores};
use crate::reader::Reader;
use crate::rows::Rows;
use crate::table::{Key, Value};

/// From this many rows on a step is worth more than one thread.
const PARALLEL: usize = 256;
/// So many rows are timed together on other threads: enough that looking at the time costs little beside them, and few
/// enough that no thread is left with a long run.
const TIMED_TOGETHER: usize = 8;

pub(crate) type Compute<K, V> = Box<dyn Fn(&K, &Reader<'_>) -> Option<V> + Send + Sync>;
/// Calls back for every key that came (`true`) or went (`false`) in the driver during this epoch.
pub(crate) type KeyChanges<K> = Box<dyn Fn(&[Box<dyn Node>], &mut dyn FnMut(&K, bool)) + Send + Sync>;
/// Finds the driver's row for a key.
pub(crate) type DriverRow<K> = Box<dyn Fn(&[Box<dyn Node>], &K) -> Option<Cell> + Send + Sync>;

/// Where the keys of a map come from.
pub(crate) struct Driver<K> {
    pub(crate) changes: KeyChanges<K>,
    pub(crate) row: DriverRow<K>,
}

/// A table with one row per key of its driver, computed by a pure function.
pub(crate) struct MapNode<K, V> {
    rows: Rows<K, V>,
    driver: Driver<K>,
    compute: Compute<K, V>,
    faulty: pilot_base::FastSet<u32>,
    /// Do rows only put together what they read?
    stacks: bool,
}

/// Rows of one run, with what they read.
type Computed<V> = Vec<(u32, Outcome<V>, Reads)>;

enum Outcome<V> {
    Same,
    New(Option<Arc<V>>),
    Panicked(String),
}

impl<K: Key, V: Value> MapNode<K, V> {
    pub(crate) fn new(name: &'static str, driver: Driver<K>, compute: Compute<K, V>) -> Self {
        Self { rows: Rows::new(name), driver, compute, faulty: pilot_base::FastSet::default(), stacks: false }
    }

    pub(crate) fn that_stacks(self) -> Self {
        Self { stacks: true, ..self }
    }

    fn follow_driver(&mut self, before: &[Box<dyn Node>]) {
        let rows = &mut self.rows;
        (self.driver.changes)(before, &mut |key, came| {
            let slot = rows.slot(key);
            if came {
                rows.want(slot);
            } else {
                rows.unwant(slot);
            }
            rows.mark_dirty(slot);
        });
    }

    fn compute(&self, slot: u32, before: &[Box<dyn Node>]) -> (u32, Outcome<V>, Reads) {
        let reader = Reader::new(before);
        let key = self.rows.key(slot);
        let result = catch_unwind(AssertUnwindSafe(|| (self.compute)(key, &reader)));
        let outcome = match result {
            Ok(value) if value.as_ref() == self.rows.value(slot).map(|v| &**v) => Outcome::Same,
            Ok(value) => Outcome::New(value.map(Arc::new)),
            Err(payload) => Outcome::Panicked(panic_message(payload.as_ref())),
        };
        (slot, outcome, Reads { slot, cells: reader.into_reads() })
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}

impl<K: Key, V: Value> Node for MapNode<K, V> {
    fn rows(&self) -> &dyn Any {
        &self.rows
    }

    fn table(&self) -> &dyn RowTable {
        &self.rows
    }

    fn table_mut(&mut self) -> &mut dyn RowTable {
        &mut self.rows
    }

    fn sources(&self, nodes: &[Box<dyn Node>], slots: &[u32], lookback: Lookback) -> Vec<Cell> {
        let of = |slot: &u32| {
            let read = self.rows.deps(*slot).iter().map(|dep| dep.cell);
            read.chain((self.driver.row)(nodes, self.rows.key(*slot)))
        };
        let mut cells: Vec<Cell> = slots.iter().flat_map(of).collect();
        if lookback == Lookback::Changed {
            cells.retain(|cell| nodes[usize::from(cell.node)].table().changed(cell.slot));
        }
        cells
    }

    fn is_stack(&self) -> bool {
        self.stacks
    }

    fn step(&mut self, before: &[Box<dyn Node>], stopwatch: Stopwatch) -> Step {
        self.follow_driver(before);
        let dirty = self.rows.take_dirty();
        let (wanted, gone): (Vec<u32>, Vec<u32>) =
            dirty.into_iter().partition(|&slot| self.rows.wanted(slot));
        let mut step = Step { computed: wanted.len(), ..Step::default() };
        for slot in gone {
            self.rows.set(slot, None);
            if self.faulty.remove(&slot) {
                step.recovered.push(slot);
            }
        }
        let computed: Vec<_> = if wanted.len() < PARALLEL {
            wanted.iter().map(|&slot| self.compute(slot, before)).collect()
        } else {
            let chunks: Vec<&[u32]> = wanted.chunks(TIMED_TOGETHER).collect();
            let timed = |at: usize| {
                let began = stopwatch();
                let rows: Computed<V> = chunks[at].iter().map(|&slot| self.compute(slot, before)).collect();
                Run { rows: Box::new(rows), spent: stopwatch().saturating_sub(began) }
            };
            let runs = on_all_cores(chunks.len(), &timed);
            step.elsewhere = runs.iter().map(|run| run.spent).sum();
            let rows = |run: Run| *run.rows.downcast::<Computed<V>>().expect("a run has rows of its table");
            runs.into_iter().flat_map(rows).collect()
        };
        for (slot, outcome, reads) in computed {
            step.most_reads = step.most_reads.max(reads.cells.len());
            step.reads.push(reads);
            match outcome {
                Outcome::Panicked(message) => {
                    self.faulty.insert(slot);
                    step.panics.push((slot, message));
                    continue;
                }
                Outcome::Same => (),
                Outcome::New(value) => {
                    self.rows.set(slot, value);
                }
            }
            if self.faulty.remove(&slot) {
                step.recovered.push(slot);
            }
        }
        step
    }
}
