use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::StatusCode;
use pilot_base::Name;
use pilot_source::{
    Batch, Contact, Ended, Readings, Registration, RegistryOptions, Running, Session, Shelf, Sink, Source,
    Teller, follow, until_due,
};
use pilot_source_http::{Client, ClientError, ClientOptions, EventStream, ServerEvent, TlsError, encoded};
use serde_json::Value;
use tokio::time::Instant;

use crate::message::{Apps, EventData, One, app_id, host_name, name, registration, whole};

/// How Marathon is followed.
pub struct MarathonOptions {
    pub registry: RegistryOptions,
    pub client: ClientOptions,
    /// How often a stream that is silent is tested.
    pub alive: Duration,
    /// How often it is begun anew, and everything asked for: what events do not tell is found then.
    pub anew: Duration,
}

/// A Marathon, or several of which one is asked.
pub struct MarathonSource {
    registry: RegistryOptions,
    marathon: Marathon,
}

struct Marathon {
    client: Client,
    alive: Duration,
    anew: Duration,
    contact: Contact,
}

impl MarathonSource {
    pub fn open(options: MarathonOptions) -> Result<Self, TlsError> {
        let MarathonOptions { registry, client, alive, anew } = options;
        let (client, contact) = (Client::new(client)?, registry.contact.clone());
        Ok(Self { registry, marathon: Marathon { client, alive, anew, contact } })
    }
}

impl Source for MarathonSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.registry.contact.clone())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.marathon, Shelf::new(self.registry), sink))
    }
}

impl Session for Marathon {
    async fn follow(&mut self, teller: &mut Teller) -> Ended {
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

/// What has happened.
enum Heard {
    Event(Result<ServerEvent, ClientError>),
    App(Result<Answered, Ended>),
    /// Somebody is to be tried again.
    Time,
    /// The stream is old.
    Old,
}

/// An app by its id, and what was learnt of it.
type Answered = (String, Result<Option<Value>, ClientError>);

/// One session: the stream, and which apps are to be read.
struct Watch<'a> {
    marathon: &'a Marathon,
    events: EventStream,
    begun: Instant,
    readings: Readings<Result<Option<Value>, ClientError>>,
    hosts: Hosts,
}

/// The ids of apps by the name that Mesos-DNS has for them, which several may share.
#[derive(Default)]
struct Hosts(BTreeMap<String, BTreeSet<String>>);

impl Marathon {
    /// A stream of which nothing is heard may have been forgotten on the way, and events are not promised to be all there
    /// is: so it is begun anew again and again.
    async fn watch(&self, teller: &mut Teller) -> Result<Never, Ended> {
        loop {
            let watch = self.begin(teller).await?;
            watch.go_on(teller).await?;
        }
    }

    async fn begin(&self, teller: &mut Teller) -> Result<Watch<'_>, Ended> {
        // The stream comes first: what changes while everything is listed is told, and looked at again.
        let events = self.client.events("/v2/events").await.map_err(Ended::lost)?;
        let answer = self.client.page("/v2/apps?embed=apps.tasks", Duration::ZERO).await;
        let apps = answer.and_then(|answer| answer.json::<Apps>()).map_err(Ended::lost)?.apps;
        let mut hosts = Hosts::default();
        let known = apps.iter().filter_map(app_id).inspect(|id| _ = hosts.add(id)).count();
        if known == 0 && !apps.is_empty() {
            return Err(Ended::lost("the answer cannot be read: no app in it has an id"));
        }
        let all = apps.into_iter().filter_map(|app| hosts.registration(app, teller.shelf.options()));
        let all: Vec<Registration> = all.collect();
        let batch = teller.shelf.replace(all);
        teller.tell(batch).await?;
        Ok(Watch { marathon: self, events, begun: Instant::now(), readings: Readings::default(), hosts })
    }

    async fn app(client: Client, id: String) -> Result<Option<Value>, ClientError> {
        let parts: Vec<String> = id.split('/').filter(|part| !part.is_empty()).map(encoded).collect();
        let path = format!("/v2/apps/{}?embed=app.tasks", parts.join("/"));
        let answer = client.get(&path, Duration::ZERO).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(answer.ok()?.json::<One>()?.app))
    }
}

impl Watch<'_> {
    /// Follows the stream until it is old.
    async fn go_on(mut self, teller: &mut Teller) -> Result<(), Ended> {
        loop {
            let client = &self.marathon.client;
            self.readings.ask(|id| Marathon::app(client.clone(), id.to_owned()));
            let mut batch = Batch::default();
            match teller.until(self.heard()).await? {
                Heard::Event(event) => {
                    // Events that are not about one app say nothing about instances.
                    let event = event.map_err(Ended::lost)?;
                    let about = serde_json::from_str::<EventData>(&event.data).ok();
                    self.readings.add(about.and_then(EventData::app));
                }
                Heard::App(read) => {
                    self.take(read?, teller, &mut batch)?;
                    // What has come meanwhile is told together with it.
                    while let Some(read) = self.readings.try_next() {
                        self.take(read?, teller, &mut batch)?;
                    }
                }
                Heard::Time => self.readings.try_again(Instant::now()),
                Heard::Old => return Ok(()),
            }
            teller.tell(batch).await?;
        }
    }

    fn take(&mut self, (id, read): Answered, teller: &mut Teller, batch: &mut Batch) -> Result<(), Ended> {
        let app = match read {
            Err(error) if error.is_about_one_page() => {
                self.readings.failed(&id);
                batch.extend(teller.shelf.put(Registration::unknown(name(&id), error)));
                return Ok(());
            }
            read => read.map_err(Ended::lost)?,
        };
        self.readings.succeeded(&id);
        let others = if app.is_some() { self.hosts.add(&id) } else { self.hosts.remove(&id) };
        self.readings.add(others);
        batch.extend(match app.and_then(|app| self.hosts.registration(app, teller.shelf.options())) {
            Some(registration) => teller.shelf.put(registration),
            None => teller.shelf.remove(&name(&id)),
        });
        Ok(())
    }

    async fn heard(&mut self) -> Heard {
        let due = self.readings.due();
        tokio::select! {
            biased;
            Some(read) = self.readings.next() => Heard::App(read),
            event = event(&mut self.events, self.marathon) => Heard::Event(event),
            () = until_due(due) => Heard::Time,
            () = tokio::time::sleep_until(self.begun + self.marathon.anew) => Heard::Old,
        }
    }
}

impl Hosts {
    /// Notes an app. Tells the others whose name it has, if it is new: they are to know of each other.
    fn add(&mut self, id: &str) -> Vec<String> {
        let id = whole(id);
        let apps = self.0.entry(host_name(&id)).or_default();
        let others = apps.iter().cloned().collect();
        if apps.insert(id) { others } else { Vec::new() }
    }

    fn remove(&mut self, id: &str) -> Vec<String> {
        let id = whole(id);
        let Some(apps) = self.0.get_mut(&host_name(&id)) else { return Vec::new() };
        let others = if apps.remove(&id) { apps.iter().cloned().collect() } else { Vec::new() };
        if apps.is_empty() {
            self.0.remove(&host_name(&id));
        }
        others
    }

    /// An app as a service. It says so if another one has the same name: callers of either reach both.
    fn registration(&self, app: Value, options: &RegistryOptions) -> Option<Registration> {
        let id = whole(app_id(&app)?);
        let mut registration = registration(app, options)?;
        let host = host_name(&id);
        let others = self.0.get(&host).into_iter().flatten().filter(|other| **other != id);
        let each =
            others.map(|other| format!("the app {other} has the name {host} too; who calls it reaches both"));
        registration.wrong.extend(each);
        Some(registration)
    }
}

/// The next event. A stream that is silent may be broken, so Marathon is asked whether it is there.
async fn event(events: &mut EventStream, marathon: &Marathon) -> Result<ServerEvent, ClientError> {
    let mut next = std::pin::pin!(events.next());
    loop {
        tokio::select! {
            event = &mut next => return event,
            () = tokio::time::sleep(marathon.alive) => {
                marathon.client.page("/ping", Duration::ZERO).await?;
                marathon.contact.heard();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pilot_source::RegistryOptions;
    use serde_json::json;

    use super::Hosts;

    #[test]
    fn apps_that_share_a_name_know_of_each_other() {
        let mut hosts = Hosts::default();
        assert!(hosts.add("/shop/cart").is_empty() && hosts.add("/other").is_empty());
        assert_eq!(hosts.add("/cart-shop"), ["/shop/cart"]);
        assert!(hosts.add("cart-shop").is_empty(), "it is known");
        let options = RegistryOptions::new("marathon", "marathon.mesos");
        let marked =
            |id: &str, hosts: &Hosts| hosts.registration(json!({"id": id}), &options).unwrap().wrong.join("");
        assert!(marked("/shop/cart", &hosts).contains("the app /cart-shop has the name cart-shop too"));
        assert_eq!(marked("/other", &hosts), "");
        assert_eq!(hosts.remove("/cart-shop"), ["/shop/cart"]);
        assert_eq!(marked("/shop/cart", &hosts), "");
    }
}
