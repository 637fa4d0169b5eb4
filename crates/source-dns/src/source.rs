use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pilot_base::Name;
use pilot_source::{
    Contact, Ended, Instance, InstancePort, Registration, RegistryOptions, Running, Session, Shelf, Sink,
    Source, Teller, follow, until_due,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::ask::{Asker, DnsError};
use crate::wire::{Answer, Entry, Kind, Record};

/// How names are followed.
pub struct DnsOptions {
    pub registry: RegistryOptions,
    pub server: SocketAddr,
    /// Such as `_http._tcp.shop.example.com`.
    pub names: Vec<String>,
    /// How long the server may take to answer.
    pub patience: Duration,
    /// Names are not asked for more often than this, however short they live.
    pub shortest: Duration,
}

/// Names that are looked up again and again.
pub struct DnsSource {
    registry: RegistryOptions,
    names: Names,
}

struct Names {
    asker: Asker,
    names: BTreeSet<String>,
    /// The names of each host.
    hosts: BTreeMap<String, Vec<String>>,
    known: BTreeMap<String, Known>,
    shortest: Duration,
}

/// What is known of a name.
#[derive(Default)]
struct Known {
    /// The last answer.
    entries: Vec<Entry>,
    /// Why there is none that is newer, and how often that was so.
    trouble: Option<String>,
    failures: u32,
}

/// However long records live, somebody may have changed them.
const LONGEST: Duration = Duration::from_secs(300);
/// A name that cannot be looked up is not asked for more often than others for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// So long another first answer is waited for; a name that nobody answers for does not keep the others.
const FIRST: Duration = Duration::from_secs(3);
/// Enough to be quick, and few enough for any name server.
const AT_ONCE: usize = 32;
/// If nobody answers for so many names in a row, it is the server that is not there.
const SILENCES: usize = 3;

impl DnsSource {
    pub fn new(options: DnsOptions) -> Self {
        let DnsOptions { registry, server, names, patience, shortest } = options;
        let names: BTreeSet<String> = names.into_iter().collect();
        let mut hosts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for name in &names {
            hosts.entry(host(name)).or_default().push(name.clone());
        }
        let (asker, known) = (Asker { server, patience }, BTreeMap::new());
        Self { registry, names: Names { asker, names, hosts, known, shortest } }
    }
}

impl Source for DnsSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.registry.contact.clone())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.names, Shelf::new(self.registry), sink))
    }
}

impl Session for Names {
    async fn follow(&mut self, teller: &mut Teller) -> Ended {
        match self.watch(teller).await {
            Ok(never) => match never {},
            Err(ended) => ended,
        }
    }
}

enum Never {}

/// Which names are being asked for, and when the others are due.
struct Asking {
    due: BTreeSet<(Instant, String)>,
    answers: JoinSet<(String, Result<Vec<Entry>, DnsError>)>,
    /// Names for which nobody answered since somebody did for another.
    silent: BTreeSet<String>,
}

impl Names {
    async fn watch(&mut self, teller: &mut Teller) -> Result<Never, Ended> {
        let now = Instant::now();
        let due = self.names.iter().map(|name| (now, name.clone())).collect();
        let mut asking = Asking { due, answers: JoinSet::new(), silent: BTreeSet::new() };
        let mut left = self.names.clone();
        let mut until = now + FIRST;
        while !left.is_empty() {
            asking.go_on(&self.asker, &self.known);
            match tokio::time::timeout_at(until, asking.next()).await {
                Err(_) => break,
                Ok(None) => {}
                Ok(Some((name, answer))) => {
                    if left.remove(&name) {
                        until = Instant::now() + FIRST;
                    }
                    self.take(&mut asking, name, answer)?;
                }
            }
        }
        let batch = teller.shelf.replace(self.all());
        teller.tell(batch).await?;
        loop {
            asking.go_on(&self.asker, &self.known);
            let Some((name, answer)) = teller.until(asking.next()).await? else { continue };
            let host = host(&name);
            self.take(&mut asking, name, answer)?;
            let batch = match self.registration(&host) {
                Some(registration) => teller.shelf.put(registration),
                None => teller.shelf.remove(&host),
            };
            teller.tell(batch).await?;
        }
    }

    /// Takes in what is said of a name. A name of which nothing can be learnt keeps what it had.
    fn take(
        &mut self,
        asking: &mut Asking,
        name: String,
        answer: Result<Vec<Entry>, DnsError>,
    ) -> Result<(), Ended> {
        let known = self.known.entry(name.clone()).or_default();
        let pause = match answer {
            Ok(entries) => {
                asking.silent.clear();
                let ttl = entries.iter().map(|entry| entry.ttl).min().unwrap_or(0);
                *known = Known { entries, ..Known::default() };
                Duration::from_secs(ttl.into()).clamp(self.shortest, LONGEST)
            }
            Err(why) => {
                known.trouble = Some(why.to_string());
                known.failures = known.failures.saturating_add(1);
                let pause = self.shortest.saturating_mul(1 << known.failures.min(10)).min(LONGEST_PAUSE);
                if matches!(why, DnsError::Reach { .. } | DnsError::Slow { .. }) {
                    asking.silent.insert(name.clone());
                }
                self.is_anybody_there(asking, &why)?;
                pause
            }
        };
        asking.due.insert((Instant::now() + pause, name));
        Ok(())
    }

    /// If not one name has an answer, or nobody says anything whatever name it is about, it is not about one of them.
    fn is_anybody_there(&self, asking: &Asking, why: &DnsError) -> Result<(), Ended> {
        let fails = |name: &String| self.known.get(name).is_some_and(|known| known.trouble.is_some());
        let is_silent = asking.silent.len() >= SILENCES.min(self.names.len());
        if is_silent || self.names.iter().all(fails) { Err(Ended::lost(why)) } else { Ok(()) }
    }

    fn all(&self) -> Vec<Registration> {
        self.hosts.keys().filter_map(|host| self.registration(host)).collect()
    }

    /// The service that all names of one host are; nothing if not one of them has anything.
    fn registration(&self, of: &str) -> Option<Registration> {
        let names = self.hosts.get(of).into_iter().flatten();
        let all: Vec<(&String, &Known)> =
            names.filter_map(|name| Some((name, self.known.get(name)?))).collect();
        let trouble = all.iter().find_map(|(_, known)| known.trouble.clone());
        let instances = instances(all.iter().map(|(name, known)| (name.as_str(), &known.entries[..])));
        if instances.is_empty() && trouble.is_none() {
            return None;
        }
        let (name, hosts) = (of.to_owned(), vec![of.to_owned()]);
        Some(Registration { name, hosts, instances, trouble, ..Registration::default() })
    }
}

impl Asking {
    fn go_on(&mut self, asker: &Asker, known: &BTreeMap<String, Known>) {
        let now = Instant::now();
        while self.answers.len() < AT_ONCE && self.due.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, name)) = self.due.pop_first() else { break };
            let before = known.get(&name).map(|known| known.entries.clone()).unwrap_or_default();
            let asker = asker.clone();
            self.answers.spawn(async move {
                let answer = asker.service(&name, &before).await;
                (name, answer)
            });
        }
    }

    /// The next answer, or nothing if somebody is due.
    async fn next(&mut self) -> Option<(String, Result<Vec<Entry>, DnsError>)> {
        let due = self.due.first().map(|(at, _)| *at).filter(|_| self.answers.len() < AT_ONCE);
        tokio::select! {
            Some(answer) = self.answers.join_next() => answer.ok(),
            () = until_due(due) => None,
        }
    }
}

impl Asker {
    /// Targets with their addresses. Those may come with the answer; the others are asked for.
    async fn service(&self, name: &str, before: &[Entry]) -> Result<Vec<Entry>, DnsError> {
        let Answer { entries: said, beside, .. } = self.ask(name, Kind::Srv).await?;
        let named: BTreeSet<String> = targets(&said).map(|(_, _, _, target)| target.clone()).collect();
        let of_others: Vec<Entry> = said.iter().chain(&beside).cloned().collect();
        let mut entries: Vec<Entry> =
            said.into_iter().filter(|entry| matches!(entry.record, Record::Srv { .. })).collect();
        for target in named {
            let known = addresses_of(&target, &of_others);
            let found = if known.is_empty() { self.addresses(&target, before).await? } else { known };
            entries.extend(found);
        }
        Ok(entries)
    }

    /// The addresses of a target. Many servers fail when they are asked for addresses of a kind that nobody has: then those
    /// of the other kind count, and what was known before.
    async fn addresses(&self, target: &str, before: &[Entry]) -> Result<Vec<Entry>, DnsError> {
        let (four, six) = tokio::join!(self.ask(target, Kind::A), self.ask(target, Kind::Aaaa));
        let (mut found, mut failed) = (Vec::new(), None);
        for (answer, is_of_kind) in [(four, IpAddr::is_ipv4 as fn(&IpAddr) -> bool), (six, IpAddr::is_ipv6)] {
            match answer {
                Ok(answer) => found.extend(addresses_of(target, &answer.entries)),
                Err(why) => failed = Some((why, is_of_kind)),
            }
        }
        match failed {
            None => {}
            Some((why, _)) if found.is_empty() => return Err(why),
            Some((_, is_of_kind)) => {
                let known = before.iter().filter(|entry| {
                    entry.name == target && matches!(&entry.record, Record::Address(ip) if is_of_kind(ip))
                });
                found.extend(known.cloned());
            }
        }
        Ok(found)
    }
}

/// The addresses of a name, or of what it is another name for, under the name that was asked for.
fn addresses_of(name: &str, entries: &[Entry]) -> Vec<Entry> {
    let mut names = BTreeSet::from([name]);
    loop {
        let others = entries.iter().filter_map(|entry| match &entry.record {
            Record::Alias(other) if names.contains(entry.name.as_str()) => Some(other.as_str()),
            _ => None,
        });
        let more: Vec<&str> = others.filter(|other| !names.contains(other)).collect();
        if more.is_empty() {
            break;
        }
        names.extend(more);
    }
    let is_its =
        |entry: &&Entry| matches!(entry.record, Record::Address(_)) && names.contains(entry.name.as_str());
    let under_its_name = |entry: &Entry| Entry { name: name.to_owned(), ..entry.clone() };
    entries.iter().filter(is_its).map(under_its_name).collect()
}

fn addresses(entries: &[Entry]) -> impl Iterator<Item = (&String, IpAddr)> {
    entries.iter().filter_map(|entry| match entry.record {
        Record::Address(ip) => Some((&entry.name, ip)),
        Record::Srv { .. } | Record::Alias(_) => None,
    })
}

/// What has no name is no target: so a record says that there is nobody.
fn targets(entries: &[Entry]) -> impl Iterator<Item = (u16, u16, u16, &String)> {
    entries.iter().filter_map(|entry| match &entry.record {
        Record::Srv { priority, weight, port, target } if !target.is_empty() => {
            Some((*priority, *weight, *port, target))
        }
        Record::Srv { .. } | Record::Address(_) | Record::Alias(_) => None,
    })
}

/// The instances of one host. What several of its names have at one address is one instance with several ports.
fn instances<'a>(names: impl Iterator<Item = (&'a str, &'a [Entry])>) -> Vec<Instance> {
    let mut out: Vec<Instance> = Vec::new();
    for (name, entries) in names {
        // Those that another name has already; each of them is met once by each name.
        let mut others = out.len();
        for mut instance in of_name(name, entries) {
            match out[..others].iter().position(|other| other.address == instance.address) {
                None => out.push(instance),
                Some(at) => {
                    out[at].ports.append(&mut instance.ports);
                    out.swap(at, others - 1);
                    others -= 1;
                }
            }
        }
    }
    out
}

/// Of several priorities the first one counts: the others are for when nobody of it is there.
fn of_name<'a>(name: &'a str, entries: &'a [Entry]) -> impl Iterator<Item = Instance> + use<'a> {
    let mut by_target: BTreeMap<&String, Vec<IpAddr>> = BTreeMap::new();
    for (target, ip) in addresses(entries) {
        by_target.entry(target).or_default().push(ip);
    }
    let reached = targets(entries).filter(|(_, _, _, target)| by_target.contains_key(target));
    let first = reached.map(|(priority, ..)| priority).min();
    let (protocol, _) = parts(name);
    let mut instances = Vec::new();
    for (_, weight, port, target) in targets(entries).filter(|(priority, ..)| Some(*priority) == first) {
        for ip in by_target.get(target).into_iter().flatten() {
            // Ports of several names are told from each other by what they speak.
            let ports = vec![InstancePort {
                name: protocol.to_owned(),
                number: port.into(),
                protocol: protocol.to_owned(),
                service_port: None,
            }];
            let (id, address) = (format!("{target}:{port}/{ip}"), ip.to_string());
            instances.push(Instance { id, address, ports, weight: weight.into(), ..Instance::default() });
        }
    }
    instances.into_iter()
}

fn host(name: &str) -> String {
    parts(name).1.to_owned()
}

/// `_http._tcp.shop.example.com` is HTTP at `shop.example.com`.
fn parts(name: &str) -> (&str, &str) {
    let mut rest = name.trim_end_matches('.');
    let mut words = Vec::new();
    while let Some((word, behind)) = rest.split_once('.').filter(|(word, _)| word.starts_with('_')) {
        words.push(word.trim_start_matches('_'));
        rest = behind;
    }
    (words.first().copied().unwrap_or_default(), rest)
}

#[cfg(test)]
mod tests {
    use super::{instances, parts};
    use crate::wire::{Entry, Record};

    #[test]
    fn the_first_priority_that_can_be_reached_counts() {
        let srv = |priority, target: &str| Entry {
            name: "_http._tcp.shop.example".into(),
            ttl: 5,
            record: Record::Srv { priority, weight: 7, port: 8080, target: target.into() },
        };
        let address = |name: &str, ip: &str| {
            let record = Record::Address(ip.parse().unwrap());
            Entry { name: name.into(), ttl: 5, record }
        };
        let entries = [
            srv(0, "gone.example"),
            srv(1, "a.example"),
            srv(2, "b.example"),
            address("a.example", "10.0.0.1"),
            address("a.example", "10.0.0.2"),
            address("b.example", "10.0.0.3"),
        ];
        let found = instances([("_http._tcp.shop.example", &entries[..])].into_iter());
        let all: Vec<_> = found.iter().map(|i| (i.address.as_str(), i.ports[0].number, i.weight)).collect();
        assert_eq!(all, [("10.0.0.1", 8080, 7), ("10.0.0.2", 8080, 7)]);
        assert_eq!(parts("_grpc._tcp.shop.example."), ("grpc", "shop.example"));
        assert_eq!(parts("shop.example"), ("", "shop.example"));
    }

    #[test]
    fn names_of_one_host_are_ports_of_one_service() {
        let srv = |port, target: &str| Entry {
            name: "any".into(),
            ttl: 5,
            record: Record::Srv { priority: 0, weight: 1, port, target: target.into() },
        };
        let address = |name: &str, ip: &str| {
            let record = Record::Address(ip.parse().unwrap());
            Entry { name: name.into(), ttl: 5, record }
        };
        let http = [srv(80, "a"), srv(81, "a"), address("a", "10.0.0.1")];
        let grpc = [srv(90, "a"), srv(91, "b"), address("a", "10.0.0.1"), address("b", "10.0.0.2")];
        let names = [("_http._tcp.shop.example", &http[..]), ("_grpc._tcp.shop.example", &grpc[..])];
        let mut all: Vec<String> = instances(names.into_iter())
            .iter()
            .map(|one| {
                let ports = one.ports.iter().map(|port| format!(" {}:{}", port.protocol, port.number));
                format!("{}{}", one.address, ports.collect::<String>())
            })
            .collect();
        all.sort();
        assert_eq!(all, ["10.0.0.1 http:80 grpc:90", "10.0.0.1 http:81", "10.0.0.2 grpc:91"]);
    }
}
