//! Names on a name server that a test controls.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod server;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use pilot_model::Object;
use pilot_source::contract::{
    Condition, Follower, Mirror, Registered, RegistryRig, Relay, Road, check_load, check_registry,
};
use pilot_source::{RegistryOptions, Source};
use pilot_source_dns::{DnsOptions, DnsSource};

use server::{Mood, NameServer};

fn told(mirror: &Mirror) -> Vec<String> {
    let each = |object: &Object| match object {
        Object::ServiceEntry(config) => format!("{} {}", config.spec.hosts[0], config.spec.endpoints.len()),
        other => panic!("{other:?}"),
    };
    mirror.objects().map(each).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_followed_and_a_loss_empties_nothing() {
    const NAME: &str = "_http._tcp.shop.example";
    let server = NameServer::start().await;
    let address = |i: u8| Ipv4Addr::new(10, 0, 0, i);
    server.set(NAME, &[(8080, address(1))]);
    let names = vec![NAME.to_owned(), "_grpc._tcp.cart.example".to_owned()];
    let mut follower = Follower::start(source(server.address, names));
    follower.until("a name", |mirror| told(mirror) == ["shop.example 1"]).await;
    server.set("_grpc._tcp.cart.example", &[(9000, address(9))]);
    follower.until("another name", |mirror| told(mirror) == ["cart.example 1", "shop.example 1"]).await;
    follower.mirror.rows = 0;
    server.set(NAME, &(1..=60).map(|i| (8080, address(i))).collect::<Vec<_>>());
    follower.until("more than fits into a datagram", |mirror| told(mirror)[1] == "shop.example 60").await;
    assert_eq!(follower.mirror.rows, 1, "one change is one row");
    for mood in [Mood::Silent, Mood::Failing, Mood::Nonsense] {
        server.feel(mood);
        follower.until("an issue", |mirror| !mirror.issues.is_empty()).await;
        assert_eq!(told(&follower.mirror).len(), 2, "{mood:?} empties nothing");
        server.feel(Mood::Good);
        follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    }
    server.zone.lock().0.remove(NAME);
    follower.until("that a name is gone", |mirror| told(mirror) == ["cart.example 1"]).await;
    follower.stop().await;
}

fn source(server: SocketAddr, names: Vec<String>) -> Box<dyn Source> {
    patient(server, names, Duration::from_millis(1500))
}

fn patient(server: SocketAddr, names: Vec<String>, patience: Duration) -> Box<dyn Source> {
    let (registry, shortest) = (RegistryOptions::new("dns", ""), Duration::from_millis(50));
    Box::new(DnsSource::new(DnsOptions { registry, server, names, patience, shortest }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_for_which_nobody_answers_does_not_keep_the_others() {
    let server = NameServer::start().await;
    server.set("_http._tcp.shop.example", &[(8080, Ipv4Addr::new(10, 0, 0, 1))]);
    let names = vec!["_silent._tcp.cart.example".to_owned(), "_http._tcp.shop.example".to_owned()];
    // Longer than a test waits for anything.
    let mut follower = Follower::start(patient(server.address, names, Duration::from_secs(600)));
    follower.until("the other name", |mirror| told(mirror) == ["shop.example 1"]).await;
    let both = [(8080, Ipv4Addr::new(10, 0, 0, 1)), (8080, Ipv4Addr::new(10, 0, 0, 2))];
    server.set("_http._tcp.shop.example", &both);
    follower.until("its change", |mirror| told(mirror) == ["shop.example 2"]).await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_one_host_are_one_service() {
    let server = NameServer::start().await;
    let address = Ipv4Addr::new(10, 0, 0, 1);
    let names = ["_http._tcp.shop.example", "_grpc._tcp.shop.example"];
    server.set(names[0], &[(8080, address)]);
    server.set(names[1], &[(9090, address)]);
    let mut follower = Follower::start(source(server.address, names.map(str::to_owned).to_vec()));
    let ports = |mirror: &Mirror| -> Vec<String> {
        let ports = |object: &Object| match object {
            Object::ServiceEntry(entry) => {
                let each = entry.spec.ports.iter().map(|port| format!("{} {:?}", port.number, port.protocol));
                each.chain([format!("{} endpoints", entry.spec.endpoints.len())]).collect()
            }
            _ => Vec::new(),
        };
        mirror.objects().flat_map(ports).collect()
    };
    follower.until("both ports", |mirror| ports(mirror) == ["8080 Http", "9090 Grpc", "1 endpoints"]).await;
    follower.mirror.rows = 0;
    follower.rest(Duration::from_millis(300)).await;
    assert_eq!(follower.mirror.rows, 0, "they do not take each other's place");
    server.zone.lock().0.remove(names[1]);
    follower.until("the other port", |mirror| ports(mirror) == ["8080 Http", "1 endpoints"]).await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_cannot_be_looked_up_takes_no_other_along() {
    let server = NameServer::start().await;
    server.set("_http._tcp.shop.example", &[(8080, Ipv4Addr::new(10, 0, 0, 1))]);
    let names = vec!["_broken._tcp.cart.example".to_owned(), "_http._tcp.shop.example".to_owned()];
    let mut follower = Follower::start(source(server.address, names));
    follower.until("the other name", |mirror| told(mirror) == ["shop.example 1"]).await;
    let issues: Vec<String> = follower.mirror.issues.values().flatten().map(ToString::to_string).collect();
    assert!(
        issues.len() == 1 && issues[0].contains("cart.example.dns") && issues[0].contains("error 2"),
        "{issues:?}"
    );
    let both = [(8080, Ipv4Addr::new(10, 0, 0, 1)), (8080, Ipv4Addr::new(10, 0, 0, 2))];
    server.set("_http._tcp.shop.example", &both);
    follower.until("its change", |mirror| told(mirror) == ["shop.example 2"]).await;
    follower.stop().await;
}

fn record(service: &str) -> String {
    format!("_http._tcp.{service}.example")
}

/// The names that are followed: those of the contract, or very many.
struct Zones {
    server: NameServer,
    names: Vec<String>,
    /// Where each instance is.
    registered: BTreeMap<String, (u16, Ipv4Addr)>,
}

impl RegistryRig for Zones {
    fn about(&self) -> &'static str {
        "SRV records (name server in the test)"
    }

    fn source(&self, _: SocketAddr) -> Box<dyn Source> {
        source(self.server.address, self.names.clone())
    }

    fn server(&self) -> SocketAddr {
        self.server.address
    }

    fn version_label(&self) -> Option<&'static str> {
        None
    }

    async fn try_register(&mut self, instance: &Registered) -> bool {
        let at = (instance.port, instance.address.parse().unwrap());
        if let Some(before) = self.registered.insert(instance.id.clone(), at) {
            let mut known = self.server.zone.lock();
            known.0.get_mut(&record(&instance.service)).unwrap().retain(|target| *target != before);
        }
        let mut known = self.server.zone.lock();
        let targets = known.0.entry(record(&instance.service)).or_default();
        if !targets.contains(&at) {
            targets.push(at);
        }
        true
    }

    async fn deregister(&mut self, instance: &Registered) {
        let name = record(&instance.service);
        let at = self.registered.remove(&instance.id).unwrap();
        let mut known = self.server.zone.lock();
        let targets = known.0.get_mut(&name).unwrap();
        targets.retain(|target| *target != at);
        if targets.is_empty() {
            known.0.remove(&name);
        }
    }

    async fn set_condition(&mut self, _: &Registered, _: Condition) -> bool {
        false
    }

    /// Datagrams go no road that could be cut: the server itself is silent or slow.
    fn set_road(&mut self, _: &Relay, road: Road) {
        self.server.feel(match road {
            Road::Open | Road::Forgotten(_) => Mood::Good,
            Road::Cut => Mood::Failing,
            Road::Stalled => Mood::Silent,
            Road::Slow(delay) => Mood::Slow(delay),
            Road::Poisoned(_) => Mood::Nonsense,
        });
    }

    fn stream(&self) -> Option<&'static str> {
        None
    }

    async fn restart(&mut self) -> Option<bool> {
        self.server.serving.shutdown().await;
        self.server.serve().await;
        Some(true)
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        vec![vec![0xff; 40]]
    }

    async fn fill(&mut self, services: usize, instances: usize) {
        let mut known = self.server.zone.lock();
        for service in 0..services {
            let name = record(&format!("svc-{service}"));
            let targets =
                (0..instances).map(|i| (8080, Ipv4Addr::from(0x0a00_0001 + u32::try_from(i).unwrap())));
            known.0.insert(name.clone(), targets.collect());
            self.names.push(name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_keep_the_contract() {
    let names = ["shop", "cart", "late", "one-more"].map(record).to_vec();
    let mut zones = Zones { server: NameServer::start().await, names, registered: BTreeMap::new() };
    check_registry(&mut zones).await;
    check_load(&mut zones).await;
}
