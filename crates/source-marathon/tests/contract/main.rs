//! The contract of registries on a stand-in for Marathon.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod standin;

use std::net::SocketAddr;
use std::time::Duration;

use pilot_source::contract::{Condition, Registered, RegistryRig, check_load, check_registry};
use pilot_source::{RegistryOptions, Source};
use pilot_source_http::{ClientOptions, ServerAddress};
use pilot_source_marathon::{MarathonOptions, MarathonSource};

use standin::Standin;

impl RegistryRig for Standin {
    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        let server = ServerAddress::parse(&format!("http://{server}")).unwrap();
        let options = MarathonOptions {
            registry: RegistryOptions::new("marathon", "marathon.mesos"),
            client: ClientOptions { patience: Duration::from_secs(2), ..ClientOptions::new(vec![server]) },
            alive: Duration::from_millis(500),
        };
        Box::new(MarathonSource::open(options).unwrap())
    }

    fn server(&self) -> SocketAddr {
        self.address
    }

    async fn register(&mut self, instance: &Registered) {
        self.put(&instance.id, &of_service(instance), Condition::Well);
    }

    async fn deregister(&mut self, instance: &Registered) {
        self.remove(&instance.id);
    }

    async fn set_condition(&mut self, instance: &Registered, condition: Condition) -> bool {
        self.put(&instance.id, &of_service(instance), condition);
        true
    }

    async fn restart(&mut self) -> Option<bool> {
        self.stop_and_start().await;
        Some(true)
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        let answer = |body: &str| {
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
        };
        vec![answer("{}"), b"HTTP/1.1 503 No leader\r\ncontent-length: 0\r\n\r\n".to_vec(), vec![0xff; 64]]
    }

    async fn fill(&mut self, services: usize, instances: usize) {
        for service in 0..services {
            for instance in 0..instances {
                let (name, id) = (format!("svc-{service}"), format!("svc-{service}-{instance}"));
                self.put(&name, &Registered::new(&name, &id, 8080).with("version", "v1"), Condition::Well);
            }
        }
    }
}

/// Versions of a service are apps of their own that say which host they serve.
fn of_service(instance: &Registered) -> Registered {
    let host = format!("{}.marathon.mesos", instance.service);
    instance.clone().with("istio-host", &host)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marathon_keeps_the_contract() {
    let mut standin = Standin::start().await;
    check_registry(&mut standin).await;
    check_load(&mut standin).await;
}
