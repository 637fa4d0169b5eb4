//! The contract of registries on a real Nomad, and on a stand-in for it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod real;
mod standin;

use std::net::SocketAddr;
use std::time::Duration;

use pilot_model::Object;
use pilot_source::contract::{
    Condition, Follower, Mirror, Registered, RegistryRig, check_bad, check_load, check_registry,
};
use pilot_source::{RegistryOptions, Source};
use pilot_source_http::{ClientOptions, Secret, ServerAddress};
use pilot_source_nomad::{NomadOptions, NomadSource};

use standin::Standin;

fn at(address: SocketAddr) -> ClientOptions {
    let server = ServerAddress::parse(&format!("http://{address}")).unwrap();
    ClientOptions { patience: Duration::from_secs(2), ..ClientOptions::new(vec![server]) }
}

/// Of who has this the stand-in does not believe that he may ask.
const WRONG: &str = "55555555-4444-3333-2222-111111111111";

fn source(address: SocketAddr, silence: Duration) -> Box<dyn Source> {
    source_with(at(address), silence)
}

fn source_with(client: ClientOptions, silence: Duration) -> Box<dyn Source> {
    let options = NomadOptions {
        registry: RegistryOptions {
            service_port: Some(80),
            ..RegistryOptions::new("nomad", "service.nomad")
        },
        client,
        namespace: "*".to_owned(),
        alive: Duration::from_millis(500),
        silence,
    };
    Box::new(NomadSource::open(options).unwrap())
}

/// The stand-in says every second that it is alive.
const SILENCE: Duration = Duration::from_secs(5);

/// What is no answer of a Nomad, or one that makes no sense.
fn nonsense() -> Vec<Vec<u8>> {
    let answer = |head: &str, body: &str| {
        let head = format!("HTTP/1.1 200 OK\r\n{head}content-length: {}\r\n\r\n", body.len());
        format!("{head}{body}").into_bytes()
    };
    let index = "x-nomad-index: 5\r\n";
    vec![answer("", "[]"), answer(index, "{}"), answer(index, "[{}]"), vec![0xff; 64]]
}

impl RegistryRig for Standin {
    fn about(&self) -> &'static str {
        "Nomad (stand-in)"
    }

    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        source(server, SILENCE)
    }

    fn server(&self) -> SocketAddr {
        self.address
    }

    async fn try_register(&mut self, instance: &Registered) -> bool {
        self.put(instance);
        true
    }

    async fn deregister(&mut self, instance: &Registered) {
        self.remove(instance);
    }

    /// Nomad's native services have no health of their own: who is ill is deregistered.
    async fn set_condition(&mut self, _: &Registered, _: Condition) -> bool {
        false
    }

    fn stream(&self) -> Option<&'static str> {
        Some("/v1/event/stream")
    }

    async fn restart(&mut self) -> Option<bool> {
        self.stop_and_start().await;
        Some(true)
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        nonsense()
    }

    fn with_wrong_token(&self) -> Option<(Box<dyn Source>, &'static str)> {
        let secret = Secret::new("x-nomad-token", WRONG);
        Some((source_with(ClientOptions { secret, ..at(self.address) }, SILENCE), WRONG))
    }

    async fn fill(&mut self, services: usize, instances: usize) {
        for service in 0..services {
            for instance in 0..instances {
                let (name, id) = (format!("svc-{service}"), format!("svc-{service}-{instance}"));
                self.put(&Registered::new(&name, &id, 8080).with("version", "v1"));
            }
        }
    }
}

/// Of a real Nomad each instance is a job with a task; very many are registered here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stand_in_for_nomad_keeps_the_contract() {
    let mut standin = Standin::start().await;
    check_registry(&mut standin).await;
    check_bad(&mut standin).await;
    check_load(&mut standin).await;
}

fn hosts(mirror: &Mirror) -> Vec<String> {
    let host = |object: &Object| match object {
        Object::ServiceEntry(entry) => entry.spec.hosts[0].to_string(),
        other => format!("{:?}", other.key()),
    };
    mirror.objects().map(host).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happens_while_everything_is_read_is_not_missed() {
    let standin = Standin::start().await;
    for i in 0..32 {
        standin.put(&Registered::new(&format!("svc-{i}"), "1", 8080));
    }
    standin.behave(Duration::from_millis(200), "");
    let mut follower = Follower::start(source(standin.address, SILENCE));
    // The first ones are being read, and the others wait.
    follower.rest(Duration::from_millis(100)).await;
    assert!(!follower.mirror.ready);
    standin.put(&Registered::new("late", "1", 8080));
    for port in 0..200 {
        standin.put(&Registered::new("busy", "1", 9000 + port));
    }
    follower.until("all of them", |mirror| mirror.ready && hosts(mirror).len() == 34).await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_cannot_be_read_is_told_and_tried_again_and_takes_no_other_along() {
    let standin = Standin::start().await;
    for name in ["shop", "cart"] {
        standin.put(&Registered::new(name, "1", 8080));
    }
    standin.behave(Duration::ZERO, "shop");
    let mut follower = Follower::start(source(standin.address, SILENCE));
    follower.until("the other one", |mirror| hosts(mirror) == ["cart.service.nomad"]).await;
    let issue = follower.mirror.issues.values().flatten().next().unwrap().to_string();
    assert!(issue.contains("default/shop.nomad") && issue.contains("500"), "{issue}");
    standin.put(&Registered::new("late", "1", 8080));
    follower.until("a change of another", |mirror| hosts(mirror).len() == 2).await;
    standin.behave(Duration::ZERO, "");
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    assert_eq!(hosts(&follower.mirror).len(), 3);
    follower.stop().await;
}
