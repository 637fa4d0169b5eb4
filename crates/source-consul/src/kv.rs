//! Rules that stand in Consul's key-value store: each key below a prefix is a document.

use std::time::Duration;

use data_encoding::BASE64;
use pilot_base::Name;
use pilot_source::{Contact, Ended, Running, Session, Sink, Source, Suspicion, Teller, follow};
use pilot_source_http::{Client, ClientError, ClientOptions, TlsError, encoded};
use pilot_source_store::{Documents, StoreOptions};
use serde::Deserialize;

use crate::ask::{is_filtered, pace, scope};

/// How the store is followed.
pub struct ConsulKvOptions {
    pub store: StoreOptions,
    pub client: ClientOptions,
    /// Documents stand below this key.
    pub prefix: String,
    /// Empty for that of the agent that is asked.
    pub datacenter: String,
    /// Of Consul Enterprise; empty for the default ones.
    pub namespace: String,
    pub partition: String,
    /// How long a question may wait at Consul.
    pub wait: Duration,
}

/// A part of Consul's key-value store.
pub struct ConsulKv {
    options: StoreOptions,
    store: Store,
}

struct Store {
    client: Client,
    prefix: String,
    path: String,
    wait: Duration,
    /// That of the last answer, in this session or an earlier one.
    index: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pair {
    key: String,
    value: Option<String>,
}

impl ConsulKv {
    pub fn open(options: ConsulKvOptions) -> Result<Self, TlsError> {
        let ConsulKvOptions { store: options, client, prefix, datacenter, namespace, partition, wait } =
            options;
        let prefix = format!("{}/", prefix.trim_matches('/'));
        let parts: Vec<String> = prefix.split('/').map(encoded).collect();
        let scope = scope(&datacenter, &namespace, &partition);
        let path = format!("/v1/kv/{}?recurse=true{scope}", parts.join("/"));
        Ok(Self { options, store: Store { client: Client::new(client)?, prefix, path, wait, index: 0 } })
    }
}

impl Source for ConsulKv {
    fn name(&self) -> Name {
        self.options.name.clone()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.options.contact.clone())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.store, Documents::new(self.options), sink))
    }
}

impl Session<Documents> for Store {
    async fn follow(&mut self, teller: &mut Teller<Documents>) -> Ended {
        let asked = self.client.asked();
        let ended = match self.watch(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        };
        self.client.turn_from(asked);
        ended
    }
}

enum Never {}

/// What stands below the key.
struct Found {
    documents: Vec<(String, Vec<u8>)>,
    index: u64,
    /// Are there keys that the token may not see?
    is_filtered: bool,
    /// How long it was.
    bytes: usize,
}

impl Store {
    async fn watch(&mut self, teller: &mut Teller<Documents>) -> Result<Never, Ended> {
        let (mut at, mut was_filtered) = (0, false);
        loop {
            let found = teller.until(self.ask(at)).await?.map_err(Ended::lost)?;
            let Found { documents, index, is_filtered, bytes } = found;
            if is_filtered && documents.is_empty() {
                return Err(Ended::lost("the token may not see what is there"));
            }
            if index < std::mem::replace(&mut self.index, index) {
                // It has begun anew, or has only forgotten when the last key was deleted: then nothing is missing.
                teller.shelf.doubt(Suspicion::KnowsLess);
            }
            if is_filtered && !was_filtered {
                teller.shelf.doubt(Suspicion::KnowsLess);
            }
            was_filtered = is_filtered;
            at = index;
            teller.shelf.warn(is_filtered.then(|| "the token may not see all of it".to_owned()));
            let batch = teller.shelf.replace(documents);
            teller.tell(batch).await?;
            teller.until(tokio::time::sleep(pace(bytes))).await?;
        }
    }

    /// All documents, as soon as they are no longer those of an index.
    async fn ask(&self, at: u64) -> Result<Found, ClientError> {
        let path = &self.path;
        let answer = if at == 0 {
            self.client.get(path, Duration::ZERO).await?
        } else {
            let query = format!("{path}&index={at}&wait={}ms", self.wait.as_millis());
            self.client.get(&query, self.wait + self.wait / 16).await?
        };
        let index = answer.number("x-consul-index");
        let index = index.ok_or_else(|| answer.wrong("it has no X-Consul-Index"))?.max(1);
        let (mut documents, is_filtered, bytes) = (Vec::new(), is_filtered(&answer), answer.body.len());
        if answer.status == http::StatusCode::NOT_FOUND {
            return Ok(Found { documents, index, is_filtered, bytes });
        }
        let answer = answer.ok()?;
        for pair in answer.json::<Vec<Pair>>()? {
            let key = pair.key.strip_prefix(&self.prefix).unwrap_or(&pair.key);
            // A key that ends like a folder is one.
            if key.is_empty() || key.ends_with('/') {
                continue;
            }
            let value = BASE64.decode(pair.value.unwrap_or_default().as_bytes());
            documents.push((key.to_owned(), value.map_err(|error| answer.wrong(error))?));
        }
        Ok(Found { documents, index, is_filtered, bytes })
    }
}
