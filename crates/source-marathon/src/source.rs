use std::time::Duration;

use http::StatusCode;
use pilot_base::Name;
use pilot_source::{
    Ended, Registration, RegistryOptions, Running, Session, Shelf, Sink, Source, Teller, follow,
};
use pilot_source_http::{Client, ClientError, ClientOptions, EventStream, ServerEvent, TlsError, encoded};

use crate::message::{Apps, EventData, One, name, registration};

/// How Marathon is followed.
pub struct MarathonOptions {
    pub registry: RegistryOptions,
    pub client: ClientOptions,
    /// How often a stream that is silent is tested.
    pub alive: Duration,
}

/// A Marathon, or several of which one is asked.
pub struct MarathonSource {
    registry: RegistryOptions,
    marathon: Marathon,
}

struct Marathon {
    client: Client,
    alive: Duration,
}

impl MarathonSource {
    pub fn open(options: MarathonOptions) -> Result<Self, TlsError> {
        let MarathonOptions { registry, client, alive } = options;
        Ok(Self { registry, marathon: Marathon { client: Client::new(client)?, alive } })
    }
}

impl Source for MarathonSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.marathon, Shelf::new(self.registry), sink))
    }
}

impl Session for Marathon {
    async fn follow(&mut self, teller: &mut Teller) -> Ended {
        match self.watch(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }
}

enum Never {}

impl Marathon {
    async fn watch(&self, teller: &mut Teller) -> Result<Never, Ended> {
        // The stream comes first: what changes while everything is listed is told, and looked at again.
        let mut events = self.client.events("/v2/events").await.map_err(Ended::lost)?;
        let all = self.everything().await.map_err(Ended::lost)?;
        let batch = teller.shelf.replace(all);
        teller.tell(batch).await?;
        loop {
            let event = self.event(&mut events).await.map_err(Ended::lost)?;
            // Events that are not about one app say nothing about instances.
            let about = serde_json::from_str::<EventData>(&event.data).ok().and_then(EventData::app);
            let Some(app) = about else { continue };
            let batch = match self.app(&app).await.map_err(Ended::lost)? {
                Some(registration) => teller.shelf.put(&registration),
                None => teller.shelf.remove(&name(&app)),
            };
            teller.tell(batch).await?;
        }
    }

    async fn everything(&self) -> Result<Vec<Registration>, ClientError> {
        let answer = self.client.page("/v2/apps?embed=apps.tasks", Duration::ZERO).await?;
        Ok(answer.json::<Apps>()?.apps.into_iter().filter_map(registration).collect())
    }

    async fn app(&self, id: &str) -> Result<Option<Registration>, ClientError> {
        let parts: Vec<String> = id.split('/').filter(|part| !part.is_empty()).map(encoded).collect();
        let path = format!("/v2/apps/{}?embed=app.tasks", parts.join("/"));
        let answer = self.client.get(&path, Duration::ZERO).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(registration(answer.ok()?.json::<One>()?.app))
    }

    /// The next event. A stream that is silent may be broken, so Marathon is asked whether it is there.
    async fn event(&self, events: &mut EventStream) -> Result<ServerEvent, ClientError> {
        let mut next = std::pin::pin!(events.next());
        loop {
            tokio::select! {
                event = &mut next => return event,
                () = tokio::time::sleep(self.alive) => {
                    self.client.page("/ping", Duration::ZERO).await?;
                }
            }
        }
    }
}
