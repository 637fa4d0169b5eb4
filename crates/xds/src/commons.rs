use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_base::{FastMap, Hash64, Name};

use crate::names::sum_of;
use crate::wire::{field_len, put_bytes};
use crate::{Encoded, Layer, Manifest, NameSet, Protocol};

/// What streams have in common, worked out and kept once for all of them.
///
/// Nothing depends on it but cost: a stream with commons of its own does and says the same.
pub struct Commons {
    /// Fewer resources or names are not worth sharing.
    least: usize,
    runs: Mutex<FastMap<RunKey, Vec<Arc<Run>>>>,
    names: Mutex<Sets>,
}

/// The sets of names that clients ask for, for as long as one of them does.
#[derive(Default)]
struct Sets {
    by_hash: FastMap<u64, Weak<NameSet>>,
    /// With so many it is looked which of them nobody has any more.
    full: usize,
}

impl Sets {
    fn insert(&mut self, hash: u64, set: &Arc<NameSet>) {
        if self.by_hash.len() >= self.full {
            self.by_hash.retain(|_, set| set.strong_count() > 0);
            self.full = 2 * self.by_hash.len() + 64;
        }
        self.by_hash.insert(hash, Arc::downgrade(set));
    }
}

/// Not who a layer is, but enough to tell most of them apart: how many it has, and where the first one is.
type RunKey = (usize, usize);

/// All resources of a layer, one behind the other, with what every stream would work out about them again.
///
/// Each part is worked out by the first who wants it, and only others who want the same wait for that.
pub struct Run {
    layer: Layer,
    content: OnceLock<Content>,
    digest: OnceLock<Digest>,
    bodies: [Body; 2],
    /// Large layers that were seen above this one, and whether they leave all of it to be seen.
    above: Mutex<VecDeque<(Layer, bool)>>,
    index: OnceLock<FastMap<Name, u32>>,
    used: AtomicBool,
}

/// Kept for as long as it is swept around: streams whose clients do not answer have runs for much longer. Of all that is
/// shared it takes the most room and is put together again the fastest.
#[derive(Default)]
struct Body {
    pieces: Mutex<Option<Arc<[Bytes]>>>,
    used: AtomicBool,
}

struct Content {
    /// In order of their names.
    entries: Box<[Arc<Encoded>]>,
    lens: [usize; 2],
}

/// Names with their versions, told apart from others without a look at any of them. It can be added to name by name.
///
/// Who finds others with the same digest deceives only itself: it says of what it holds that it is something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Digest {
    /// Of names and versions, as a client that comes back says them.
    held: u64,
    names: u64,
    count: usize,
}

impl Digest {
    fn add(&mut self, resource: &Encoded) {
        self.held = self.held.wrapping_add(resource.mark().0);
        self.names = self.names.wrapping_add(Hash64::of(resource.name().as_bytes()).0);
        self.count += 1;
    }

    fn join(&mut self, other: Self) {
        self.held = self.held.wrapping_add(other.held);
        self.names = self.names.wrapping_add(other.names);
        self.count += other.count;
    }

    /// Is it what a client holds that says these entries?
    pub(crate) fn is_said_by<'a>(&self, entries: impl ExactSizeIterator<Item = &'a [u8]>) -> bool {
        let said =
            |entries| Iterator::fold(entries, 0_u64, |sum, entry| sum.wrapping_add(Hash64::of(entry).0));
        self.count == entries.len() && self.held == said(entries)
    }

    /// Are its names those of a set?
    pub(crate) fn has_names(&self, names: &NameSet) -> bool {
        self.count == names.len() && self.names == names.sum()
    }
}

/// What a client that comes back says of one resource that it holds: an entry of `initial_resource_versions` as protobuf
/// writes it.
pub fn held_entry(name: &str, version: Hash64) -> Vec<u8> {
    let version = version.to_text();
    let mut entry = Vec::with_capacity(field_len(1, name.len()) + field_len(2, version.len()));
    put_bytes(&mut entry, 1, name.as_bytes());
    put_bytes(&mut entry, 2, &version);
    entry
}

impl Default for Commons {
    fn default() -> Self {
        /// A handful of resources costs less than looking them up among what is shared.
        const LEAST: usize = 64;
        Self::with_least(LEAST)
    }
}

impl Commons {
    /// With `least` resources or names something is shared.
    pub fn with_least(least: usize) -> Self {
        Self { least, runs: Mutex::default(), names: Mutex::default() }
    }

    pub(crate) fn is_many(&self, count: usize) -> bool {
        count >= self.least
    }

    /// The run of a layer, unless it is too short to be shared.
    pub(crate) fn run(&self, layer: &Layer) -> Option<Arc<Run>> {
        let (_, first) = layer.first().filter(|_| self.is_many(layer.len()))?;
        let key = (layer.len(), first.as_ref().map_or(0, |encoded| Arc::as_ptr(encoded).addr()));
        let mut runs = self.runs.lock();
        let like = runs.entry(key).or_default();
        if let Some(run) = like.iter().find(|run| run.layer.ptr_eq(layer)) {
            run.used.store(true, Ordering::Relaxed);
            return Some(Arc::clone(run));
        }
        let run = Arc::new(Run::new(layer));
        like.push(Arc::clone(&run));
        Some(run)
    }

    /// Names that a client said, as one set for all who said the same. `make` turns a text into a name.
    pub(crate) fn names(&self, said: &[&str], make: impl FnMut(&str) -> Name) -> Arc<NameSet> {
        let collect = |make| Arc::new(said.iter().copied().map(make).collect::<NameSet>());
        if !self.is_many(said.len()) {
            return collect(make);
        }
        let hash = sum_of(said.iter().copied());
        let known = self.names.lock().by_hash.get(&hash).and_then(Weak::upgrade);
        match known {
            // Who is bent on harm finds names with the same hash, so it only tells where to look.
            Some(set) if set.is_said_by(said.iter().copied()) => set,
            _ => {
                let set = collect(make);
                self.names.lock().insert(hash, &set);
                set
            }
        }
    }

    /// Is there anything to sweep?
    pub fn is_empty(&self) -> bool {
        self.runs.lock().is_empty()
    }

    /// Lets go of runs that nobody asked for since the last time.
    pub fn sweep(&self) {
        let mut gone = Vec::new();
        self.runs.lock().retain(|_, like| {
            gone.extend(like.extract_if(.., |run| !run.used.swap(false, Ordering::Relaxed)));
            !like.is_empty()
        });
        gone.iter().flat_map(|run| &run.bodies).for_each(Body::clear);
    }

    /// Lets go of bodies that nobody asked for since the last time.
    pub fn sweep_bodies(&self) {
        let runs: Vec<Arc<Run>> = self.runs.lock().values().flatten().cloned().collect();
        let bodies = runs.iter().flat_map(|run| &run.bodies);
        bodies.filter(|body| !body.used.swap(false, Ordering::Relaxed)).for_each(Body::clear);
    }

    /// How to find resources of a manifest by name, many of them.
    pub(crate) fn lookup<'a>(&self, manifest: &'a Manifest) -> Lookup<'a> {
        let place = |layer: &'a Layer| match self.run(layer) {
            Some(run) => Place::Run(run),
            None => Place::Layer(layer),
        };
        Lookup(manifest.layers().iter().rev().filter(|layer| !layer.is_empty()).map(place).collect())
    }

    /// Does no upper layer hide or replace anything of the layer of a run?
    pub(crate) fn is_all_seen(&self, run: &Run, manifest: &Manifest, at: usize) -> bool {
        let is_large = |upper: &Layer| self.is_many(upper.len().min(run.layer.len()));
        let leaves = |upper: &Layer| {
            if is_large(upper) { run.is_left_by(upper) } else { are_apart(&run.layer, upper) }
        };
        manifest.layers()[at + 1..].iter().all(leaves)
    }

    /// What a client has that has all of a manifest.
    pub(crate) fn digest(&self, manifest: &Manifest) -> Digest {
        let mut digest = Digest::default();
        for at in 0..manifest.layers().len() {
            match self.run(&manifest.layers()[at]).filter(|run| self.is_all_seen(run, manifest, at)) {
                Some(run) => digest.join(run.digest()),
                None => manifest.seen(at).for_each(|resource| digest.add(resource)),
            }
        }
        digest
    }
}

fn are_apart(one: &Layer, other: &Layer) -> bool {
    let (few, many) = if one.len() < other.len() { (one, other) } else { (other, one) };
    few.iter().all(|(name, _)| many.get(name).is_none())
}

/// Layers that stand above one that many share are few; those of single namespaces are small.
const MOST_ABOVE: usize = 32;

impl Body {
    /// It may just be put together, which takes a while.
    fn clear(&self) {
        *self.pieces.lock() = None;
    }
}

impl Run {
    fn is_left_by(&self, upper: &Layer) -> bool {
        let known =
            self.above.lock().iter().find(|(seen, _)| seen.ptr_eq(upper)).map(|(_, is_left)| *is_left);
        if let Some(is_left) = known {
            return is_left;
        }
        // It is found out without the lock: others may have other layers above.
        let is_left = are_apart(&self.layer, upper);
        let mut above = self.above.lock();
        if above.len() >= MOST_ABOVE {
            above.pop_front();
        }
        above.push_back((upper.clone(), is_left));
        is_left
    }

    fn new(layer: &Layer) -> Self {
        Self {
            layer: layer.clone(),
            content: OnceLock::new(),
            digest: OnceLock::new(),
            bodies: Default::default(),
            above: Mutex::default(),
            index: OnceLock::new(),
            used: AtomicBool::new(true),
        }
    }

    fn content(&self) -> &Content {
        self.content.get_or_init(|| {
            let entries: Box<[_]> = self.layer.iter().filter_map(|(_, encoded)| encoded.clone()).collect();
            let len = |protocol| entries.iter().map(|entry: &Arc<Encoded>| entry.len(protocol)).sum();
            let lens = [Protocol::StateOfTheWorld, Protocol::Delta].map(len);
            Content { entries, lens }
        })
    }

    fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| {
            let mut digest = Digest::default();
            self.entries().iter().for_each(|resource| digest.add(resource));
            digest
        })
    }

    pub fn entries(&self) -> &[Arc<Encoded>] {
        &self.content().entries
    }

    /// Bytes of its entries in a response.
    pub fn len(&self, protocol: Protocol) -> usize {
        self.content().lens[protocol as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }

    /// The bytes of its entries, put together by `make` for the first who wants them; others wait meanwhile.
    pub fn body(&self, protocol: Protocol, make: impl FnOnce() -> Vec<Bytes>) -> Arc<[Bytes]> {
        let body = &self.bodies[protocol as usize];
        body.used.store(true, Ordering::Relaxed);
        Arc::clone(body.pieces.lock().get_or_insert_with(|| make().into()))
    }

    fn get(&self, name: &str) -> Option<Option<&Arc<Encoded>>> {
        let index = self.index.get_or_init(|| {
            let named = (0u32..).zip(self.entries());
            named.map(|(at, entry)| (entry.name().clone(), at)).collect()
        });
        match index.get(name) {
            Some(at) => Some(self.entries().get(*at as usize)),
            // What is hidden is not an entry.
            None if self.entries().len() == self.layer.len() => None,
            None => self.layer.get(name).map(Option::as_ref),
        }
    }
}

/// The resources of a manifest by name.
pub(crate) struct Lookup<'a>(Vec<Place<'a>>);

enum Place<'a> {
    Layer(&'a Layer),
    Run(Arc<Run>),
}

impl Lookup<'_> {
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Encoded>> {
        let found = self.0.iter().find_map(|place| match place {
            Place::Layer(layer) => layer.get(name).map(Option::as_ref),
            Place::Run(run) => run.get(name),
        });
        found.flatten()
    }
}
