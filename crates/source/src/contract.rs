//! The checks that every adapter must pass, on its real backend.
//!
//! An adapter supplies a [`Rig`] that can put, change and remove things in the backend; [`check`] drives it and follows
//! the events.

mod process;
mod registry;
mod relay;

pub use process::{Server, free_port, wanted};
pub use registry::{
    Condition, GARBLED, Registered, RegistryRig, Started, check_bad, check_load, check_registry, garbled,
    load_wanted, resident,
};
pub use relay::{Relay, Road};

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use pilot_base::{Issue, Name};
use pilot_model::{Object, ObjectKey};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::{Batch, CHANNEL_CAPACITY, Event, Source};

/// A backend under the control of a test. A thing is something that the adapter turns into one object; its value can be
/// read back from that object.
pub trait Rig {
    fn source(&self) -> Box<dyn Source>;
    fn put(&mut self, thing: &str, value: u32) -> impl Future<Output = ()>;
    fn remove(&mut self, thing: &str) -> impl Future<Output = ()>;
    /// Makes the backend unreachable or unreadable, if there is a way to do that.
    fn lose(&mut self) -> impl Future<Output = bool>;
    fn find(&mut self) -> impl Future<Output = ()>;
    /// Which thing an object is, and what value it has.
    fn read(&self, object: &Object) -> Option<(String, u32)>;
}

/// What a source has told, put together; a broken rule of the contract panics.
#[derive(Default)]
pub struct Mirror {
    objects: BTreeMap<ObjectKey, Object>,
    /// What has been told since `Init`.
    init: Option<BTreeMap<ObjectKey, Object>>,
    pub ready: bool,
    pub issues: BTreeMap<Name, Vec<Issue>>,
    /// How many objects were told to be different or gone, since somebody last counted.
    pub rows: usize,
    /// How often something was reported to be wrong.
    pub reports: usize,
}

impl Mirror {
    pub fn apply(&mut self, batch: Batch) {
        for event in batch.events {
            match event {
                Event::Init => {
                    assert!(self.init.is_none(), "Init within Init");
                    self.init = Some(BTreeMap::new());
                }
                Event::InitApply(object) => {
                    let init = self.init.as_mut().expect("InitApply stands between Init and InitDone");
                    init.insert(object.key(), object);
                }
                Event::InitDone => {
                    self.objects = self.init.take().expect("InitDone follows Init");
                    self.ready = true;
                }
                Event::Apply(object) => {
                    assert!(self.ready && self.init.is_none(), "Apply before InitDone");
                    self.objects.insert(object.key(), object);
                    self.rows += 1;
                }
                Event::Delete(key) => {
                    assert!(self.ready && self.init.is_none(), "Delete before InitDone");
                    assert!(self.objects.remove(&key).is_some(), "Delete of what was never told: {key:?}");
                    self.rows += 1;
                }
                Event::Mesh(_) | Event::Networks(_) => {}
            }
        }
        for (place, issues) in batch.issues {
            if issues.is_empty() {
                self.issues.remove(&place);
            } else {
                self.issues.insert(place, issues);
                self.reports += 1;
            }
        }
    }

    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }
}

/// A source that runs, and what it told.
pub struct Follower {
    batches: mpsc::Receiver<Batch>,
    pub mirror: Mirror,
    running: tokio::task::JoinSet<()>,
}

/// Longer than any backend takes to tell a change, short enough to end a test that will never pass.
const PATIENCE: Duration = Duration::from_secs(90);

impl Follower {
    pub fn start(source: Box<dyn Source>) -> Self {
        let (sink, batches) = mpsc::channel(CHANNEL_CAPACITY);
        let mut running = tokio::task::JoinSet::new();
        running.spawn(source.run(sink));
        Self { batches, mirror: Mirror::default(), running }
    }

    /// Follows the source until something holds.
    pub async fn until(&mut self, what: &str, holds: impl Fn(&Mirror) -> bool) {
        let waiting = async {
            while !holds(&self.mirror) {
                let batch = self.batches.recv().await.expect("a source runs until its sink closes");
                self.mirror.apply(batch);
            }
        };
        let told = timeout(PATIENCE, waiting).await.is_ok();
        let Mirror { objects, ready, issues, .. } = &self.mirror;
        assert!(
            told,
            "the source did not tell: {what}; ready: {ready}, {} objects, {issues:?}",
            objects.len()
        );
    }

    /// Takes in whatever comes for a while.
    pub async fn rest(&mut self, span: Duration) {
        let listening = async {
            while let Some(batch) = self.batches.recv().await {
                self.mirror.apply(batch);
            }
        };
        // It is over when the time is, and not before.
        let _over = timeout(span, listening).await;
    }

    /// A source ends when nobody listens any more.
    pub async fn stop(mut self) {
        drop(self.batches);
        let ended = timeout(PATIENCE, self.running.join_next()).await;
        assert!(ended.is_ok(), "the source goes on though nobody listens");
    }
}

/// All rules of the contract, one after the other, on one backend.
pub async fn check(rig: &mut impl Rig) {
    rig.put("first", 1).await;
    rig.put("second", 1).await;
    let mut follower = Follower::start(rig.source());
    tells(&mut follower, rig, "what was there before", &[("first", 1), ("second", 1)]).await;

    rig.put("third", 1).await;
    tells(&mut follower, rig, "an addition", &[("first", 1), ("second", 1), ("third", 1)]).await;
    rig.put("first", 2).await;
    tells(&mut follower, rig, "a change", &[("first", 2), ("second", 1), ("third", 1)]).await;
    rig.remove("second").await;
    tells(&mut follower, rig, "a removal", &[("first", 2), ("third", 1)]).await;

    if rig.lose().await {
        follower.until("an issue about the lost backend", |mirror| !mirror.issues.is_empty()).await;
        assert_eq!(state(&follower, rig), expected(&[("first", 2), ("third", 1)]), "a loss empties nothing");
        rig.find().await;
        rig.put("fourth", 1).await;
        let all = [("first", 2), ("third", 1), ("fourth", 1)];
        tells(&mut follower, rig, "a change after the loss", &all).await;
        follower.until("that all is well again", |mirror| mirror.issues.is_empty()).await;
        rig.remove("fourth").await;
    }

    for value in 3..23 {
        rig.put("first", value).await;
    }
    rig.remove("third").await;
    tells(&mut follower, rig, "the last of many changes", &[("first", 22)]).await;
    follower.stop().await;

    // A second one finds the same world.
    let mut follower = Follower::start(rig.source());
    tells(&mut follower, rig, "the same to a second follower", &[("first", 22)]).await;
    follower.stop().await;
}

async fn tells(follower: &mut Follower, rig: &impl Rig, what: &str, things: &[(&str, u32)]) {
    let expected = expected(things);
    follower.until(what, |mirror| mirror.ready && of(mirror, rig) == expected).await;
}

fn expected(things: &[(&str, u32)]) -> BTreeMap<String, u32> {
    things.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

fn state(follower: &Follower, rig: &impl Rig) -> BTreeMap<String, u32> {
    of(&follower.mirror, rig)
}

fn of(mirror: &Mirror, rig: &impl Rig) -> BTreeMap<String, u32> {
    mirror.objects().filter_map(|object| rig.read(object)).collect()
}
