use std::collections::{BTreeMap, BTreeSet};

use pilot_base::{Issue, Name, Words};
use pilot_incr::{Shard, Txn};
use pilot_model::{Object, ObjectKey};
use pilot_pipeline::Inputs;
use pilot_source::Event;

use crate::claims::{Claims, Release};

/// Turns what sources tell into row changes.
#[derive(Default)]
pub(crate) struct Intake {
    /// Sources that are telling everything they have, and what they told so far.
    beginning: BTreeMap<Shard, Vec<Object>>,
    /// What the objects of all sources have in common.
    words: Words,
    claims: Claims,
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
                    if let Some(object) = self.claim(object, &mut step) {
                        inputs.upsert(step.txn, shard, object);
                    }
                }
                Event::Delete(key) => self.release(key, &mut step),
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

    /// The source has told everything: what it did not name is gone.
    fn replace(&mut self, step: &mut Step<'_>) {
        let objects = self.beginning.remove(&step.shard).unwrap_or_default();
        let mut gone: BTreeSet<ObjectKey> = self.claims.of(step.shard).into_iter().collect();
        let mut own = Vec::with_capacity(objects.len());
        for object in objects {
            gone.remove(&object.key());
            own.extend(self.claim(object, step));
        }
        step.inputs.replace(step.txn, step.shard, own);
        for key in gone {
            self.release(key, step);
        }
    }

    fn claim(&mut self, object: Object, step: &mut Step<'_>) -> Option<Object> {
        let key = object.key();
        let claimed = self.claims.claim(step.shard, object);
        if claimed.is_none() {
            step.contested.insert(key);
        }
        claimed
    }

    fn release(&mut self, key: ObjectKey, step: &mut Step<'_>) {
        match self.claims.release(step.shard, &key) {
            Release::Nothing => _ = step.contested.insert(key),
            Release::Gone => step.inputs.remove(step.txn, step.shard, key),
            Release::Next(next, object) => {
                step.inputs.upsert(step.txn, next, *object);
                step.contested.insert(key);
            }
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
