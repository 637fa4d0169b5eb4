use std::time::Duration;

use http::Method;
use pilot_base::Name;
use pilot_source::{Batch, Contact, Ended, Running, Session, Sink, Source, Suspicion, Teller, follow};
use pilot_source_http::{Client, ClientError, ClientOptions, LineStream, Secret, TlsError};
use pilot_source_store::{Documents, StoreOptions};
use serde_json::{Value, json};

use crate::message::{Line, Range, Token, keys_below};

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
    /// At which revision the last session began.
    begun_at: i64,
}

impl EtcdSource {
    pub fn open(options: EtcdOptions) -> Result<Self, TlsError> {
        let EtcdOptions { store, client, prefix, user, alive } = options;
        let client = Client::new(client)?;
        let prefix = format!("{}/", prefix.trim_end_matches('/'));
        Ok(Self { store, etcd: Etcd { client, prefix, user, alive, begun_at: 0 } })
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
        match self.watch(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }
}

enum Never {}

impl Etcd {
    async fn watch(&mut self, teller: &mut Teller<Documents>) -> Result<Never, Ended> {
        self.authenticate().await.map_err(Ended::lost)?;
        let range = self.ask("/v3/kv/range", keys_below(&self.prefix)).await.map_err(Ended::lost)?;
        let range: Range = range.json().map_err(Ended::lost)?;
        let begun_at = range.header.revision;
        if begun_at < std::mem::replace(&mut self.begun_at, begun_at) {
            // Its state is another one than before.
            teller.shelf.doubt(Suspicion::KnowsLess);
        }
        let next = begun_at + 1;
        let mut documents = Vec::new();
        for pair in &range.kvs {
            documents
                .push((self.below(&pair.key().map_err(Ended::lost)?), pair.value().map_err(Ended::lost)?));
        }
        let mut request = keys_below(&self.prefix);
        request["start_revision"] = json!(next.to_string());
        let request = json!({"create_request": request}).to_string();
        let lines = self.client.lines(Method::POST, "/v3/watch", request.into()).await;
        let mut lines = lines.map_err(Ended::lost)?;
        let batch = teller.shelf.replace(documents);
        teller.tell(batch).await?;
        loop {
            let line = teller.until(self.line(&mut lines)).await?.map_err(Ended::lost)?;
            let batch = self.changes(&line, &mut teller.shelf).map_err(Ended::lost)?;
            teller.tell(batch).await?;
        }
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
    /// something that most of them have to agree on.
    async fn line(&self, lines: &mut LineStream) -> Result<String, ClientError> {
        let mut next = std::pin::pin!(lines.next());
        loop {
            tokio::select! {
                line = &mut next => return line,
                () = tokio::time::sleep(self.alive) => {
                    let mut count = keys_below(&self.prefix);
                    count["count_only"] = json!(true);
                    self.ask("/v3/kv/range", count).await?;
                }
            }
        }
    }

    fn changes(&self, line: &str, documents: &mut Documents) -> Result<Batch, String> {
        let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let Some(watched) = line.result.filter(|watched| !watched.canceled) else {
            return Err(format!("the watch is over: {}", line.error));
        };
        let mut batch = Batch::default();
        for event in watched.events {
            let key = self.below(&event.kv.key()?);
            let one = match event.kind.as_str() {
                "DELETE" => documents.remove(&key),
                _ => documents.put(&key, &event.kv.value()?),
            };
            batch.extend(one);
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
