use std::collections::BTreeMap;
use std::time::Duration;

use pilot_base::Name;
use pilot_source::{
    Batch, Contact, Ended, Readings, Registration, RegistryOptions, Running, Session, Shelf, Sink, Source,
    Suspicion, Teller, follow, until_due,
};
use pilot_source_http::{Answer, Client, ClientError, ClientOptions, TlsError};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::ask::{Consul, Read, Topic, checks, index, is_filtered, nodes, pace, scope};
use crate::catalog::{Catalog, Services};
use crate::sweep::Sweep;

/// How Consul is followed.
pub struct ConsulOptions {
    pub registry: RegistryOptions,
    pub client: ClientOptions,
    /// Empty for that of the agent that is asked.
    pub datacenter: String,
    /// What else stands behind the names of its services, such as `service.dc2.consul`.
    pub other_domains: Vec<String>,
    /// Of Consul Enterprise; empty for the default ones.
    pub namespace: String,
    pub partition: String,
    /// How long a question may wait at Consul.
    pub wait: Duration,
}

/// One datacenter of Consul.
pub struct ConsulSource {
    registry: RegistryOptions,
    followed: Followed,
}

struct Followed {
    consul: Consul,
    /// What the last answer about each topic was, in this session or an earlier one: a server that has begun anew is met by
    /// a new session.
    indices: Indices,
}

type Indices = BTreeMap<Topic, u64>;

/// So many services are looked at at once.
const AT_ONCE: usize = 16;
/// So long what is looked for may be among what is being read.
const LONGEST_READING: Duration = Duration::from_secs(1);
/// What belongs to Consul itself.
const OWN_SERVICE: &str = "consul";

impl ConsulSource {
    pub fn open(options: ConsulOptions) -> Result<Self, TlsError> {
        let ConsulOptions { registry, client, datacenter, other_domains, namespace, partition, wait } =
            options;
        let scope = scope(&datacenter, &namespace, &partition);
        // Where there is one domain only, the shelf knows it.
        let domain = registry.domain.to_string();
        let domains =
            if other_domains.is_empty() { Vec::new() } else { [vec![domain], other_domains].concat() };
        let consul = Consul { client: Client::new(client)?, scope, domains, wait };
        Ok(Self { registry, followed: Followed { consul, indices: Indices::new() } })
    }
}

impl Source for ConsulSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.registry.contact.clone())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.followed, Shelf::new(self.registry), sink))
    }
}

impl Session for Followed {
    async fn follow(&mut self, teller: &mut Teller) -> Ended {
        let asked = self.consul.client.asked();
        let ended = match self.watch(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        };
        self.consul.client.turn_from(asked);
        ended
    }
}

impl Followed {
    async fn watch(&mut self, teller: &mut Teller) -> Result<Never, Ended> {
        let watch = Watch::begin(self.consul.clone(), &mut self.indices, teller).await?;
        watch.go_on(teller).await
    }
}

enum Never {}

/// What has happened.
enum Heard {
    Topic(Topic, Result<Answer, ClientError>),
    Service(String, Result<Read, ClientError>),
    Index(String, Result<u64, ClientError>),
    /// It is time for something.
    Time,
    Broken,
}

/// One session: what is known, and which questions are asked.
struct Watch<'a> {
    consul: Consul,
    catalog: Catalog,
    indices: &'a mut Indices,
    /// May the token see less than there is?
    is_filtered: bool,
    waiting: JoinSet<(Topic, Result<Answer, ClientError>)>,
    readings: Readings<Result<Read, ClientError>>,
    sweep: Sweep,
    looking: JoinSet<(String, Result<u64, ClientError>)>,
}

impl<'a> Watch<'a> {
    /// Asks for everything, and tells it.
    async fn begin(consul: Consul, indices: &'a mut Indices, teller: &mut Teller) -> Result<Self, Ended> {
        let now = Instant::now();
        let mut watch = Self {
            consul,
            catalog: Catalog::default(),
            indices,
            is_filtered: false,
            waiting: JoinSet::new(),
            readings: Readings::default(),
            sweep: Sweep::new(now),
            looking: JoinSet::new(),
        };
        for topic in Topic::ALL {
            let answer = watch.consul.about(topic, 0).await.map_err(Ended::lost)?;
            let now = index(&answer).map_err(Ended::lost)?;
            if watch.indices.insert(topic, now).is_some_and(|before| now < before) {
                // Its state is another one than before.
                teller.shelf.doubt(Suspicion::KnowsLess);
            }
            watch.is_filtered |= topic == Topic::Services && is_filtered(&answer);
            let found = watch.take(topic, &answer, Proof::None)?;
            watch.readings.add(found.services);
        }
        let all = watch.everything().await?;
        teller.shelf.warn(watch.is_filtered.then(|| "the token may not see everything".to_owned()));
        let batch = teller.shelf.replace(all);
        teller.tell(batch).await?;
        for topic in Topic::ALL {
            watch.wait_for(topic, Duration::ZERO);
        }
        Ok(watch)
    }

    /// Reads all services that are known. If not one can be read, it is not about one of them.
    async fn everything(&mut self) -> Result<Vec<Registration>, Ended> {
        let mut all = Vec::new();
        loop {
            self.read_on();
            let Some(read) = self.readings.next().await else { break };
            let (name, read) = read?;
            all.push(self.registration(&name, read)?);
        }
        match all.iter().find_map(|one| one.trouble.clone()) {
            Some(why) if all.iter().all(|one| one.trouble.is_some()) => Err(Ended::Lost(why)),
            _ => Ok(all),
        }
    }

    async fn go_on(mut self, teller: &mut Teller) -> Result<Never, Ended> {
        loop {
            self.read_on();
            self.look_on();
            let heard = teller.until(self.heard()).await?;
            let mut batch = Batch::default();
            self.take_in(heard, teller, &mut batch)?;
            // What has come meanwhile is told together with it.
            while let Some(read) = self.readings.try_next() {
                let (name, read) = read?;
                self.take_in(Heard::Service(name, read), teller, &mut batch)?;
            }
            teller.tell(batch).await?;
        }
    }

    async fn heard(&mut self) -> Heard {
        let due = self.readings.due().into_iter().chain(self.sweep_due()).min();
        tokio::select! {
            biased;
            () = until_due(due) => Heard::Time,
            Some(read) = self.readings.next() => {
                read.map_or(Heard::Broken, |(name, read)| Heard::Service(name, read))
            }
            Some(said) = self.waiting.join_next() => {
                said.map_or(Heard::Broken, |(topic, answer)| Heard::Topic(topic, answer))
            }
            Some(seen) = self.looking.join_next() => {
                seen.map_or(Heard::Broken, |(name, index)| Heard::Index(name, index))
            }
        }
    }

    /// What is being read may be what would be looked for. But in a busy catalog something is read all the time.
    fn sweep_due(&self) -> Option<Instant> {
        let patience = if self.readings.is_idle() { Duration::ZERO } else { LONGEST_READING };
        self.sweep.due().map(|due| due + patience)
    }

    fn take_in(&mut self, heard: Heard, teller: &mut Teller, batch: &mut Batch) -> Result<(), Ended> {
        match heard {
            Heard::Broken => return Err(Ended::lost("asking broke off")),
            Heard::Topic(topic, answer) => {
                let answer = answer.map_err(Ended::lost)?;
                let proof = self.advance(topic, &answer, teller)?;
                let Found { services, gone } = self.take(topic, &answer, proof)?;
                self.readings.add(services);
                gone.iter().for_each(|name| batch.extend(teller.shelf.remove(name)));
                self.wait_for(topic, pace(answer.body.len()));
            }
            Heard::Service(name, read) => {
                let registration = self.registration(&name, read)?;
                // One that went meanwhile is told to be gone.
                if self.catalog.has(&registration.name) {
                    batch.extend(teller.shelf.put(registration));
                }
            }
            Heard::Index(name, index) => {
                self.sweep.done(Instant::now());
                if self.catalog.is_stale(&name, known(index)?.unwrap_or_default()) {
                    self.readings.add([name]);
                }
            }
            Heard::Time => self.on_time(Instant::now()),
        }
        Ok(())
    }

    fn on_time(&mut self, now: Instant) {
        self.readings.try_again(now);
        if self.sweep_due().is_some_and(|due| due <= now) {
            self.sweep.begin(self.catalog.by_last_change(), now);
        }
    }

    /// An index that goes backwards means that Consul has begun anew, and so do we. One that goes forward proves that what
    /// is missing is gone, unless something was left out.
    fn advance(&mut self, topic: Topic, answer: &Answer, teller: &mut Teller) -> Result<Proof, Ended> {
        let now = index(answer).map_err(Ended::lost)?;
        let before = self.indices.insert(topic, now).unwrap_or_default();
        if now < before {
            teller.shelf.doubt(Suspicion::KnowsLess);
            return Err(Ended::lost("it has begun anew"));
        }
        if topic == Topic::Services {
            match (self.is_filtered, is_filtered(answer)) {
                (false, true) => {
                    teller.shelf.doubt(Suspicion::KnowsLess);
                    return Err(Ended::lost("the token may not see everything any more"));
                }
                (true, false) => return Err(Ended::lost("the token may see more than before")),
                _ => {}
            }
            if now != before {
                self.sweep.changed(before, now, Instant::now());
            }
        }
        Ok(if now > before && !is_filtered(answer) { Proof::Newer } else { Proof::None })
    }

    /// Takes in an answer, and finds out which services it is about.
    fn take(&mut self, topic: Topic, answer: &Answer, proof: Proof) -> Result<Found, Ended> {
        let services = match topic {
            Topic::Services => return self.take_services(answer, proof),
            Topic::Critical => self.catalog.take_critical(checks(answer).map_err(Ended::lost)?),
            Topic::Warning => self.catalog.take_warning(checks(answer).map_err(Ended::lost)?),
            Topic::Nodes => self.catalog.take_nodes(nodes(answer).map_err(Ended::lost)?),
        };
        Ok(Found { services: services.into_iter().collect(), gone: Vec::new() })
    }

    fn take_services(&mut self, answer: &Answer, proof: Proof) -> Result<Found, Ended> {
        let mut services: Services = answer.json().map_err(Ended::lost)?;
        services.remove(OWN_SERVICE);
        if services.is_empty() && is_filtered(answer) {
            return Err(Ended::lost("the token may not see any service"));
        }
        if proof == Proof::None && self.catalog.is_collapse(&services) {
            return Err(Ended::lost("most of its services are missing from its answer"));
        }
        let named = self.catalog.take_services(services);
        if !named.gone.is_empty() {
            self.sweep.found(index(answer).map_err(Ended::lost)?);
        }
        named.gone.iter().for_each(|name| self.readings.forget(name));
        Ok(Found { services: named.changed.into_iter().collect(), gone: named.gone.into_iter().collect() })
    }

    /// What is known of a service now. What is wrong with one question alone is told of its service, which is asked for
    /// again, each time later.
    fn registration(&mut self, name: &str, read: Result<Read, ClientError>) -> Result<Registration, Ended> {
        let registration = match read {
            Ok(Read { registration, index, changes, nodes }) => {
                self.catalog.seen(name, index, &nodes);
                changes.into_iter().chain([index]).for_each(|index| self.sweep.found(index));
                registration
            }
            Err(error) if error.is_about_one_page() => Registration::unknown(name.to_owned(), error),
            Err(error) => return Err(Ended::lost(error)),
        };
        if registration.trouble.is_some() {
            self.readings.failed(name);
        } else {
            self.readings.succeeded(name);
        }
        Ok(registration)
    }

    fn wait_for(&mut self, topic: Topic, pause: Duration) {
        let (consul, at) = (self.consul.clone(), self.indices.get(&topic).copied().unwrap_or_default());
        self.waiting.spawn(async move {
            tokio::time::sleep(pause).await;
            (topic, consul.about(topic, at).await)
        });
    }

    fn read_on(&mut self) {
        let consul = &self.consul;
        self.readings.ask(|name| {
            let (consul, name) = (consul.clone(), name.to_owned());
            async move { consul.service(&name).await }
        });
    }

    fn look_on(&mut self) {
        while self.looking.len() < AT_ONCE {
            let Some(name) = self.sweep.next() else { break };
            let consul = self.consul.clone();
            self.looking.spawn(async move {
                let index = consul.index_of(&name).await;
                (name, index)
            });
        }
    }
}

/// Is an answer known to be newer than what was told?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Proof {
    Newer,
    None,
}

/// Which services an answer is about.
struct Found {
    services: Vec<String>,
    gone: Vec<String>,
}

/// What is not known of one service is not known of that one.
fn known<T>(answer: Result<T, ClientError>) -> Result<Option<T>, Ended> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_about_one_page() => Ok(None),
        Err(error) => Err(Ended::lost(error)),
    }
}
