use std::collections::BTreeMap;

use bytes::Bytes;
use pilot_base::{FastMap, FastSet, Hash64};

use crate::names::{Id, Names};
use crate::wire::put_bytes;

/// One resource as a proxy remembers it.
#[derive(Clone, Copy)]
struct Held {
    version: Id,
    /// Nothing if the server said that there is no such thing.
    content: Option<Hash64>,
    /// The message it was last told in.
    told_in: u32,
}

/// What a proxy asked for of one type, and what it has.
#[derive(Default)]
pub(crate) struct Holding {
    resources: FastMap<Id, Held>,
    pub(crate) subscribed: FastSet<Id>,
    /// How many of the names asked for have no answer yet.
    pub(crate) missing: usize,
    /// All names as they stand in requests of the state of the world.
    block: Option<Bytes>,
    pub(crate) asked: bool,
    pub(crate) answered: bool,
    pub(crate) version: Vec<u8>,
    pub(crate) nonce: Vec<u8>,
}

impl Holding {
    /// Takes in a resource of a type of which there is no list of names.
    pub(crate) fn put(&mut self, id: Id, version: Id, content: Hash64, told_in: u32) {
        self.resources.insert(id, Held { version, content: Some(content), told_in });
    }

    /// The same for types with names. Is it one that was asked for?
    pub(crate) fn put_named(&mut self, id: Id, version: Id, content: Option<Hash64>) -> bool {
        if !self.subscribed.contains(&id) {
            return false;
        }
        if self.resources.insert(id, Held { version, content, told_in: 0 }).is_none() {
            self.missing -= 1;
        }
        true
    }

    pub(crate) fn remove(&mut self, id: Id) -> bool {
        self.resources.remove(&id).is_some()
    }

    /// Drops what was not told in the newest message, and tells what that was.
    pub(crate) fn keep_told_in(&mut self, message: u32) -> Vec<Id> {
        let mut gone = Vec::new();
        self.resources.retain(|id, held| {
            let stays = held.told_in == message;
            if !stays {
                gone.push(*id);
            }
            stays
        });
        gone
    }

    pub(crate) fn subscribe(&mut self, new: &[Id], gone: &[Id]) {
        for id in new {
            if self.subscribed.insert(*id) && !self.resources.contains_key(id) {
                self.missing += 1;
            }
        }
        for id in gone {
            if self.subscribed.remove(id) && self.resources.remove(id).is_none() {
                self.missing -= 1;
            }
        }
        if !new.is_empty() || !gone.is_empty() {
            self.block = None;
        }
    }

    pub(crate) fn holds(&self, id: Id) -> bool {
        self.resources.get(&id).is_some_and(|held| held.content.is_some())
    }

    /// All names that were asked for, encoded as the state of the world wants them.
    pub(crate) fn block(&mut self, names: &Names) -> Bytes {
        let subscribed = &self.subscribed;
        let make = || {
            let mut out = Vec::new();
            subscribed_texts(subscribed, names).iter().for_each(|name| put_bytes(&mut out, 3, name));
            Bytes::from(out)
        };
        self.block.get_or_insert_with(make).clone()
    }

    pub(crate) fn subscribed_texts(&self, names: &Names) -> Vec<Bytes> {
        subscribed_texts(&self.subscribed, names)
    }

    /// Names and versions of what it has.
    pub(crate) fn versions(&self, names: &Names) -> Vec<(Bytes, Bytes)> {
        let held = self.resources.iter().filter(|(_, held)| held.content.is_some());
        held.map(|(id, held)| (names.text(*id), names.text(held.version))).collect()
    }

    /// Names and contents of what it has.
    pub(crate) fn contents(&self, names: &Names) -> BTreeMap<Bytes, Hash64> {
        let held = self.resources.iter();
        held.filter_map(|(id, held)| Some((names.text(*id), held.content?))).collect()
    }
}

fn subscribed_texts(subscribed: &FastSet<Id>, names: &Names) -> Vec<Bytes> {
    let mut ids: Vec<Id> = subscribed.iter().copied().collect();
    ids.sort_unstable();
    names.texts(ids)
}
