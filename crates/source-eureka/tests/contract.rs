//! The contract of registries on a real Eureka server.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use pilot_model::Object;
use pilot_source::contract::{
    Condition, Follower, Mirror, Registered, RegistryRig, Server, check_bad, check_load, check_registry,
    free_port, garbled, wanted,
};
use pilot_source::{RegistryOptions, Source};
use pilot_source_eureka::{EurekaOptions, EurekaSource};
use pilot_source_http::{Client, ClientOptions, ServerAddress};
use tokio::process::Command;

struct Eureka {
    server: Server,
    address: SocketAddr,
    client: Client,
}

fn at(address: SocketAddr) -> ClientOptions {
    let server = ServerAddress::parse(&format!("http://{address}/eureka")).unwrap();
    ClientOptions { patience: Duration::from_secs(2), ..ClientOptions::new(vec![server]) }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}/eureka/")
}

impl Eureka {
    async fn start() -> Option<Self> {
        Self::start_beside(free_port(), Vec::new()).await
    }

    /// With settings of its own, such as who its peers are.
    async fn start_beside(port: u16, settings: Vec<String>) -> Option<Self> {
        let jar = wanted("PILOT_EUREKA")?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let server = Server::start(move || {
            let mut java = Command::new("java");
            java.args(["-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar"]).arg(&jar).args([
                "--server.address=127.0.0.1",
                &format!("--server.port={port}"),
                "--spring.application.name=eureka",
                "--eureka.instance.hostname=127.0.0.1",
                "--eureka.client.register-with-eureka=false",
                "--eureka.client.fetch-registry=false",
                "--eureka.server.enable-self-preservation=false",
                "--eureka.server.response-cache-update-interval-ms=100",
                "--eureka.server.wait-time-in-ms-when-sync-empty=0",
                &format!("--eureka.server.my-url={}", url(port)),
            ]);
            java.args(&settings);
            java
        });
        let patient = ClientOptions { patience: Duration::from_secs(10), ..at(address) };
        let mut eureka = Self { server, address, client: Client::new(patient).unwrap() };
        eureka.until_ready().await;
        Some(eureka)
    }

    async fn until_ready(&mut self) {
        let client = self.client.clone();
        let is_ready = || async { client.page("/apps", Duration::ZERO).await.is_ok() };
        self.server.until("Eureka answers", is_ready).await;
    }

    async fn ask(&self, method: Method, path: &str, body: String) {
        let answer = self.client.ask(method, path, body.into(), Duration::ZERO).await.unwrap();
        assert!(answer.status.is_success(), "{path}: {}", answer.status);
    }
}

fn app(instance: &Registered) -> String {
    instance.service.to_ascii_uppercase()
}

impl RegistryRig for Eureka {
    fn about(&self) -> &'static str {
        "Eureka 2.0"
    }

    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        let registry = RegistryOptions::new("eureka", "service.eureka");
        let every = Duration::from_millis(100);
        let mut client = at(server);
        // Very much takes longer; a road that a test blocks should not.
        if server == self.address {
            client.patience = Duration::from_secs(60);
        }
        Box::new(EurekaSource::open(EurekaOptions { registry, client, every }).unwrap())
    }

    fn server(&self) -> SocketAddr {
        self.address
    }

    async fn try_register(&mut self, instance: &Registered) -> bool {
        let app = app(instance);
        let body = serde_json::json!({"instance": {
            "instanceId": instance.id, "hostName": "h", "app": app, "ipAddr": instance.address, "status": "UP",
            "port": {"$": instance.port, "@enabled": "true"}, "securePort": {"$": 443, "@enabled": "false"},
            "vipAddress": instance.service, "metadata": instance.metadata,
            "dataCenterInfo": {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"},
            "leaseInfo": {"renewalIntervalInSecs": 30, "durationInSecs": 3600},
        }});
        let path = format!("/apps/{app}");
        let body = garbled(&body.to_string()).into();
        let answer = self.client.ask(Method::POST, &path, body, Duration::ZERO).await;
        answer.unwrap().status.is_success()
    }

    async fn deregister(&mut self, instance: &Registered) {
        self.ask(Method::DELETE, &format!("/apps/{}/{}", app(instance), instance.id), String::new()).await;
    }

    async fn set_condition(&mut self, instance: &Registered, condition: Condition) -> bool {
        let status = if condition == Condition::Well { "UP" } else { "OUT_OF_SERVICE" };
        let path = format!("/apps/{}/{}/status?value={status}", app(instance), instance.id);
        self.ask(Method::PUT, &path, String::new()).await;
        true
    }

    async fn restart(&mut self) -> Option<bool> {
        self.server.stop().await;
        self.server.start_again();
        self.until_ready().await;
        Some(false)
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        let answer = |body: &str| {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            format!("{head}{body}").into_bytes()
        };
        vec![
            answer("{\"applications\": 7}"),
            answer("<html>"),
            vec![0xff; 64],
            b"HTTP/1.1 500 No\r\n\r\n".to_vec(),
        ]
    }

    async fn fill(&mut self, services: usize, instances: usize) {
        for service in 0..services {
            for instance in 0..instances {
                let (name, id) = (format!("svc-{service}"), format!("svc-{service}-{instance}"));
                self.register(&Registered::new(&name, &id, 8080).with("version", "v1")).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eureka_keeps_the_contract() {
    let Some(mut eureka) = Eureka::start().await else { return };
    check_registry(&mut eureka).await;
    check_bad(&mut eureka).await;
    check_load(&mut eureka).await;
}

/// How many instances a service has.
fn instances(mirror: &Mirror, host: &str) -> usize {
    let of = |object: &Object| match object {
        Object::ServiceEntry(config) if config.spec.hosts.iter().any(|one| one.as_str() == host) => {
            config.spec.endpoints.len()
        }
        _ => 0,
    };
    mirror.objects().map(of).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_peers_the_next_one_is_asked() {
    let ports = [free_port(), free_port()];
    let peers = format!("--eureka.client.service-url.defaultZone={},{}", url(ports[0]), url(ports[1]));
    let starting = ports.map(|port| Eureka::start_beside(port, vec![peers.clone()]));
    let [first, second] = starting;
    let (Some(mut first), Some(mut second)) = tokio::join!(first, second) else { return };
    first.register(&Registered::new("shop", "shop-1", 8080)).await;
    // What one of them is told it tells the other.
    let client = second.client.clone();
    let is_told = || async { client.page("/apps/SHOP", Duration::ZERO).await.is_ok() };
    second.server.until("the peer knows it too", is_told).await;

    let servers = ports.map(|port| ServerAddress::parse(&url(port)).unwrap()).to_vec();
    let client = ClientOptions { patience: Duration::from_secs(5), ..ClientOptions::new(servers) };
    let (registry, every) = (RegistryOptions::new("eureka", "service.eureka"), Duration::from_millis(100));
    let source = EurekaSource::open(EurekaOptions { registry, client, every }).unwrap();
    let mut follower = Follower::start(Box::new(source));
    follower.until("a service", |mirror| instances(mirror, "shop.service.eureka") == 1).await;
    first.server.stop().await;
    second.register(&Registered::new("shop", "shop-2", 8081)).await;
    follower.until("what the peer learnt", |mirror| instances(mirror, "shop.service.eureka") == 2).await;
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    follower.stop().await;
}
