use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use pilot_base::{FastMap, Name};
use pilot_xds::{ChildMap, Children, Piece};

use super::rope::Rope;

/// What many tables have in common, put together once, and where in it each child stands: so a table that has some of its
/// own is made of stretches of it.
pub(super) struct Trunk {
    map: ChildMap,
    /// Worked out by the first who wants it; only others who want the same wait for that.
    wood: OnceLock<Wood>,
    used: AtomicBool,
}

struct Wood {
    blocks: Box<[Bytes]>,
    /// In order of their names, with the place where each begins.
    children: Box<[(Name, Place)]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    block: u32,
    at: u32,
}

/// With fewer children there is little to share.
const LEAST: usize = 64;
/// If more than one of so many is replaced, hidden or added, stretches are short.
const FEW: usize = 8;

impl Trunk {
    pub(super) fn is_worth_it(children: &Children) -> bool {
        let common = children.base().len();
        common >= LEAST && children.over().len() <= common / FEW
    }

    /// All children, with some over them.
    pub(super) fn with(&self, over: &ChildMap, rope: &mut Rope) {
        self.wood.get().expect("nobody is handed a trunk before it is made").with(over, rope);
    }
}

impl Wood {
    fn new<'a>(map: &'a ChildMap, cut: impl FnOnce(Pieces<'a>) -> Vec<Bytes>) -> Self {
        let chunks = || map.iter().filter_map(|(name, chunk)| Some((name, chunk.as_ref()?)));
        let pieces = chunks().map(|(_, chunk)| chunk.piece());
        let blocks: Box<[Bytes]> = cut(Box::new(pieces)).into();
        // Blocks end where children do.
        let mut next = Place { block: 0, at: 0 };
        let place = |(name, chunk): (&Name, &pilot_xds::Chunk)| {
            let here = next;
            next.at += u32::try_from(chunk.bytes().len()).unwrap_or(u32::MAX);
            if blocks.get(next.block as usize).is_some_and(|block| block.len() <= next.at as usize) {
                next = Place { block: next.block + 1, at: 0 };
            }
            (name.clone(), here)
        };
        let children = chunks().map(place).collect();
        Self { blocks, children }
    }

    fn with(&self, over: &ChildMap, rope: &mut Rope) {
        let mut from = 0;
        for (name, chunk) in over {
            let rest = &self.children[from..];
            let to = from + rest.partition_point(|(other, _)| other < name);
            self.stretch(from, to, rope);
            let is_replaced = self.children.get(to).is_some_and(|(other, _)| other == name);
            from = to + usize::from(is_replaced);
            rope.extend(chunk.as_ref().map(|chunk| chunk.bytes().clone()));
        }
        self.stretch(from, self.children.len(), rope);
    }

    /// The children from one up to another.
    fn stretch(&self, from: usize, to: usize, rope: &mut Rope) {
        if from == to {
            return;
        }
        let (first, end) = (self.place(from), self.place(to));
        for block in first.block..=end.block {
            let Some(bytes) = self.blocks.get(block as usize) else { return };
            let begin = if block == first.block { first.at as usize } else { 0 };
            let stop = if block == end.block { end.at as usize } else { bytes.len() };
            rope.extend((begin < stop).then(|| bytes.slice(begin..stop)));
        }
    }

    fn place(&self, child: usize) -> Place {
        let end = Place { block: u32::try_from(self.blocks.len()).unwrap_or(u32::MAX), at: 0 };
        self.children.get(child).map_or(end, |(_, place)| *place)
    }
}

type Pieces<'a> = Box<dyn Iterator<Item = Piece<'a>> + 'a>;

/// Trunks that are in use.
#[derive(Default)]
pub(super) struct Trunks(Mutex<FastMap<Like, Vec<Arc<Trunk>>>>);

/// Not which map it is, but enough to tell most of them apart: how many it has, and where the first one stands.
type Like = (usize, usize);

impl Trunks {
    pub(super) fn of<'a>(&self, map: &'a ChildMap, cut: impl FnOnce(Pieces<'a>) -> Vec<Bytes>) -> Arc<Trunk> {
        let first = map.first().and_then(|(_, chunk)| chunk.as_ref());
        let like = (map.len(), first.map_or(0, |chunk| chunk.bytes().as_ptr().addr()));
        let trunk = self.like(like, map);
        trunk.wood.get_or_init(|| Wood::new(map, cut));
        trunk
    }

    fn like(&self, like: Like, map: &ChildMap) -> Arc<Trunk> {
        let mut trunks = self.0.lock();
        let trunks = trunks.entry(like).or_default();
        if let Some(trunk) = trunks.iter().find(|trunk| trunk.map.ptr_eq(map)) {
            trunk.used.store(true, Ordering::Relaxed);
            return Arc::clone(trunk);
        }
        let (map, used) = (map.clone(), AtomicBool::new(true));
        let trunk = Arc::new(Trunk { map, wood: OnceLock::new(), used });
        trunks.push(Arc::clone(&trunk));
        trunk
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Lets go of those that nobody asked for since the last time.
    pub(super) fn sweep(&self) {
        self.0.lock().retain(|_, like| {
            like.retain(|trunk| trunk.used.swap(false, Ordering::Relaxed));
            !like.is_empty()
        });
    }
}
