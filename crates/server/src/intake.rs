use std::collections::BTreeMap;

use pilot_base::Words;
use pilot_incr::{Shard, Txn};
use pilot_model::Object;
use pilot_pipeline::Inputs;
use pilot_source::Event;

/// Turns what sources tell into row changes.
#[derive(Default)]
pub(crate) struct Intake {
    /// Sources that are telling everything they have, and what they told so far.
    beginning: BTreeMap<Shard, Vec<Object>>,
    /// What the objects of all sources have in common.
    words: Words,
}

/// The shard of rows that no source writes.
pub(crate) const OWN_SHARD: Shard = Shard(0);

impl Intake {
    /// Tells whether the source has said everything it had.
    pub(crate) fn take(&mut self, shard: Shard, events: Vec<Event>, inputs: Inputs, txn: &mut Txn) -> bool {
        let mut is_complete = false;
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
                    let objects = self.beginning.remove(&shard).unwrap_or_default();
                    inputs.replace(txn, shard, objects);
                    is_complete = true;
                }
                Event::Apply(mut object) => {
                    object.share(&mut self.words);
                    inputs.upsert(txn, shard, object);
                }
                Event::Delete(key) => inputs.remove(txn, shard, key),
                Event::Mesh(mesh) => txn.upsert(&inputs.mesh, OWN_SHARD, (), *mesh),
                Event::Networks(networks) => txn.upsert(&inputs.networks, OWN_SHARD, (), *networks),
            }
        }
        is_complete
    }
}
