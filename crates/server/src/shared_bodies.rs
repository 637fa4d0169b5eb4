use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use pilot_base::{FastMap, Hash64, Hasher64};
use pilot_xds::{Commons, Encoded, Part, Piece, Protocol, Response, TypeUrl};
use tokio::sync::Notify;

use crate::body::SMALL;

/// The bytes of resources that many streams are sent at about the same time, put together once.
///
/// A body is cut into blocks, and blocks are shared. Where it is cut depends on what stands there and not on how much
/// stands before it. So bodies that differ in a few places, as those of proxies with services of their own do, share all
/// blocks but the few in which they differ.
#[derive(Default)]
pub(crate) struct SharedBodies {
    entries: Mutex<FastMap<Hash64, Entry>>,
    /// Runs of resources, which keep their bodies.
    commons: Arc<Commons>,
    filled: Notify,
    /// Is somebody looking already what can be forgotten?
    sweeping: AtomicBool,
}

struct Entry {
    block: Arc<OnceLock<Bytes>>,
    /// Was it asked for since the last sweep?
    used: bool,
}

/// How long a block is kept after nobody asks for it any more: longer than a push to everybody takes.
const KEEP: Duration = Duration::from_secs(1);

/// How large blocks are.
#[derive(Clone, Copy)]
struct Grain {
    /// They are not cut smaller, so that each is worth its entry.
    least: usize,
    /// Nor are they larger, unless one piece is.
    most: usize,
    /// Behind one of so many pieces a block may end.
    one_of: u64,
}

/// What everybody is sent as it is may be cut anywhere.
const COARSE: Grain = Grain { least: 64 << 10, most: 128 << 10, one_of: 4 };
/// Of a table of routes each namespace has its own entries among those of all others: a block that has one of them is
/// kept once for each namespace. Finer ones save little memory, and each is one more frame to write for every stream.
const FINE: Grain = Grain { least: 16 << 10, most: 128 << 10, one_of: 8 };

impl SharedBodies {
    /// The resources of a response, as they stand in the encoded message.
    pub(crate) fn of(&self, response: &Response, protocol: Protocol, len: usize) -> Vec<Bytes> {
        let form = (response.type_url, protocol);
        if len <= SMALL {
            let resources = response.resources.iter();
            let pieces: Vec<Piece<'_>> = resources.flat_map(|resource| resource.entry(protocol)).collect();
            return vec![assemble(&pieces, len)];
        }
        let mut blocks = Vec::new();
        for part in response.resources.parts() {
            match part {
                Part::Whole(run) => {
                    let body = run.body(protocol, || self.cut(run.entries(), form, COARSE));
                    blocks.extend_from_slice(body);
                }
                Part::Some(resources) => blocks.extend(self.cut(resources, form, FINE)),
            }
        }
        blocks
    }

    fn cut(&self, resources: &[Arc<Encoded>], form: (TypeUrl, Protocol), grain: Grain) -> Vec<Bytes> {
        let (type_url, protocol) = form;
        let mut blocks = Vec::new();
        let mut open = Open::new(type_url, protocol);
        for piece in resources.iter().flat_map(|resource| resource.entry(protocol)) {
            open.add(piece);
            if open.ends_behind(piece, grain) {
                blocks.push(self.block(&open));
                open = Open::new(type_url, protocol);
            }
        }
        if !open.pieces.is_empty() {
            blocks.push(self.block(&open));
        }
        blocks
    }

    fn block(&self, open: &Open<'_>) -> Bytes {
        let block = {
            let mut entries = self.entries.lock();
            let entry = entries
                .entry(open.key.finish())
                .or_insert_with(|| Entry { block: Arc::default(), used: true });
            entry.used = true;
            Arc::clone(&entry.block)
        };
        // Others who want the same wait here instead of doing the same.
        block.get_or_init(|| assemble(&open.pieces, open.len)).clone()
    }

    /// What sessions share, and what is forgotten together with the bodies.
    pub(crate) fn commons(&self) -> &Arc<Commons> {
        &self.commons
    }

    /// Something may have been put here: sees to it that it is forgotten one day.
    pub(crate) fn touched(&self) {
        if !self.sweeping.load(Ordering::Relaxed) && !self.is_empty() {
            self.filled.notify_one();
        }
    }

    fn is_empty(&self) -> bool {
        self.commons.is_empty() && self.entries.lock().is_empty()
    }

    /// Forgets what is not asked for any more. Sleeps while there is nothing to forget.
    pub(crate) async fn sweep(&self) {
        loop {
            self.filled.notified().await;
            self.sweeping.store(true, Ordering::Relaxed);
            while !self.is_empty() {
                tokio::time::sleep(KEEP).await;
                self.commons.sweep();
                self.entries.lock().retain(|_, entry| std::mem::take(&mut entry.used));
            }
            self.sweeping.store(false, Ordering::Relaxed);
        }
    }
}

/// A block that is not cut yet.
struct Open<'a> {
    key: Hasher64,
    pieces: Vec<Piece<'a>>,
    len: usize,
}

impl<'a> Open<'a> {
    fn new(type_url: TypeUrl, protocol: Protocol) -> Self {
        let mut key = Hasher64::default();
        key.write_u64(type_url.index() as u64).write_u64(u64::from(protocol == Protocol::Delta));
        Self { key, pieces: Vec::new(), len: 0 }
    }

    fn add(&mut self, piece: Piece<'a>) {
        self.key.write_u64(piece.mark.0);
        self.pieces.push(piece);
        self.len += piece.bytes.len();
    }

    fn ends_behind(&self, piece: Piece<'_>, grain: Grain) -> bool {
        self.len >= grain.most || self.len >= grain.least && piece.mark.0.is_multiple_of(grain.one_of)
    }
}

fn assemble(pieces: &[Piece<'_>], len: usize) -> Bytes {
    let mut block = BytesMut::with_capacity(len);
    pieces.iter().for_each(|piece| block.extend_from_slice(piece.bytes));
    block.freeze()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use pilot_base::Name;
    use pilot_xds::{Encoded, Parts, Protocol, Response, TypeUrl};

    use super::SharedBodies;

    fn response(names: &[String]) -> Response {
        let encode = |name: &String| Arc::new(Encoded::new(TypeUrl::Cluster, Name::new(name), &[7; 2000]));
        Response {
            type_url: TypeUrl::Cluster,
            version: "1".to_owned(),
            nonce: "1".to_owned(),
            resources: names.iter().map(encode).collect::<Parts>(),
            removed: Vec::new(),
        }
    }

    fn blocks(bodies: &SharedBodies, response: &Response) -> Vec<Bytes> {
        let resources = || response.resources.iter();
        let len = resources().map(|resource| resource.len(Protocol::Delta)).sum();
        let blocks = bodies.of(response, Protocol::Delta, len);
        let pieces = resources().flat_map(|resource| resource.entry(Protocol::Delta));
        let whole: Vec<u8> = pieces.flat_map(|piece| piece.bytes).copied().collect();
        assert_eq!(blocks.concat(), whole, "blocks are the body");
        blocks
    }

    #[test]
    fn bodies_that_differ_in_one_place_share_the_rest() {
        let bodies = SharedBodies::default();
        let mut names: Vec<String> = (0..1000).map(|i| format!("c{i:04}")).collect();
        let common = blocks(&bodies, &response(&names));
        names.insert(500, "own".to_owned());
        let own = blocks(&bodies, &response(&names));
        let is_shared = |block: &&Bytes| common.iter().any(|other| other.as_ptr() == block.as_ptr());
        let shared = own.iter().filter(is_shared).count();
        assert!(own.len() > 20, "{} blocks", own.len());
        assert!(shared + 3 >= own.len(), "{shared} of {}", own.len());
    }

    #[test]
    fn what_is_small_is_one_block() {
        assert_eq!(blocks(&SharedBodies::default(), &response(&["a".to_owned()])).len(), 1);
    }
}
