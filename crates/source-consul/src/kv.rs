//! Rules that stand in Consul's key-value store: each key below a prefix is a document.

use std::time::Duration;

use data_encoding::BASE64;
use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_source::{Ended, Running, Session, Sink, Source, Teller, follow};
use pilot_source_http::{Client, ClientError, ClientOptions, TlsError, encoded};
use pilot_source_store::Documents;
use serde::Deserialize;

/// How the store is followed.
pub struct ConsulKvOptions {
    /// How people call it.
    pub name: Name,
    pub client: ClientOptions,
    /// Documents stand below this key.
    pub prefix: String,
    pub datacenter: String,
    pub read: ReadOptions,
    /// How long a question may wait at Consul.
    pub wait: Duration,
}

/// A part of Consul's key-value store.
pub struct ConsulKv {
    name: Name,
    read: ReadOptions,
    store: Store,
}

struct Store {
    client: Client,
    prefix: String,
    path: String,
    wait: Duration,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pair {
    key: String,
    value: Option<String>,
}

impl ConsulKv {
    pub fn open(options: ConsulKvOptions) -> Result<Self, TlsError> {
        let ConsulKvOptions { name, client, prefix, datacenter, read, wait } = options;
        let prefix = format!("{}/", prefix.trim_matches('/'));
        let parts: Vec<String> = prefix.split('/').map(encoded).collect();
        let scope =
            if datacenter.is_empty() { String::new() } else { format!("&dc={}", encoded(&datacenter)) };
        let path = format!("/v1/kv/{}?recurse=true{scope}", parts.join("/"));
        Ok(Self { name, read, store: Store { client: Client::new(client)?, prefix, path, wait } })
    }
}

impl Source for ConsulKv {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.store, Documents::new(self.name, self.read), sink))
    }
}

impl Session<Documents> for Store {
    async fn follow(&mut self, teller: &mut Teller<Documents>) -> Ended {
        let mut at = 0;
        loop {
            let (documents, index) = match self.ask(at).await {
                Ok(answer) => answer,
                Err(error) => return Ended::lost(error),
            };
            // An index that goes backwards means that Consul has begun anew, and so do we.
            at = if index < at { 0 } else { index };
            let batch = teller.shelf.replace(documents);
            if let Err(ended) = teller.tell(batch).await {
                return ended;
            }
        }
    }
}

impl Store {
    /// All documents, as soon as they are no longer those of an index.
    async fn ask(&self, at: u64) -> Result<(Vec<(String, Vec<u8>)>, u64), ClientError> {
        let path = &self.path;
        let answer = if at == 0 {
            self.client.get(path, Duration::ZERO).await?
        } else {
            let query = format!("{path}&index={at}&wait={}ms", self.wait.as_millis());
            self.client.get(&query, self.wait + self.wait / 16).await?
        };
        let index = answer.number("x-consul-index");
        let index = index.ok_or_else(|| answer.wrong("it has no X-Consul-Index"))?;
        if answer.status == http::StatusCode::NOT_FOUND {
            return Ok((Vec::new(), index.max(1)));
        }
        let answer = answer.ok()?;
        let mut documents = Vec::new();
        for pair in answer.json::<Vec<Pair>>()? {
            let key = pair.key.strip_prefix(&self.prefix).unwrap_or(&pair.key);
            // A key that ends like a folder is one.
            if key.is_empty() || key.ends_with('/') {
                continue;
            }
            let value = BASE64.decode(pair.value.unwrap_or_default().as_bytes());
            documents.push((key.to_owned(), value.map_err(|error| answer.wrong(error))?));
        }
        Ok((documents, index.max(1)))
    }
}
