use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use pilot_base::Name;
use pilot_source::{Batch, Contact, Ended, Running, Session, Sink, Source, Suspicion, Teller, follow};
use pilot_source_http::{Client, ClientError, ClientOptions, LineStream, Secret, TlsError};
use pilot_source_store::{Documents, StoreOptions};
use serde_json::{Value, json};

use crate::message::{Line, Range, Token, keys_below, newest_below};

/// How etcd is followed.
pub struct EtcdOptions {
    pub store: StoreOptions,
    pub client: ClientOptions,
    /// Documents stand below this key.
    pub prefix: String,
    /// Who we are, where etcd asks for that.
    pub user: Option<(String, String)>,
    /// How often a watch that is silent is tested.
    pub alive: Duration,
}

/// A part of etcd's keys.
pub struct EtcdSource {
    store: StoreOptions,
    etcd: Etcd,
}

struct Etcd {
    client: Client,
    prefix: String,
    user: Option<(String, String)>,
    alive: Duration,
    contact: Contact,
    known: Known,
}

/// What was told last.
#[derive(Default)]
struct Known {
    /// Of the last change.
    revision: i64,
    keys: BTreeSet<String>,
}

impl EtcdSource {
    pub fn open(options: EtcdOptions) -> Result<Self, TlsError> {
        let EtcdOptions { store, client, prefix, user, alive } = options;
        let client = Client::new(client)?;
        let prefix = format!("{}/", prefix.trim_end_matches('/'));
        let contact = store.contact.clone();
        Ok(Self { store, etcd: Etcd { client, prefix, user, alive, contact, known: Known::default() } })
    }
}

impl Source for EtcdSource {
    fn name(&self) -> Name {
        self.store.name.clone()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.store.contact.clone())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.etcd, Documents::new(self.store), sink))
    }
}

impl Session<Documents> for Etcd {
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

impl Etcd {
    async fn watch(&mut self, teller: &mut Teller<Documents>) -> Result<Never, Ended> {
        self.authenticate().await.map_err(Ended::lost)?;
        let range = self.ask("/v3/kv/range", keys_below(&self.prefix)).await.map_err(Ended::lost)?;
        let range: Range = range.json().map_err(Ended::lost)?;
        let revision = range.header.revision;
        if revision < self.known.revision {
            // Its state is another one than before.
            teller.shelf.doubt(Suspicion::KnowsLess);
        }
        let mut documents = Vec::new();
        for pair in &range.kvs {
            documents
                .push((self.below(&pair.key().map_err(Ended::lost)?), pair.value().map_err(Ended::lost)?));
        }
        self.known = Known { revision, keys: documents.iter().map(|(key, _)| key.clone()).collect() };
        let mut lines = self.changes_from_now_on().await.map_err(Ended::lost)?;
        let batch = teller.shelf.replace(documents);
        teller.tell(batch).await?;
        loop {
            match teller.until(self.line(&mut lines)).await?.map_err(Ended::lost)? {
                Some(line) => {
                    let batch = self.take(&line, &mut teller.shelf).map_err(Ended::lost)?;
                    teller.tell(batch).await?;
                }
                None => lines = self.changes_from_now_on().await.map_err(Ended::lost)?,
            }
        }
    }

    /// A watch of what is not known yet.
    async fn changes_from_now_on(&self) -> Result<LineStream, ClientError> {
        let mut request = keys_below(&self.prefix);
        request["start_revision"] = json!(self.known.revision.saturating_add(1).to_string());
        let request = json!({"create_request": request}).to_string();
        self.client.lines(Method::POST, "/v3/watch", request.into()).await
    }

    /// Asks for a token, which etcd forgets after a while; the next session asks for another.
    async fn authenticate(&mut self) -> Result<(), ClientError> {
        let Some((name, password)) = &self.user else { return Ok(()) };
        // An old token would be refused here, and another server is to be asked if this one cannot be.
        self.client = self.client.with_secret(None);
        let answer = self.ask("/v3/auth/authenticate", json!({"name": name, "password": password})).await?;
        let token = answer.json::<Token>()?.token;
        self.client = self.client.with_secret(Secret::new("authorization", &token));
        Ok(())
    }

    /// The next line of a watch. One that is silent may be broken, or its server cut off from the others: so it is asked
    /// something that most of them have to agree on. If that is something new, the watch has been forgotten on the way, and
    /// there is no line.
    async fn line(&self, lines: &mut LineStream) -> Result<Option<String>, ClientError> {
        let mut next = std::pin::pin!(lines.next());
        loop {
            tokio::select! {
                line = &mut next => return line.map(Some),
                () = tokio::time::sleep(self.alive) => {
                    let newest: Range = self.ask("/v3/kv/range", newest_below(&self.prefix)).await?.json()?;
                    self.contact.heard();
                    let is_newer = newest.kvs.iter().any(|pair| pair.mod_revision > self.known.revision);
                    if is_newer || usize::try_from(newest.count) != Ok(self.known.keys.len()) {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn take(&mut self, line: &str, documents: &mut Documents) -> Result<Batch, String> {
        let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let Some(watched) = line.result.filter(|watched| !watched.canceled) else {
            return Err(format!("the watch is over: {}", line.error));
        };
        let mut batch = Batch::default();
        for event in watched.events {
            let key = self.below(&event.kv.key()?);
            self.known.revision = self.known.revision.max(event.kv.mod_revision);
            batch.extend(match event.kind.as_str() {
                "DELETE" => {
                    self.known.keys.remove(&key);
                    documents.remove(&key)
                }
                _ => {
                    let batch = documents.put(&key, &event.kv.value()?);
                    self.known.keys.insert(key);
                    batch
                }
            });
        }
        Ok(batch)
    }

    fn below(&self, key: &str) -> String {
        key.strip_prefix(&self.prefix).unwrap_or(key).to_owned()
    }

    async fn ask(&self, path: &str, body: Value) -> Result<pilot_source_http::Answer, ClientError> {
        self.client.ask(Method::POST, path, body.to_string().into(), Duration::ZERO).await?.ok()
    }
}
