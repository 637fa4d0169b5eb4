use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use pilot_base::{FastMap, Hash64, Hasher64};
use pilot_xds::{Children, Commons, Encoded, Part, Piece, Protocol, Response, TypeUrl};
use tokio::sync::Notify;

use self::rope::Rope;
use self::trunk::{Trunk, Trunks};
use crate::body::SMALL;

mod rope;
mod trunk;

/// The bytes of resources that many streams are sent at about the same time, put together once.
///
/// A body is cut into blocks, and blocks are shared. Where it is cut depends on what stands there and not on how much
/// stands before it. So bodies that differ in a few places, as those of proxies with services of their own do, share all
/// blocks but the few in which they differ. Of tables that say themselves what they have in common, the common part is
/// put together once, and each is made of stretches of it and of what is its own.
#[derive(Default)]
pub(crate) struct SharedBodies {
    entries: Mutex<FastMap<Hash64, Entry>>,
    trunks: Trunks,
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

/// How long bytes are kept after nobody asks for them any more. To put them together again costs as little as a copy, and
/// those of the clusters of a large mesh are not needed any more while its routes are sent.
const KEEP: Duration = Duration::from_millis(250);
/// What is worked out about them is kept so much longer: longer than a push to everybody takes.
const KEPT_LONGER: u32 = 4;

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
/// Of what is put together for some proxies only, a block in which they differ is kept once for each of them. Finer ones
/// save little memory, and each is one more frame to write for every stream.
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
        let mut rope = Rope::default();
        for part in response.resources.parts() {
            match part {
                Part::Whole(run) => {
                    let entries = || run.entries().iter().flat_map(|resource| resource.entry(protocol));
                    rope.extend(run.body(protocol, || self.cut(entries(), form, COARSE)).iter().cloned());
                }
                Part::Some(resources) => self.some(resources, form, &mut rope),
            }
        }
        rope.into_pieces()
    }

    fn some(&self, resources: &[Arc<Encoded>], form: (TypeUrl, Protocol), rope: &mut Rope) {
        let (_, protocol) = form;
        let is_table = |resource: &Arc<Encoded>| Trunk::is_worth_it(resource.children());
        for like in resources.chunk_by(|one, other| !is_table(one) && !is_table(other)) {
            match like {
                [table] if is_table(table) => {
                    rope.copy(table.opening(protocol));
                    let children = table.children();
                    self.trunk(children, form).with(children.over(), rope);
                    rope.extend(children.last().map(|chunk| chunk.bytes().clone()));
                }
                others => {
                    let entries = others.iter().flat_map(|resource| resource.entry(protocol));
                    rope.extend(self.cut(entries, form, FINE));
                }
            }
        }
    }

    fn trunk(&self, children: &Children, form: (TypeUrl, Protocol)) -> Arc<Trunk> {
        self.trunks.of(children.base(), |pieces| self.cut(pieces, form, COARSE))
    }

    fn cut<'a>(
        &self,
        pieces: impl Iterator<Item = Piece<'a>>,
        form: (TypeUrl, Protocol),
        grain: Grain,
    ) -> Vec<Bytes> {
        let (type_url, protocol) = form;
        let mut blocks = Vec::new();
        let mut open = Open::new(type_url, protocol);
        for piece in pieces {
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
        self.commons.is_empty() && self.trunks.is_empty() && self.entries.lock().is_empty()
    }

    /// Forgets bytes that nobody asked for since the last time.
    fn forget_bytes(&self) {
        self.commons.sweep_bodies();
        self.entries.lock().retain(|_, entry| std::mem::take(&mut entry.used));
    }

    /// The same for what is worked out about them.
    fn forget(&self) {
        self.commons.sweep();
        self.trunks.sweep();
    }

    /// Forgets what is not asked for any more. Sleeps while there is nothing to forget.
    pub(crate) async fn sweep(&self) {
        loop {
            self.filled.notified().await;
            self.sweeping.store(true, Ordering::Relaxed);
            for sweep in 1_u32.. {
                tokio::time::sleep(KEEP).await;
                self.forget_bytes();
                if sweep.is_multiple_of(KEPT_LONGER) {
                    self.forget();
                    if self.is_empty() {
                        break;
                    }
                }
            }
            self.sweeping.store(false, Ordering::Relaxed);
            // Who put something here before that was told that somebody is looking.
            self.touched();
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
mod tests;
