use std::time::Duration;

use pilot_base::Name;
use pilot_source::{
    Batch, Ended, Registration, RegistryOptions, Running, Session, Shelf, Sink, Source, Teller, follow,
};
use pilot_source_http::{Answer, Client, ClientError, ClientOptions, TlsError, encoded, parts};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::catalog::{Catalog, Named};
use crate::message::{Check, Entry};

/// How Consul is followed.
pub struct ConsulOptions {
    pub registry: RegistryOptions,
    pub client: ClientOptions,
    /// Empty for that of the agent that is asked.
    pub datacenter: String,
    /// Of Consul Enterprise; empty for the default ones.
    pub namespace: String,
    pub partition: String,
    /// How long a question may wait at Consul.
    pub wait: Duration,
}

/// One datacenter of Consul.
pub struct ConsulSource {
    registry: RegistryOptions,
    consul: Consul,
}

#[derive(Clone)]
struct Consul {
    client: Client,
    /// What every question has: `dc=…&ns=…`.
    scope: String,
    wait: Duration,
}

/// So many services are asked for at once.
const AT_ONCE: usize = 16;
/// Asking for all services may take this part of the time.
const SHARE: u32 = 10;
/// What belongs to Consul itself.
const OWN_SERVICE: &str = "consul";

impl ConsulSource {
    pub fn open(options: ConsulOptions) -> Result<Self, TlsError> {
        let ConsulOptions { registry, client, datacenter, namespace, partition, wait } = options;
        let fields = [("dc", datacenter), ("ns", namespace), ("partition", partition)];
        let said = fields.into_iter().filter(|(_, value)| !value.is_empty());
        let scope: String = said.map(|(key, value)| format!("&{key}={}", encoded(&value))).collect();
        Ok(Self { registry, consul: Consul { client: Client::new(client)?, scope, wait } })
    }
}

impl Source for ConsulSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.consul, Shelf::new(self.registry), sink))
    }
}

impl Session for Consul {
    async fn follow(&mut self, teller: &mut Teller) -> Ended {
        match self.watch(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }
}

enum Never {}

/// What one of the questions has said, with the index to ask with next.
enum Said {
    Services(Answer),
    Checks(Answer),
}

impl Consul {
    async fn watch(&self, teller: &mut Teller) -> Result<Never, Ended> {
        let mut catalog = Catalog::default();
        let services = self.ask("/v1/catalog/services", 0).await?;
        let checks = self.ask("/v1/health/state/any", 0).await?;
        let (mut services_at, mut checks_at) = (index(&services)?, index(&checks)?);
        catalog.take_services(own_removed(&services)?);
        catalog.take_checks(read_checks(&checks)?);
        let all: Vec<String> = catalog.services().cloned().collect();
        let mut spent = Instant::now();
        let found = self.registrations(all).await?;
        let mut sweep = Sweep::new(spent.elapsed());
        let batch = teller.shelf.replace(found);
        teller.tell(batch).await?;

        let mut waiting = JoinSet::new();
        self.wait_for(&mut waiting, Question::Services(services_at));
        self.wait_for(&mut waiting, Question::Checks(checks_at));
        loop {
            let said = tokio::select! {
                said = waiting.join_next() => Some(said),
                () = sweep.due() => None,
            };
            let named = match said {
                None => {
                    spent = Instant::now();
                    let all: Vec<String> = catalog.services().cloned().collect();
                    let found = self.registrations(all).await?;
                    sweep = Sweep::new(spent.elapsed());
                    let batch = teller.shelf.replace(found);
                    teller.tell(batch).await?;
                    continue;
                }
                Some(Some(Ok(Ok(Said::Services(answer))))) => {
                    let at = index(&answer)?;
                    if at != services_at {
                        sweep.ask();
                    }
                    services_at = next(services_at, at);
                    self.wait_for(&mut waiting, Question::Services(services_at));
                    catalog.take_services(own_removed(&answer)?)
                }
                Some(Some(Ok(Ok(Said::Checks(answer))))) => {
                    checks_at = next(checks_at, index(&answer)?);
                    self.wait_for(&mut waiting, Question::Checks(checks_at));
                    let (named, of_nodes) = catalog.take_checks(read_checks(&answer)?);
                    if of_nodes {
                        sweep.ask();
                    }
                    named
                }
                Some(Some(Ok(Err(error)))) => return Err(Ended::lost(error)),
                Some(Some(Err(_)) | None) => return Err(Ended::lost("asking broke off")),
            };
            self.tell(named, teller).await?;
        }
    }

    async fn tell(&self, named: Named, teller: &mut Teller) -> Result<(), Ended> {
        let mut batch = Batch::default();
        let mut add = |one: Batch| {
            batch.events.extend(one.events);
            batch.issues.extend(one.issues);
        };
        let asked = self.registrations(named.changed.into_iter().collect()).await?;
        add(teller.shelf.found());
        asked.iter().for_each(|registration| add(teller.shelf.put(registration)));
        named.gone.iter().for_each(|name| add(teller.shelf.remove(name)));
        teller.tell(batch).await
    }

    fn wait_for(&self, waiting: &mut JoinSet<Result<Said, ClientError>>, question: Question) {
        let consul = self.clone();
        waiting.spawn(async move {
            match question {
                Question::Services(at) => consul.page("/v1/catalog/services", at).await.map(Said::Services),
                Question::Checks(at) => consul.page("/v1/health/state/any", at).await.map(Said::Checks),
            }
        });
    }

    async fn ask(&self, path: &str, at: u64) -> Result<Answer, Ended> {
        self.page(path, at).await.map_err(Ended::lost)
    }

    async fn page(&self, path: &str, at: u64) -> Result<Answer, ClientError> {
        let scope = &self.scope;
        if at == 0 {
            return self.client.page(&format!("{path}?stale=true{scope}"), Duration::ZERO).await;
        }
        let wait = self.wait;
        let query = format!("{path}?index={at}&wait={}ms{scope}", wait.as_millis());
        // Consul adds up to a sixteenth by chance.
        self.client.page(&query, wait + wait / 16).await
    }

    /// Asks for services, some at once. One that is gone meanwhile has no instances.
    async fn registrations(&self, names: Vec<String>) -> Result<Vec<Registration>, Ended> {
        let (mut asking, mut out) = (JoinSet::new(), Vec::with_capacity(names.len()));
        let mut names = names.into_iter();
        loop {
            while asking.len() < AT_ONCE {
                let Some(name) = names.next() else { break };
                let consul = self.clone();
                asking.spawn(async move { consul.registration(name).await });
            }
            match asking.join_next().await {
                None => return Ok(out),
                Some(Ok(found)) => out.push(found.map_err(Ended::lost)?),
                Some(Err(_)) => return Err(Ended::lost("asking broke off")),
            }
        }
    }

    async fn registration(&self, name: String) -> Result<Registration, ClientError> {
        let answer = self.page(&format!("/v1/health/service/{}", encoded(&name)), 0).await?;
        let mut registration = Registration { name, ..Registration::default() };
        for (i, entry) in parts::<Entry>(answer.json::<Value>()?).into_iter().enumerate() {
            match entry {
                Ok(entry) if entry.is_instance() => registration.instances.push(entry.instance()),
                Ok(_) => {}
                Err(why) => registration.unreadable.push((i.to_string(), why)),
            }
        }
        Ok(registration)
    }
}

enum Question {
    Services(u64),
    Checks(u64),
}

/// When all services are asked for: soon after the catalog changed, but only for a share of the time.
struct Sweep {
    took: Duration,
    since: Instant,
    is_asked: bool,
}

impl Sweep {
    fn new(took: Duration) -> Self {
        Self { took, since: Instant::now(), is_asked: false }
    }

    fn ask(&mut self) {
        self.is_asked = true;
    }

    async fn due(&self) {
        if !self.is_asked {
            return std::future::pending().await;
        }
        tokio::time::sleep_until(self.since + self.took * SHARE).await;
    }
}

fn index(answer: &Answer) -> Result<u64, Ended> {
    answer.number("x-consul-index").ok_or_else(|| Ended::lost(answer.wrong("it has no X-Consul-Index")))
}

/// An index that goes backwards means that Consul has begun anew, and so do we.
fn next(before: u64, now: u64) -> u64 {
    if now < before { 0 } else { now.max(1) }
}

fn own_removed(answer: &Answer) -> Result<crate::catalog::Services, Ended> {
    let mut services: crate::catalog::Services = answer.json().map_err(Ended::lost)?;
    services.remove(OWN_SERVICE);
    Ok(services)
}

fn read_checks(answer: &Answer) -> Result<Vec<Check>, Ended> {
    let list: Vec<Value> = answer.json().map_err(Ended::lost)?;
    // A check that cannot be read changes nothing by itself; its service is read when it is asked for.
    Ok(parts(Value::Array(list)).into_iter().flatten().collect())
}
