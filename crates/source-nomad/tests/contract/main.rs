//! The contract of registries on a stand-in for Nomad.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod standin;

use std::net::SocketAddr;
use std::time::Duration;

use pilot_source::contract::{Condition, Registered, RegistryRig, check_load, check_registry};
use pilot_source::{RegistryOptions, Source};
use pilot_source_http::{ClientOptions, ServerAddress};
use pilot_source_nomad::{NomadOptions, NomadSource};

use standin::Standin;

fn at(address: SocketAddr) -> ClientOptions {
    let server = ServerAddress::parse(&format!("http://{address}")).unwrap();
    ClientOptions { patience: Duration::from_secs(2), ..ClientOptions::new(vec![server]) }
}

fn source(address: SocketAddr) -> Box<dyn Source> {
    let options = NomadOptions {
        registry: RegistryOptions {
            service_port: Some(80),
            ..RegistryOptions::new("nomad", "service.nomad")
        },
        client: at(address),
        namespace: "*".to_owned(),
        alive: Duration::from_millis(500),
    };
    Box::new(NomadSource::open(options).unwrap())
}

impl RegistryRig for Standin {
    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        source(server)
    }

    fn server(&self) -> SocketAddr {
        self.address
    }

    async fn register(&mut self, instance: &Registered) {
        self.put(instance);
    }

    async fn deregister(&mut self, instance: &Registered) {
        self.remove(instance);
    }

    /// Nomad's native services have no health of their own: who is ill is deregistered.
    async fn set_condition(&mut self, _: &Registered, _: Condition) -> bool {
        false
    }

    async fn restart(&mut self) -> Option<bool> {
        self.stop_and_start().await;
        Some(true)
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        let answer = |head: &str, body: &str| {
            let head = format!("HTTP/1.1 200 OK\r\n{head}content-length: {}\r\n\r\n", body.len());
            format!("{head}{body}").into_bytes()
        };
        vec![answer("", "[]"), answer("x-nomad-index: 5\r\n", "{}"), vec![0xff; 64]]
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nomad_keeps_the_contract() {
    let mut standin = Standin::start().await;
    check_registry(&mut standin).await;
    check_load(&mut standin).await;
}
