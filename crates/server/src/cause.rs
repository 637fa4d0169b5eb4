//! Why streams are sent something: which commit, and whose change it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pilot_base::{Micros, ObjectRef};
use pilot_xds::{Manifests, TypeUrl};

/// A commit, as the reason for what is sent because of it. Streams add up here what that was.
pub(crate) struct Cause {
    pub(crate) epoch: u64,
    /// When the first of the changes was told.
    pub(crate) arrived: Micros,
    /// When streams could know of it.
    pub(crate) published: Micros,
    /// Whose change it was. An object that stands for several, such as all proxies, has more than one share.
    pub(crate) shares: Vec<(ObjectRef, u32)>,
    bytes: AtomicU64,
    pushes: AtomicU64,
}

/// The last commit that changed something for an audience, for each type.
pub(crate) type Causes = [Arc<Cause>; TypeUrl::ALL.len()];

/// What an audience is to have, and why that is not what it was.
#[derive(Clone)]
pub(crate) struct News {
    pub(crate) manifests: Arc<Manifests>,
    pub(crate) causes: Arc<Causes>,
}

impl Cause {
    pub(crate) fn new(epoch: u64, (arrived, published): (Micros, Micros), objects: Vec<ObjectRef>) -> Self {
        let shares = objects.into_iter().map(|object| (object, 1)).collect();
        Self { epoch, arrived, published, shares, bytes: AtomicU64::new(0), pushes: AtomicU64::new(0) }
    }

    pub(crate) fn pushed(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.pushes.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes and pushes since this was last asked.
    pub(crate) fn take(&self) -> (u64, u64) {
        (self.bytes.swap(0, Ordering::Relaxed), self.pushes.swap(0, Ordering::Relaxed))
    }
}

impl News {
    /// What is new to everybody.
    pub(crate) fn new(manifests: Arc<Manifests>, cause: &Arc<Cause>) -> Self {
        Self { manifests, causes: Arc::new(std::array::from_fn(|_| Arc::clone(cause))) }
    }

    /// Newer manifests. Types that are as before keep their cause.
    pub(crate) fn replace(&mut self, manifests: Arc<Manifests>, cause: &Arc<Cause>) {
        let is_same = |t: TypeUrl| self.manifests.of(t).same(manifests.of(t));
        let of = |t: TypeUrl| if is_same(t) { &self.causes[t.index()] } else { cause };
        self.causes = Arc::new(TypeUrl::ALL.map(|t| Arc::clone(of(t))));
        self.manifests = manifests;
    }
}
