//! What one proxy asks, does and has, as Envoy would: clusters, their endpoints, listeners, their routes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pilot_base::Hash64;
use smallvec::SmallVec;

use crate::fleet::Shared;
use crate::holding::Holding;
use crate::links::Links;
use crate::marks::{Marks, Progress};
use crate::names::Id;
use crate::recording::Recording;
use crate::request::{Delta, Sotw};
use crate::resource::{self, Kind};
use crate::shape::Protocol;
use crate::wire::{Reader, first};

/// Names and contents, by type.
pub(crate) type Contents = [BTreeMap<Bytes, Hash64>; 4];

pub(crate) struct State {
    shared: Arc<Shared>,
    protocol: Protocol,
    held: [Holding; 4],
    /// From clusters, and from listeners.
    links: [Links; 2],
    message: Message,
    /// Counts messages, to tell what a message did not say.
    messages: u32,
    outgoing: Vec<Bytes>,
    /// When what is being read arrived.
    pub(crate) now: u64,
    /// When it last came to have everything, if it has.
    pub(crate) synced_at: Option<u64>,
    pub(crate) last_message_at: u64,
    pub(crate) progress: Option<Progress>,
    /// Kept for the floor.
    pub(crate) recording: Option<Recording>,
}

/// A message that is being read.
#[derive(Default)]
struct Message {
    kind: Option<Kind>,
    version: Vec<u8>,
    nonce: Vec<u8>,
    removed: Vec<Id>,
    resources: u64,
}

impl State {
    pub(crate) fn new(shared: Arc<Shared>, protocol: Protocol) -> Self {
        Self {
            shared,
            protocol,
            held: Default::default(),
            links: Default::default(),
            message: Message::default(),
            messages: 0,
            outgoing: Vec::new(),
            now: 0,
            synced_at: None,
            last_message_at: 0,
            progress: None,
            recording: None,
        }
    }

    /// The first requests of a stream: of a new proxy, or of one that comes back with what it has.
    pub(crate) fn open(&mut self, node: &[u8]) -> Vec<Bytes> {
        self.message = Message::default();
        // Of a message that broke off with its stream some of it may have been told.
        self.messages += 1;
        self.outgoing.clear();
        let mut node = Some(node);
        for kind in Kind::ALL {
            self.held[kind.index()].nonce.clear();
            if self.held[kind.index()].asked || kind == Kind::Cluster {
                self.ask(kind, node.take());
            }
        }
        self.take_outgoing()
    }

    pub(crate) fn take_outgoing(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.outgoing)
    }

    pub(crate) fn has_everything(&self) -> bool {
        let [clusters, endpoints, listeners, routes] = &self.held;
        clusters.answered && listeners.answered && endpoints.missing == 0 && routes.missing == 0
    }

    pub(crate) fn follow(&mut self, marks: &Arc<Marks>) {
        self.progress = Some(Progress::new(marks, |kind, id| self.held[kind.index()].holds(id)));
    }

    pub(crate) fn contents(&self) -> Contents {
        Kind::ALL.map(|kind| self.held[kind.index()].contents(&self.shared.names))
    }

    /// Asks for a type for the first time on a stream.
    fn ask(&mut self, kind: Kind, node: Option<&[u8]>) {
        let names = &self.shared.names;
        let held = &mut self.held[kind.index()];
        held.asked = true;
        let request = match self.protocol {
            Protocol::Delta => {
                let (subscribe, known) = (held.subscribed_texts(names), held.versions(names));
                Delta { node, subscribe, held: known, ..Delta::default() }.encode(kind)
            }
            Protocol::Sotw => {
                let block = held.block(names);
                Sotw { node, version: &held.version, names: &block, nonce: b"" }.encode(kind)
            }
        };
        self.outgoing.push(request);
    }

    fn accept(&mut self, kind: Kind) {
        let held = &mut self.held[kind.index()];
        let request = match self.protocol {
            Protocol::Delta => Delta { nonce: &held.nonce, ..Delta::default() }.encode(kind),
            Protocol::Sotw => {
                let block = held.block(&self.shared.names);
                Sotw { node: None, version: &held.version, names: &block, nonce: &held.nonce }.encode(kind)
            }
        };
        self.outgoing.push(request);
    }

    /// Asks for what a new cluster or listener names, and gives up what nobody names any more.
    fn follow_links(&mut self, from: Kind) {
        let Some(kind) = from.leads_to() else { return };
        let held = &mut self.held[kind.index()];
        let (new, gone) = self.links[from.index() / 2].take_changes(&held.subscribed);
        if new.is_empty() && gone.is_empty() {
            return;
        }
        held.subscribe(&new, &gone);
        if !held.asked {
            return self.ask(kind, None);
        }
        let names = &self.shared.names;
        let request = match self.protocol {
            Protocol::Delta => {
                let (subscribe, unsubscribe) = (names.texts(new), names.texts(gone));
                Delta { subscribe, unsubscribe, ..Delta::default() }.encode(kind)
            }
            Protocol::Sotw => {
                let block = held.block(names);
                Sotw { node: None, version: &held.version, names: &block, nonce: &held.nonce }.encode(kind)
            }
        };
        self.outgoing.push(request);
    }

    fn take_resource(&mut self, any: &[u8], told: Told<'_>) {
        let Some(kind) = first(any, 1).and_then(Kind::of_type_url) else { return };
        let value = first(any, 2).unwrap_or_default();
        let name = told.name.unwrap_or_else(|| resource::name(value));
        let names = &self.shared.names;
        let (id, version) = (names.id(name), names.id(told.version));
        let content = Hash64::of(value);
        self.message.kind = Some(kind);
        self.message.resources += 1;
        let held = &mut self.held[kind.index()];
        if kind.is_wildcard() {
            held.put(id, version, content, self.messages);
            let leads: SmallVec<[Id; 2]> =
                resource::leads(kind, value).into_iter().map(|name| names.id(name)).collect();
            self.links[kind.index() / 2].set(id, leads);
        } else if !held.put_named(id, version, Some(content)) {
            return;
        }
        if let Some(progress) = &mut self.progress {
            progress.came(kind, id, value, self.now);
        }
        if let Some(recording) = &mut self.recording {
            recording.put(kind, name, value);
        }
    }

    /// What the server took back, or left out of the state of the world.
    fn take_removals(&mut self, kind: Kind, removed: Vec<Id>) {
        let held = &mut self.held[kind.index()];
        let mut gone = Vec::new();
        for id in removed {
            if !kind.is_wildcard() {
                held.put_named(id, id, None);
            } else if held.remove(id) {
                gone.push(id);
            }
        }
        if self.protocol == Protocol::Sotw && kind.is_wildcard() {
            gone = held.keep_told_in(self.messages);
        }
        for id in gone {
            self.links[kind.index() / 2].remove(id);
            if let Some(progress) = &mut self.progress {
                progress.went(kind, id, self.now);
            }
        }
    }

    fn note_sync(&mut self) {
        match (self.has_everything(), self.synced_at) {
            (true, None) => {
                self.synced_at = Some(self.now);
                self.shared.synced.fetch_add(1, Ordering::Relaxed);
            }
            (false, Some(_)) => {
                self.synced_at = None;
                self.shared.synced.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// What a response says about a resource beside its content.
#[derive(Clone, Copy)]
struct Told<'a> {
    name: Option<&'a [u8]>,
    version: &'a [u8],
}

impl Reader for State {
    fn field(&mut self, number: u32, bytes: &[u8]) {
        match (number, self.protocol) {
            (1, _) => self.message.version = bytes.to_vec(),
            (2, Protocol::Sotw) => self.take_resource(bytes, Told { name: None, version: b"" }),
            (2, Protocol::Delta) => {
                let told = Told { name: first(bytes, 3), version: first(bytes, 1).unwrap_or_default() };
                self.take_resource(first(bytes, 2).unwrap_or_default(), told);
            }
            (4, _) => self.message.kind = Kind::of_type_url(bytes).or(self.message.kind),
            (5, _) => self.message.nonce = bytes.to_vec(),
            (6, Protocol::Delta) => self.message.removed.push(self.shared.names.id(bytes)),
            _ => {}
        }
    }

    fn end(&mut self) {
        let message = std::mem::take(&mut self.message);
        self.shared.counters.messages.fetch_add(1, Ordering::Relaxed);
        self.shared.counters.resources.fetch_add(message.resources, Ordering::Relaxed);
        self.shared.last_message_at.fetch_max(self.now, Ordering::Relaxed);
        self.last_message_at = self.now;
        let Some(kind) = message.kind else { return };
        self.take_removals(kind, message.removed);
        self.messages += 1;
        let held = &mut self.held[kind.index()];
        (held.version, held.nonce, held.answered) = (message.version, message.nonce, true);
        self.accept(kind);
        self.follow_links(kind);
        let [clusters, endpoints, listeners, _] = &self.held;
        // Envoy asks for listeners when its clusters can be used.
        if clusters.answered && endpoints.missing == 0 && !listeners.asked {
            self.ask(Kind::Listener, None);
        }
        self.note_sync();
    }
}

#[cfg(test)]
mod tests;
