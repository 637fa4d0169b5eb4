mod stock;

use std::collections::{BTreeMap, BTreeSet};

use pilot_base::{Issue, Name, Words};
use pilot_incr::{Shard, Txn};
use pilot_model::{Object, ObjectKey};
use pilot_pipeline::Inputs;
use pilot_source::Event;

pub(crate) use self::stock::Amount;
use self::stock::Stock;
use crate::claims::Claims;

/// Turns what sources tell into row changes.
#[derive(Default)]
pub(crate) struct Intake {
    /// Sources that are telling everything they have, and what they told so far.
    beginning: BTreeMap<Shard, Vec<Object>>,
    /// What the objects of all sources have in common.
    words: Words,
    claims: Claims,
    stock: Stock,
}

/// The shard of rows that no source writes.
pub(crate) const OWN_SHARD: Shard = Shard(0);

/// What came of what a source told.
#[derive(Default)]
pub(crate) struct Taken {
    /// Has the source said everything it had?
    pub(crate) is_complete: bool,
    /// What is wrong now with objects that several sources have, or had.
    pub(crate) overlaps: Vec<(Name, Vec<Issue>)>,
}

impl Intake {
    pub(crate) fn take(
        &mut self,
        (shard, name): (Shard, &Name),
        events: Vec<Event>,
        inputs: Inputs,
        txn: &mut Txn,
    ) -> Taken {
        self.claims.name(shard, name);
        let mut taken = Taken::default();
        let mut step = Step { shard, inputs, txn, contested: BTreeSet::new() };
        for event in events {
            match event {
                Event::Init => {
                    self.beginning.insert(shard, Vec::new());
                }
                Event::InitApply(mut object) => {
                    object.share(&mut self.words);
                    self.beginning.entry(shard).or_default().push(object);
                }
                Event::InitDone => {
                    self.replace(&mut step);
                    taken.is_complete = true;
                }
                Event::Apply(mut object) => {
                    object.share(&mut self.words);
                    self.stock.put(shard, &object);
                    self.claim(&object, &mut step);
                    inputs.upsert(step.txn, shard, object);
                }
                Event::Delete(key) => {
                    self.stock.remove(shard, &key);
                    self.release(&key, &mut step);
                    inputs.remove(step.txn, shard, key);
                }
                Event::Mesh(mesh) => step.txn.upsert(&inputs.mesh, OWN_SHARD, (), *mesh),
                Event::Networks(networks) => step.txn.upsert(&inputs.networks, OWN_SHARD, (), *networks),
            }
        }
        let contested = step.contested.iter();
        taken.overlaps = contested.map(|key| (Claims::place(key), self.claims.issues(key))).collect();
        taken
    }

    /// How many rules a source has that count.
    pub(crate) fn count(&self, shard: Shard) -> usize {
        self.claims.count(shard)
    }

    /// How many services and endpoints it has told.
    pub(crate) fn amount(&self, shard: Shard) -> Amount {
        self.stock.of(shard)
    }

    /// The source whose word about an object counts, where several could have it.
    pub(crate) fn owner(&self, key: &ObjectKey) -> Option<&Name> {
        self.claims.owner(key)
    }

    /// The source has told everything: what it did not name is gone.
    fn replace(&mut self, step: &mut Step<'_>) {
        let objects = self.beginning.remove(&step.shard).unwrap_or_default();
        let mut gone: BTreeSet<ObjectKey> = self.claims.of(step.shard).into_iter().collect();
        self.stock.clear(step.shard);
        for object in &objects {
            gone.remove(&object.key());
            self.stock.put(step.shard, object);
            self.claim(object, step);
        }
        step.inputs.replace(step.txn, step.shard, objects);
        for key in gone {
            self.release(&key, step);
        }
    }

    fn claim(&mut self, object: &Object, step: &mut Step<'_>) {
        if self.claims.claim(step.shard, object) {
            step.contested.insert(object.key());
        }
    }

    fn release(&mut self, key: &ObjectKey, step: &mut Step<'_>) {
        if self.claims.release(step.shard, key) {
            step.contested.insert(key.clone());
        }
    }
}

/// What one source tells at once.
struct Step<'a> {
    shard: Shard,
    inputs: Inputs,
    txn: &'a mut Txn,
    /// Objects that several sources have, or had until now.
    contested: BTreeSet<ObjectKey>,
}

#[cfg(test)]
mod tests;
