use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;
use pilot_base::Name;
use pilot_source::{
    Batch, Ended, Registration, RegistryOptions, Running, Session, Shelf, Sink, Source, Teller, follow,
};
use pilot_source_http::{Client, ClientError, ClientOptions, LineStream, TlsError, encoded, parts};
use serde_json::Value;

use crate::message::{Line, Listed, Place, Registered};

/// How Nomad is followed.
pub struct NomadOptions {
    pub registry: RegistryOptions,
    pub client: ClientOptions,
    /// `*` for all of them.
    pub namespace: String,
    /// How often a stream that is silent is tested.
    pub alive: Duration,
}

/// A region of Nomad.
pub struct NomadSource {
    registry: RegistryOptions,
    nomad: Nomad,
}

struct Nomad {
    client: Client,
    namespace: String,
    alive: Duration,
}

impl NomadSource {
    pub fn open(options: NomadOptions) -> Result<Self, TlsError> {
        let NomadOptions { registry, client, namespace, alive } = options;
        Ok(Self {
            registry,
            nomad: Nomad { client: Client::new(client)?, namespace: encoded(&namespace), alive },
        })
    }
}

impl Source for NomadSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.nomad, Shelf::new(self.registry), sink))
    }
}

impl Session for Nomad {
    async fn follow(&mut self, teller: &mut Teller) -> Ended {
        match self.watch(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }
}

enum Never {}

impl Nomad {
    async fn watch(&self, teller: &mut Teller) -> Result<Never, Ended> {
        let (all, index) = self.everything().await.map_err(Ended::lost)?;
        let path = format!("/v1/event/stream?topic=Service&namespace={}&index={}", self.namespace, index + 1);
        let lines = self.client.lines(Method::GET, &path, "".into()).await;
        let mut lines = lines.map_err(Ended::lost)?;
        let batch = teller.shelf.replace(all);
        teller.tell(batch).await?;
        loop {
            let line = self.line(&mut lines).await.map_err(Ended::lost)?;
            let line: Line = serde_json::from_str(&line).map_err(|error| Ended::lost(lines.wrong(error)))?;
            let places: BTreeSet<Place> =
                line.events.into_iter().filter_map(|event| event.payload.service).collect();
            let mut batch = Batch::default();
            for place in places {
                let registration = self.registration(&place).await.map_err(Ended::lost)?;
                let one = if registration.instances.is_empty() && registration.unreadable.is_empty() {
                    teller.shelf.remove(&registration.name)
                } else {
                    teller.shelf.put(&registration)
                };
                batch.events.extend(one.events);
                batch.issues.extend(one.issues);
            }
            teller.tell(batch).await?;
        }
    }

    /// All services, and the index from which on events are not known.
    async fn everything(&self) -> Result<(Vec<Registration>, u64), ClientError> {
        let answer =
            self.client.page(&format!("/v1/services?namespace={}", self.namespace), Duration::ZERO).await?;
        let index = answer.number("x-nomad-index").ok_or_else(|| answer.wrong("it has no X-Nomad-Index"))?;
        let mut all = Vec::new();
        for listed in answer.json::<Vec<Listed>>()? {
            for named in listed.services {
                let place = Place { namespace: listed.namespace.clone(), service_name: named.service_name };
                all.push(self.registration(&place).await?);
            }
        }
        Ok((all, index))
    }

    async fn registration(&self, place: &Place) -> Result<Registration, ClientError> {
        let Place { namespace, service_name } = place;
        let path = format!("/v1/service/{}?namespace={}", encoded(service_name), encoded(namespace));
        let answer = self.client.page(&path, Duration::ZERO).await?;
        let mut registration = Registration { name: place.name(), ..Registration::default() };
        for (i, part) in parts::<Registered>(answer.json::<Value>()?).into_iter().enumerate() {
            match part {
                Ok(registered) => registration.instances.push(registered.instance()),
                Err(why) => registration.unreadable.push((i.to_string(), why)),
            }
        }
        Ok(registration)
    }

    /// The next line of the stream. One that is silent may be broken, so Nomad is asked whether it is there.
    async fn line(&self, lines: &mut LineStream) -> Result<String, ClientError> {
        let mut next = std::pin::pin!(lines.next());
        loop {
            tokio::select! {
                line = &mut next => return line,
                () = tokio::time::sleep(self.alive) => {
                    self.client.page("/v1/status/leader", Duration::ZERO).await?;
                }
            }
        }
    }
}
