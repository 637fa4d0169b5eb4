use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pilot_base::Name;
use pilot_source::{
    Batch, Ended, Instance, InstancePort, Registration, RegistryOptions, Running, Session, Shelf, Sink,
    Source, Teller, follow,
};

use crate::ask::{Asker, DnsError};
use crate::wire::{Entry, Kind, Record};

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
    names: Vec<String>,
    shortest: Duration,
}

/// However long records live, somebody may have changed them.
const LONGEST: Duration = Duration::from_secs(300);

impl DnsSource {
    pub fn new(options: DnsOptions) -> Self {
        let DnsOptions { registry, server, names, patience, shortest } = options;
        Self { registry, names: Names { asker: Asker { server, patience }, names, shortest } }
    }
}

impl Source for DnsSource {
    fn name(&self) -> Name {
        self.registry.name.clone()
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        Box::pin(follow(self.names, Shelf::new(self.registry), sink))
    }
}

impl Session for Names {
    async fn follow(&mut self, teller: &mut Teller) -> Ended {
        loop {
            let (found, ttl) = match self.everything().await {
                Ok(found) => found,
                Err(error) => return Ended::lost(error),
            };
            let batch: Batch = teller.shelf.replace(found);
            if let Err(ended) = teller.tell(batch).await {
                return ended;
            }
            tokio::time::sleep(ttl.clamp(self.shortest, LONGEST)).await;
        }
    }
}

impl Names {
    /// All names, and how long what was said of them lives.
    async fn everything(&self) -> Result<(Vec<Registration>, Duration), DnsError> {
        let (mut all, mut shortest) = (Vec::new(), u32::MAX);
        for name in &self.names {
            let answer = self.asker.ask(name, Kind::Srv).await?;
            let entries = self.with_addresses(answer.entries).await?;
            shortest = entries.iter().map(|entry| entry.ttl).min().unwrap_or(0).min(shortest);
            let registration = registration(name, &entries);
            if !registration.instances.is_empty() {
                all.push(registration);
            }
        }
        Ok((all, Duration::from_secs(u64::from(shortest))))
    }

    /// Addresses of targets may come with the answer; the others are asked for.
    async fn with_addresses(&self, mut entries: Vec<Entry>) -> Result<Vec<Entry>, DnsError> {
        let known: BTreeSet<String> = addresses(&entries).map(|(name, _)| name.clone()).collect();
        let targets: BTreeSet<String> = targets(&entries).map(|(_, _, _, target)| target.clone()).collect();
        for target in targets.difference(&known) {
            for kind in [Kind::A, Kind::Aaaa] {
                let found = self.asker.ask(target, kind).await?.entries.into_iter();
                // A name that is another name is known under the one that was asked for.
                entries.extend(found.map(|entry| Entry { name: target.clone(), ..entry }));
            }
        }
        Ok(entries)
    }
}

fn addresses(entries: &[Entry]) -> impl Iterator<Item = (&String, IpAddr)> {
    entries.iter().filter_map(|entry| match entry.record {
        Record::Address(ip) => Some((&entry.name, ip)),
        Record::Srv { .. } => None,
    })
}

fn targets(entries: &[Entry]) -> impl Iterator<Item = (u16, u16, u16, &String)> {
    entries.iter().filter_map(|entry| match &entry.record {
        Record::Srv { priority, weight, port, target } => Some((*priority, *weight, *port, target)),
        Record::Address(_) => None,
    })
}

/// Of several priorities the first one counts: the others are for when nobody of it is there.
fn registration(name: &str, entries: &[Entry]) -> Registration {
    let mut by_target: BTreeMap<&String, Vec<IpAddr>> = BTreeMap::new();
    for (target, ip) in addresses(entries) {
        by_target.entry(target).or_default().push(ip);
    }
    let reached = targets(entries).filter(|(_, _, _, target)| by_target.contains_key(target));
    let first = reached.map(|(priority, ..)| priority).min();
    let (protocol, host) = parts(name);
    let mut instances = Vec::new();
    for (_, weight, port, target) in targets(entries).filter(|(priority, ..)| Some(*priority) == first) {
        for ip in by_target.get(target).into_iter().flatten() {
            let ports = vec![InstancePort {
                number: port.into(),
                protocol: protocol.to_owned(),
                ..InstancePort::default()
            }];
            let (id, address) = (format!("{target}:{port}/{ip}"), ip.to_string());
            instances.push(Instance { id, address, ports, weight: weight.into(), ..Instance::default() });
        }
    }
    Registration { name: host.to_owned(), hosts: vec![host.to_owned()], instances, ..Registration::default() }
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
    use super::{parts, registration};
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
        let found = registration("_http._tcp.shop.example", &entries);
        let all: Vec<_> =
            found.instances.iter().map(|i| (i.address.as_str(), i.ports[0].number, i.weight)).collect();
        assert_eq!(all, [("10.0.0.1", 8080, 7), ("10.0.0.2", 8080, 7)]);
        assert_eq!(parts("_grpc._tcp.shop.example."), ("grpc", "shop.example"));
        assert_eq!(parts("shop.example"), ("", "shop.example"));
    }
}
