use std::time::Duration;

use pilot_base::Name;
use pilot_source::{Ended, RegistryOptions, Running, Session, Shelf, Sink, Source, Teller, follow};
use pilot_source_http::{Client, ClientError, ClientOptions, TlsError};

use crate::apps::Apps;
use crate::message::{Answer, Applications};

/// How Eureka is followed.
pub struct EurekaOptions {
    pub registry: RegistryOptions,
    pub client: ClientOptions,
    /// How often it is asked what changed.
    pub every: Duration,
}

/// A Eureka server, or several peers of which one is asked.
pub struct EurekaSource {
    registry: RegistryOptions,
    eureka: Eureka,
}

struct Eureka {
    client: Client,
    every: Duration,
}

impl EurekaSource {
    pub fn open(options: EurekaOptions) -> Result<Self, TlsError> {
        let EurekaOptions { registry, client, every } = options;
        Ok(Self { registry, eureka: Eureka { client: Client::new(client)?, every } })
    }
}

impl Source for EurekaSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.eureka, Shelf::new(self.registry), sink))
    }
}

impl Session for Eureka {
    async fn follow(&mut self, teller: &mut Teller) -> Ended {
        match self.ask(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }
}

enum Never {}

impl Eureka {
    async fn ask(&self, teller: &mut Teller) -> Result<Never, Ended> {
        let mut apps = self.everything(teller).await?;
        loop {
            tokio::time::sleep(self.every).await;
            let delta = self.applications("/apps/delta").await.map_err(Ended::lost)?;
            let touched = apps.change(delta.application);
            if apps.hash_code() != delta.hash_code {
                apps = self.everything(teller).await?;
                continue;
            }
            let mut batch = teller.shelf.found();
            for name in touched {
                let options = teller.shelf.options();
                let one = match apps.registration(&name, options) {
                    Some(registration) => teller.shelf.put(&registration),
                    None => teller.shelf.remove(&name.to_ascii_lowercase()),
                };
                batch.events.extend(one.events);
                batch.issues.extend(one.issues);
            }
            teller.tell(batch).await?;
        }
    }

    async fn everything(&self, teller: &mut Teller) -> Result<Apps, Ended> {
        let all = self.applications("/apps").await.map_err(Ended::lost)?;
        let apps = Apps::read(all.application);
        let all = apps.all(teller.shelf.options());
        let batch = teller.shelf.replace(all);
        teller.tell(batch).await?;
        Ok(apps)
    }

    async fn applications(&self, path: &str) -> Result<Applications, ClientError> {
        let answer = self.client.page(path, Duration::ZERO).await?;
        Ok(answer.json::<Answer>()?.applications)
    }
}
