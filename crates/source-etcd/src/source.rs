use std::time::Duration;

use http::Method;
use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_source::{Batch, Ended, Running, Session, Sink, Source, Teller, follow};
use pilot_source_http::{Client, ClientError, ClientOptions, LineStream, Secret, TlsError};
use pilot_source_store::Documents;
use serde_json::{Value, json};

use crate::message::{Line, Range, Token, keys_below};

/// How etcd is followed.
pub struct EtcdOptions {
    /// How people call it.
    pub name: Name,
    pub client: ClientOptions,
    /// Documents stand below this key.
    pub prefix: String,
    /// Who we are, where etcd asks for that.
    pub user: Option<(String, String)>,
    pub read: ReadOptions,
    /// How often a watch that is silent is tested.
    pub alive: Duration,
}

/// A part of etcd's keys.
pub struct EtcdSource {
    name: Name,
    read: ReadOptions,
    etcd: Etcd,
}

struct Etcd {
    options: ClientOptions,
    client: Client,
    prefix: String,
    user: Option<(String, String)>,
    alive: Duration,
}

impl EtcdSource {
    pub fn open(options: EtcdOptions) -> Result<Self, TlsError> {
        let EtcdOptions { name, client: options, prefix, user, read, alive } = options;
        let client = Client::new(options.clone())?;
        let prefix = format!("{}/", prefix.trim_end_matches('/'));
        Ok(Self { name, read, etcd: Etcd { options, client, prefix, user, alive } })
    }
}

impl Source for EtcdSource {
    fn name(&self) -> Name {
        self.name.clone()
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.etcd, Documents::new(self.name, self.read), sink))
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
        let next = range.header.revision + 1;
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
            let line = self.line(&mut lines).await.map_err(Ended::lost)?;
            let batch = self.changes(&line, &mut teller.shelf).map_err(Ended::lost)?;
            teller.tell(batch).await?;
        }
    }

    /// Asks for a token, which etcd forgets after a while; the next session asks for another.
    async fn authenticate(&mut self) -> Result<(), ClientError> {
        let Some((name, password)) = &self.user else { return Ok(()) };
        let answer = self.ask("/v3/auth/authenticate", json!({"name": name, "password": password})).await?;
        let token = answer.json::<Token>()?.token;
        let secret = Secret::new("authorization", &token);
        let options = ClientOptions { secret, ..self.options.clone() };
        self.client = Client::new(options).map_err(|error| answer.wrong(error))?;
        Ok(())
    }

    /// The next line of a watch. One that is silent may be broken, so etcd is asked whether it is there.
    async fn line(&self, lines: &mut LineStream) -> Result<String, ClientError> {
        let mut next = std::pin::pin!(lines.next());
        loop {
            tokio::select! {
                line = &mut next => return line,
                () = tokio::time::sleep(self.alive) => {
                    self.client.page("/version", Duration::ZERO).await?;
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
            batch.events.extend(one.events);
            batch.issues.extend(one.issues);
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
