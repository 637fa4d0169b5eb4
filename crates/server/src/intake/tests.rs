//! The contract of stores on two of them together, as the engine takes them in.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_incr::{Shard, Txn};
use pilot_model::{Object, ObjectKey};
use pilot_pipeline::Pipeline;
use pilot_source::{Batch, Event, Running, Sink, Source};
use pilot_source_store::contract::{StoreRig, check_store, check_store_load};
use pilot_source_store::{Monitor, Snapshots, StoreOptions};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Intake;

type Documents = BTreeMap<String, Vec<u8>>;

/// One of the two stores.
#[derive(Clone, Default)]
struct Part(Arc<Mutex<Documents>>);

impl Snapshots for Part {
    async fn take(&mut self) -> Result<Option<Vec<(String, Vec<u8>)>>, String> {
        Ok(Some(self.0.lock().clone().into_iter().collect()))
    }
}

/// Both, taken in like the sources of a server.
struct Aggregate([Part; 2]);

impl Source for Aggregate {
    fn name(&self) -> Name {
        Name::new("both")
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(async move {
            let (sender, mut batches) = mpsc::channel(8);
            let mut running = JoinSet::new();
            for (name, part) in ["near", "far"].into_iter().zip(self.0) {
                let options = StoreOptions::new(name, ReadOptions::default());
                let monitor = Monitor::new(options, part, Duration::from_millis(5));
                let (own, mut told) = mpsc::channel(8);
                running.spawn(Box::new(monitor).run(own));
                let (sender, shard) = (sender.clone(), Shard(if name == "near" { 1 } else { 2 }));
                running.spawn(async move {
                    while let Some(batch) = told.recv().await {
                        if sender.send((shard, Name::new(name), batch)).await.is_err() {
                            return;
                        }
                    }
                });
            }
            let mut taken = Taken::default();
            loop {
                let (shard, name, batch) = tokio::select! {
                    Some(told) = batches.recv() => told,
                    () = sink.closed() => return,
                };
                let batch = taken.take(shard, &name, batch);
                if !batch.is_empty() && sink.send(batch).await.is_err() {
                    return;
                }
            }
        })
    }
}

/// What the tables have by now.
#[derive(Default)]
struct Taken {
    intake: Intake,
    pipeline: Pipeline,
    complete: BTreeSet<Shard>,
    /// All that anybody ever said.
    said: BTreeMap<ObjectKey, Vec<Object>>,
    told: BTreeMap<ObjectKey, Object>,
    begun: bool,
}

impl Taken {
    fn take(&mut self, shard: Shard, name: &Name, batch: Batch) -> Batch {
        for event in &batch.events {
            if let Event::Apply(object) | Event::InitApply(object) = event {
                self.said.entry(object.key()).or_default().push(object.clone());
            }
        }
        let mut txn = Txn::new();
        let inputs = self.pipeline.inputs();
        let taken = self.intake.take((shard, name), batch.events, inputs, &mut txn);
        self.pipeline.commit(txn);
        self.complete.extend(taken.is_complete.then_some(shard));
        let mut out = Batch { events: Vec::new(), issues: batch.issues };
        out.issues.extend(taken.overlaps);
        if self.complete.len() == 2 {
            self.differences(&mut out.events);
        }
        out
    }

    fn differences(&mut self, events: &mut Vec<Event>) {
        let is_first = !std::mem::replace(&mut self.begun, true);
        events.extend(is_first.then_some(Event::Init));
        for (key, said) in &self.said {
            let now = said.iter().find(|object| self.pipeline.says(object)).cloned();
            if self.told.get(key) == now.as_ref() {
                continue;
            }
            match now {
                None => {
                    self.told.remove(key);
                    events.push(Event::Delete(key.clone()));
                }
                Some(object) => {
                    self.told.insert(key.clone(), object.clone());
                    events.push(if is_first { Event::InitApply(object) } else { Event::Apply(object) });
                }
            }
        }
        events.extend(is_first.then_some(Event::InitDone));
    }
}

struct Two {
    parts: [Part; 2],
    /// Which of them has the first document, and every second one of the others.
    first: usize,
}

impl Two {
    /// Documents that say the same as the first one are in the other store.
    fn part(&self, key: &str) -> &Part {
        let other = usize::from(key != "first" && key.len() % 2 == 1);
        &self.parts[(self.first + other) % 2]
    }
}

impl StoreRig for Two {
    fn about(&self) -> &'static str {
        "two stores together"
    }

    fn source(&self, _: SocketAddr) -> Box<dyn Source> {
        Box::new(Aggregate(self.parts.clone()))
    }

    fn server(&self) -> Option<SocketAddr> {
        None
    }

    async fn put(&mut self, key: &str, bytes: &[u8]) -> bool {
        self.part(key).0.lock().insert(key.to_owned(), bytes.to_vec());
        true
    }

    async fn delete(&mut self, key: &str) {
        self.part(key).0.lock().remove(key);
    }

    async fn list(&mut self) -> BTreeSet<String> {
        self.parts.iter().flat_map(|part| part.0.lock().keys().cloned().collect::<Vec<_>>()).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_together_keep_the_contract_of_stores() {
    for first in [0, 1] {
        check_store(&mut Two { parts: Default::default(), first }).await;
    }
    check_store_load(&mut Two { parts: Default::default(), first: 0 }).await;
}
