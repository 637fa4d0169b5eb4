//! What Envoy said that it took.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::{Keeper, Kept, TABLE};
use crate::grpc::Rope;
use crate::wire::{self, NotProtobuf, Protocol, Request, Response};

/// Types of which a stream of the old protocol always sends all there are.
const WHOLE: [&str; 2] = [wire::LISTENERS, wire::CLUSTERS];
/// A client that answers nothing is not remembered for ever.
const MOST_OPEN: usize = 64;

/// Listens to one stream.
pub(crate) struct Recorder {
    keeper: Arc<Keeper>,
    protocol: Protocol,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// Libraries have configuration of their own.
    is_envoy: bool,
    /// Responses that were not answered yet, by nonce.
    changes: BTreeMap<String, Change>,
}

struct Change {
    type_url: String,
    set: Vec<(String, Kept)>,
    removed: Vec<String>,
    /// All others are gone.
    is_whole: bool,
}

impl Recorder {
    pub(super) fn new(keeper: Arc<Keeper>, protocol: Protocol) -> Self {
        Self { keeper, protocol, open: Mutex::default() }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Open) -> T) -> T {
        act(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(in super::super) fn on_response(&self, response: &Response, message: &Rope) {
        if response.type_url == wire::SECRETS || !self.with(|open| open.is_envoy) {
            return;
        }
        // What Envoy cannot read either, it refuses.
        let Ok(change) = self.change(response, message) else { return };
        self.with(|open| {
            if open.changes.len() >= MOST_OPEN {
                open.changes.pop_first();
            }
            open.changes.insert(response.nonce.clone(), change);
        });
    }

    /// Names that the agent answers for itself. They were taken, or the ones before are still there.
    pub(in super::super) fn on_own(&self, response: &Response, message: &Rope) {
        if response.type_url != wire::NAMES {
            return;
        }
        let Some(resource) = wire::resources(message).ok().and_then(|all| all.into_iter().next()) else {
            return;
        };
        let Ok(content) = wire::content(&resource, self.protocol) else { return };
        let kept = Kept { version: response.version.clone(), any: Bytes::copy_from_slice(&content) };
        self.keeper.update(|types| {
            types.entry(wire::NAMES.to_owned()).or_default().insert(TABLE.to_owned(), kept);
        });
    }

    fn change(&self, response: &Response, message: &Rope) -> Result<Change, NotProtobuf> {
        let mut set = Vec::new();
        for resource in wire::resources(message)? {
            let name = wire::name(&resource, self.protocol)?;
            let (version, any) = match self.protocol {
                Protocol::Delta => wire::version_and_any(&resource)?,
                Protocol::StateOfTheWorld => (response.version.clone(), resource),
            };
            // A copy, so that a small resource does not keep a large message.
            set.push((name, Kept { version, any: Bytes::copy_from_slice(&any) }));
        }
        let removed = match self.protocol {
            Protocol::Delta => wire::removed(message)?,
            Protocol::StateOfTheWorld => Vec::new(),
        };
        let type_url = response.type_url.clone();
        let is_whole = self.protocol == Protocol::StateOfTheWorld && WHOLE.contains(&type_url.as_str());
        Ok(Change { type_url, set, removed, is_whole })
    }

    pub(in super::super) fn on_request(&self, request: &Request) {
        let change = self.with(|open| {
            if let Some(agent) = &request.user_agent {
                open.is_envoy = agent == wire::ENVOY_AGENT;
            }
            open.changes.remove(&request.nonce)
        });
        let Some(change) = change.filter(|_| !request.refused) else { return };
        self.keeper.update(|types| {
            let kept = types.entry(change.type_url).or_default();
            if change.is_whole {
                kept.clear();
            }
            change.removed.iter().for_each(|name| drop(kept.remove(name)));
            kept.extend(change.set);
            if self.protocol == Protocol::StateOfTheWorld && !change.is_whole {
                // Each request names all that the client still wants.
                kept.retain(|name, _| request.names.contains(name));
            }
        });
    }
}
