use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::Method;
use pilot_base::Name;
use pilot_source::{
    Batch, Contact, Ended, Readings, Registration, RegistryOptions, Running, Session, Shelf, Sink, Source,
    Suspicion, Teller, follow, until_due,
};
use pilot_source_http::{Client, ClientError, ClientOptions, LineStream, TlsError, encoded, parts};
use serde_json::Value;
use tokio::time::Instant;

use crate::message::{Line, Listed, Place, Registered};

/// How Nomad is followed.
pub struct NomadOptions {
    pub registry: RegistryOptions,
    pub client: ClientOptions,
    /// `*` for all of them.
    pub namespace: String,
    /// How often a stream that is silent is tested.
    pub alive: Duration,
    /// How long it may be silent: Nomad says every few seconds that it is alive.
    pub silence: Duration,
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
    silence: Duration,
    contact: Contact,
    /// What was heard last, in this session or an earlier one.
    last: u64,
}

impl NomadSource {
    pub fn open(options: NomadOptions) -> Result<Self, TlsError> {
        let NomadOptions { registry, client, namespace, alive, silence } = options;
        let (client, namespace, contact) =
            (Client::new(client)?, encoded(&namespace), registry.contact.clone());
        Ok(Self { registry, nomad: Nomad { client, namespace, alive, silence, contact, last: 0 } })
    }
}

impl Source for NomadSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.registry.contact.clone())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.nomad, Shelf::new(self.registry), sink))
    }
}

impl Session for Nomad {
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
    Line(Result<String, ClientError>),
    Service(Result<(String, Result<Registration, ClientError>), Ended>),
    /// Somebody is to be tried again.
    Time,
}

/// One session: the stream, and which services are to be read.
struct Watch<'a> {
    nomad: &'a mut Nomad,
    lines: LineStream,
    /// When it said something for the last time.
    heard: Instant,
    readings: Readings<Result<Registration, ClientError>>,
}

impl Nomad {
    async fn watch(&mut self, teller: &mut Teller) -> Result<Never, Ended> {
        let (places, index) = self.places().await.map_err(Ended::lost)?;
        if index < std::mem::replace(&mut self.last, index) {
            // Its state is another one than before.
            teller.shelf.doubt(Suspicion::KnowsLess);
        }
        // The stream comes before anything is read: what changes meanwhile is told, and read again. Nomad remembers the
        // last hundred events, and a catalog takes longer than that.
        let path = format!(
            "/v1/event/stream?topic=Service&namespace={}&index={}",
            self.namespace,
            index.saturating_add(1)
        );
        let lines = self.client.lines(Method::GET, &path, "".into()).await.map_err(Ended::lost)?;
        let mut watch = Watch { nomad: self, lines, heard: Instant::now(), readings: Readings::default() };
        let all = watch.everything(places).await?;
        let batch = teller.shelf.replace(all);
        teller.tell(batch).await?;
        watch.go_on(teller).await
    }

    /// The places of all services, and the index from which on events are not known.
    async fn places(&self) -> Result<(BTreeSet<Place>, u64), ClientError> {
        let path = format!("/v1/services?namespace={}", self.namespace);
        let answer = self.client.page(&path, Duration::ZERO).await?;
        let index = answer.number("x-nomad-index").ok_or_else(|| answer.wrong("it has no X-Nomad-Index"))?;
        let mut places = BTreeSet::new();
        for Listed { namespace, services } in answer.json::<Vec<Listed>>()? {
            let names = services.into_iter().map(|named| named.service_name);
            places.extend(names.map(|service_name| Place { namespace: namespace.clone(), service_name }));
        }
        Ok((places, index))
    }

    async fn registration(client: Client, place: Place) -> Result<Registration, ClientError> {
        let Place { namespace, service_name } = &place;
        let path = format!("/v1/service/{}?namespace={}", encoded(service_name), encoded(namespace));
        let answer = client.page(&path, Duration::ZERO).await?;
        let mut registration = Registration { name: place.name(), ..Registration::default() };
        for (i, part) in parts::<Registered>(answer.json::<Value>()?).into_iter().enumerate() {
            match part {
                Ok(registered) => registration.instances.push(registered.instance()),
                Err(why) => registration.unreadable.push((i.to_string(), why)),
            }
        }
        Ok(registration)
    }
}

impl Watch<'_> {
    /// Reads all services. If not one can be read, it is not about one of them.
    async fn everything(&mut self, places: BTreeSet<Place>) -> Result<Vec<Registration>, Ended> {
        let mut left: BTreeSet<String> = places.iter().map(Place::key).collect();
        let mut all: BTreeMap<String, Registration> = BTreeMap::new();
        self.readings.add(left.iter().cloned());
        while !left.is_empty() {
            self.read_on();
            match self.heard().await {
                Heard::Line(line) => self.take_line(&line.map_err(Ended::lost)?)?,
                Heard::Service(read) => {
                    let (key, registration) = self.registration(read?)?;
                    left.remove(&key);
                    all.insert(key, registration);
                }
                Heard::Time => self.readings.try_again(Instant::now()),
            }
        }
        let all: Vec<Registration> = all.into_values().filter(|one| !is_nothing(one)).collect();
        match all.iter().find_map(|one| one.trouble.clone()) {
            Some(why) if all.iter().all(|one| one.trouble.is_some()) => Err(Ended::Lost(why)),
            _ => Ok(all),
        }
    }

    async fn go_on(mut self, teller: &mut Teller) -> Result<Never, Ended> {
        loop {
            self.read_on();
            let mut batch = Batch::default();
            match teller.until(self.heard()).await? {
                Heard::Line(line) => self.take_line(&line.map_err(Ended::lost)?)?,
                Heard::Service(read) => {
                    self.tell(read?, teller, &mut batch)?;
                    // What has come meanwhile is told together with it.
                    while let Some(read) = self.readings.try_next() {
                        self.tell(read?, teller, &mut batch)?;
                    }
                }
                Heard::Time => self.readings.try_again(Instant::now()),
            }
            teller.tell(batch).await?;
        }
    }

    fn tell(&mut self, read: Answered, teller: &mut Teller, batch: &mut Batch) -> Result<(), Ended> {
        let (_, registration) = self.registration(read)?;
        batch.extend(if is_nothing(&registration) {
            teller.shelf.remove(&registration.name)
        } else {
            teller.shelf.put(registration)
        });
        Ok(())
    }

    /// What is known of a service now. What is wrong with one question alone is told of its service, which is asked for
    /// again.
    fn registration(&mut self, (key, read): Answered) -> Result<(String, Registration), Ended> {
        let registration = match read {
            Ok(registration) => {
                self.readings.succeeded(&key);
                registration
            }
            Err(error) if error.is_about_one_page() => {
                self.readings.failed(&key);
                Registration::unknown(Place::of(&key).name(), error)
            }
            Err(error) => return Err(Ended::lost(error)),
        };
        Ok((key, registration))
    }

    fn take_line(&mut self, line: &str) -> Result<(), Ended> {
        self.heard = Instant::now();
        let line: Line = serde_json::from_str(line).map_err(|error| Ended::lost(self.lines.wrong(error)))?;
        self.nomad.last = self.nomad.last.max(line.index);
        let places = line.events.into_iter().filter_map(|event| event.payload.service);
        self.readings.add(places.map(|place| place.key()));
        Ok(())
    }

    fn read_on(&mut self) {
        let client = &self.nomad.client;
        self.readings.ask(|key| Nomad::registration(client.clone(), Place::of(key)));
    }

    async fn heard(&mut self) -> Heard {
        let due = self.readings.due();
        tokio::select! {
            biased;
            Some(read) = self.readings.next() => Heard::Service(read),
            line = line(&mut self.lines, self.heard, self.nomad) => Heard::Line(line),
            () = until_due(due) => Heard::Time,
        }
    }
}

type Answered = (String, Result<Registration, ClientError>);

/// A service that Nomad still lists while its last instance goes.
fn is_nothing(registration: &Registration) -> bool {
    let Registration { instances, unreadable, trouble, .. } = registration;
    instances.is_empty() && unreadable.is_empty() && trouble.is_none()
}

/// The next line of the stream. One that is silent may be broken, so Nomad is asked whether it is there. That says nothing
/// about the stream itself, which may have been forgotten on the way.
async fn line(lines: &mut LineStream, heard: Instant, nomad: &Nomad) -> Result<String, ClientError> {
    let forgotten = lines.silent(nomad.silence);
    let mut next = std::pin::pin!(lines.next());
    loop {
        tokio::select! {
            line = &mut next => return line,
            () = tokio::time::sleep_until(heard + nomad.silence) => return Err(forgotten),
            () = tokio::time::sleep(nomad.alive) => {
                nomad.client.page("/v1/status/leader", Duration::ZERO).await?;
                nomad.contact.heard();
            }
        }
    }
}
