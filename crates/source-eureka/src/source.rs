use std::collections::BTreeSet;
use std::time::Duration;

use http::StatusCode;
use pilot_base::{Hash64, Name};
use pilot_source::{Contact, Ended, RegistryOptions, Running, Session, Shelf, Sink, Source, Teller, follow};
use pilot_source_http::{Answer as HttpAnswer, Client, ClientError, ClientOptions, TlsError};
use tokio::time::Instant;

use crate::apps::Apps;
use crate::message::{Answer, Applications, Summary};

/// How Eureka is followed.
pub struct EurekaOptions {
    pub registry: RegistryOptions,
    pub client: ClientOptions,
    /// How often it is asked what changed; not more often than ten times a second, nor less than once a minute.
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
        Ok(Self {
            registry,
            eureka: Eureka { client: Client::new(client)?, every: every.clamp(SHORTEST, SELDOM) },
        })
    }
}

impl Source for EurekaSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.registry.contact.clone())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.eureka, Shelf::new(self.registry), sink))
    }
}

impl Session for Eureka {
    async fn follow(&mut self, teller: &mut Teller) -> Ended {
        let asked = self.client.asked();
        let ended = match self.ask(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        };
        self.client.turn_from(asked);
        ended
    }
}

enum Never {}

/// The last delta: what it was, and whether we had what it said that there is.
#[derive(Default)]
struct Known {
    delta: Option<Hash64>,
    agrees: bool,
    /// The delta that another page contradicted: whoever is listed in it may be gone by now.
    stale: Option<Hash64>,
}

impl Known {
    /// Does it say something that has not been taken in, and that may be true?
    fn is_new(&mut self, answer: &HttpAnswer) -> bool {
        let delta = Some(Hash64::of(&answer.body));
        let is_new = std::mem::replace(&mut self.delta, delta) != delta && self.stale != delta;
        if is_new {
            self.stale = None;
        }
        is_new
    }
}

/// A page that Eureka makes while the last of many changes arrives lacks that change, and is kept for three minutes or
/// until the next one; its sum is that of the page, so it agrees with itself. Another form of the page is made at another
/// time: so often it is looked at too.
const SECOND_LOOK: u64 = 10;

/// If what changed and what there is do not come together, everything is asked for again, but not each time: a server
/// may keep an old page of either for minutes.
const LONGEST: Duration = Duration::from_secs(15);

/// Asked more often, a server would only be kept busy: it makes its pages anew every thirty seconds.
const SHORTEST: Duration = Duration::from_millis(100);

/// What servers answer that tell no changes: Netflix's where that is switched off, and those that never knew how.
const NO_CHANGES: [StatusCode; 4] = [
    StatusCode::FORBIDDEN,
    StatusCode::NOT_FOUND,
    StatusCode::METHOD_NOT_ALLOWED,
    StatusCode::NOT_IMPLEMENTED,
];

/// A server tells changes for three minutes. Whoever asks less often misses some, and the sum of all statuses does not show it
/// where only metadata are different.
const SELDOM: Duration = Duration::from_secs(60);

/// Where a server tells no changes, everything is asked for. It may be very much.
const WHOLE: Duration = Duration::from_secs(5);

impl Eureka {
    async fn ask(&self, teller: &mut Teller) -> Result<Never, Ended> {
        // Whether this server tells changes is found out below.
        teller.shelf.warn(None);
        let mut apps = self.everything(teller).await?;
        let mut known = Known::default();
        let (mut pause, mut again) = (self.every, Instant::now());
        for asked in 1_u64.. {
            teller.until(tokio::time::sleep(self.every)).await?;
            let answer = match self.client.page("/apps/delta", Duration::ZERO).await {
                Ok(answer) => answer,
                Err(error) if error.status().is_some_and(|status| NO_CHANGES.contains(&status)) => {
                    return self.ask_for_everything(teller).await;
                }
                Err(error) => return Err(Ended::lost(error)),
            };
            // For three minutes a delta has everything that happened in them; most of the time it says nothing new.
            if known.is_new(&answer) {
                let delta = applications(&answer).map_err(Ended::lost)?;
                let touched = apps.change(delta.application);
                known.agrees = apps.hash_code() == delta.hash_code;
                if known.agrees {
                    pause = self.every;
                    self.tell(teller, &apps, touched).await?;
                }
            }
            if known.agrees && asked.is_multiple_of(SECOND_LOOK) {
                known.agrees = self.second_look(&apps).await.map_err(Ended::lost)?;
                known.stale = if known.agrees { None } else { known.delta };
            }
            if known.agrees {
                let batch = teller.shelf.found();
                teller.tell(batch).await?;
            } else if Instant::now() >= again {
                apps = self.everything(teller).await?;
                let (delta, stale) = (known.stale, known.stale);
                // It may be older than the delta, which is taken in once more, unless that is the one that is too old.
                // Then the other page says whether this is all.
                let agrees = stale.is_some() && self.second_look(&apps).await.map_err(Ended::lost)?;
                known = Known { delta, agrees, stale };
                again = Instant::now() + pause;
                pause = (pause * 2).min(LONGEST);
            }
        }
        Err(Ended::lost("it was asked more often than can be counted"))
    }

    /// Follows a server that refuses to tell what changed.
    async fn ask_for_everything(&self, teller: &mut Teller) -> Result<Never, Ended> {
        let every = self.every.max(WHOLE);
        let why = format!("it refuses to tell what changed, so everything is asked for, every {every:?}");
        teller.shelf.warn(Some(why));
        loop {
            self.everything(teller).await?;
            teller.until(tokio::time::sleep(every)).await?;
        }
    }

    /// Does another page agree that there is nothing else?
    async fn second_look(&self, apps: &Apps) -> Result<bool, ClientError> {
        let answer = self.client.page_with("/apps/delta", ("x-eureka-accept", "compact")).await?;
        Ok(answer.json::<Summary>()?.applications.hash_code == apps.hash_code())
    }

    async fn tell(&self, teller: &mut Teller, apps: &Apps, touched: BTreeSet<String>) -> Result<(), Ended> {
        let mut batch = teller.shelf.found();
        for name in touched {
            let options = teller.shelf.options();
            let one = match apps.registration(&name, options) {
                Some(registration) => teller.shelf.put(registration),
                None => teller.shelf.remove(&name.to_ascii_lowercase()),
            };
            batch.extend(one);
        }
        teller.tell(batch).await
    }

    async fn everything(&self, teller: &mut Teller) -> Result<Apps, Ended> {
        let answer = self.client.page("/apps", Duration::ZERO).await.map_err(Ended::lost)?;
        let apps = Apps::read(applications(&answer).map_err(Ended::lost)?.application);
        let all = apps.all(teller.shelf.options());
        let batch = teller.shelf.replace(all);
        teller.tell(batch).await?;
        Ok(apps)
    }
}

fn applications(answer: &HttpAnswer) -> Result<Applications, ClientError> {
    Ok(answer.json::<Answer>()?.applications)
}
