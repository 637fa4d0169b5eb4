//! Envoy is told what it had, while the control plane is away.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use prost::Message as _;

use super::{Configuration, Keeper, Kept, TABLE};
use crate::backoff::Backoff;
use crate::clock::unix_seconds;
use crate::grpc::{Answer, Arriving, Code, Rope, Status, framed};
use crate::relay::Relay;
use crate::wire::{self, OwnResponse, Protocol, Request};

const WILDCARD: &str = "*";

impl Keeper {
    /// Serves an Envoy that has nothing yet, until the control plane is back. Who has something keeps it, and is told why there
    /// is nothing new.
    pub(in crate::relay) async fn serve(
        &self,
        relay: &Relay,
        (protocol, mut arriving): (Protocol, Arriving),
        answer: &Answer,
        failure: Status,
    ) -> Status {
        let configuration = self.with(|state| state.configuration.clone());
        let Ok(Some(message)) = arriving.next().await else { return failure };
        let Ok(first) = wire::request(&message, protocol) else { return failure };
        let is_envoy = first.user_agent.as_deref() == Some(wire::ENVOY_AGENT);
        if !is_envoy || !first.has.is_empty() || first.has_version || configuration.types.is_empty() {
            return failure;
        }
        let age = unix_seconds().saturating_sub(configuration.confirmed);
        tracing::warn!(age_seconds = age, "the control plane is away, and Envoy starts from the snapshot");
        if let Some(table) = configuration.types.get(wire::NAMES).and_then(|all| all.get(TABLE)) {
            relay.errands.recall(&table.any);
        }
        self.metrics.snapshot_in_use.inc();
        let mut replay = Replay { protocol, configuration, asked: BTreeMap::new(), nonce: 0 };
        let status = tokio::select! {
            status = replay.run(first, &mut arriving, answer) => status,
            () = until_back(relay) => Status::new(Code::Unavailable, "the control plane is back"),
        };
        self.metrics.snapshot_in_use.dec();
        status
    }
}

/// Asks as seldom as streams would.
async fn until_back(relay: &Relay) {
    loop {
        tokio::time::sleep(relay.pause()).await;
        if relay.upstream.connect().await.is_ok() {
            relay.with_backoff(Backoff::succeeded);
            tracing::info!("the control plane is back");
            return;
        }
        relay.with_backoff(Backoff::failed);
    }
}

struct Replay {
    protocol: Protocol,
    configuration: Configuration,
    /// What was asked for by name, by type.
    asked: BTreeMap<String, BTreeSet<String>>,
    nonce: u64,
}

impl Replay {
    async fn run(&mut self, first: Request, arriving: &mut Arriving, answer: &Answer) -> Status {
        let mut request = first;
        loop {
            if let Some(response) = self.reply(&request)
                && answer.send(framed(Rope::from(response))).await.is_none()
            {
                return Status::new(Code::Cancelled, "the client has gone");
            }
            request = match arriving.next().await {
                Ok(Some(message)) => match wire::request(&message, self.protocol) {
                    Ok(request) => request,
                    Err(_) => return Status::new(Code::InvalidArgument, "this is not a discovery request"),
                },
                Ok(None) => return Status::ok(),
                Err(status) => return status.unwrap_or_else(Status::ok),
            };
        }
    }

    fn reply(&mut self, request: &Request) -> Option<Bytes> {
        let is_first = !self.asked.contains_key(&request.type_url);
        let asked = self.asked.entry(request.type_url.clone()).or_default();
        let names: BTreeSet<String> = request.names.iter().cloned().collect();
        let new: BTreeSet<String> = names.difference(asked).cloned().collect();
        let wanted = match self.protocol {
            Protocol::Delta => {
                asked.extend(names);
                new
            }
            Protocol::StateOfTheWorld => {
                *asked = names.clone();
                if !is_first && new.is_empty() {
                    return None;
                }
                names
            }
        };
        let is_everything = wanted.contains(WILDCARD) || (is_first && wanted.is_empty());
        if wanted.is_empty() && !is_everything {
            return None;
        }
        let none = BTreeMap::new();
        let kept = self.configuration.types.get(&request.type_url).unwrap_or(&none);
        let sent = kept.iter().filter(|(name, _)| is_everything || wanted.contains(*name));
        let resources = sent.map(|(name, kept)| resource(self.protocol, name, kept)).collect();
        let is_unknown = |name: &&String| *name != WILDCARD && !kept.contains_key(*name);
        let removed = match self.protocol {
            Protocol::Delta => wanted.iter().filter(is_unknown).cloned().collect(),
            Protocol::StateOfTheWorld => Vec::new(),
        };
        self.nonce += 1;
        let response = OwnResponse {
            version: "snapshot".to_owned(),
            resources,
            type_url: request.type_url.clone(),
            nonce: format!("snapshot-{}", self.nonce),
            removed,
        };
        Some(response.encode_to_vec().into())
    }
}

fn resource(protocol: Protocol, name: &str, kept: &Kept) -> Bytes {
    match protocol {
        Protocol::StateOfTheWorld => kept.any.clone(),
        Protocol::Delta => wire::DeltaResource {
            version: kept.version.clone(),
            any: kept.any.clone(),
            name: name.to_owned(),
        }
        .encode_to_vec()
        .into(),
    }
}
