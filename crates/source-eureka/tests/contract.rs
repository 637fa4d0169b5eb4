//! The contract of registries on a real Eureka server.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use pilot_source::contract::{
    Condition, Registered, RegistryRig, Server, check_load, check_registry, free_port, wanted,
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

impl Eureka {
    async fn start() -> Option<Self> {
        let jar = wanted("PILOT_EUREKA")?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let port = address.port();
        let server = Server::start(move || {
            let mut java = Command::new("java");
            java.args(["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar"]).arg(&jar).args([
                "--server.address=127.0.0.1",
                &format!("--server.port={port}"),
                "--spring.application.name=eureka",
                "--eureka.instance.hostname=127.0.0.1",
                "--eureka.client.register-with-eureka=false",
                "--eureka.client.fetch-registry=false",
                "--eureka.server.enable-self-preservation=false",
                "--eureka.server.response-cache-update-interval-ms=100",
                "--eureka.server.wait-time-in-ms-when-sync-empty=0",
            ]);
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

    async fn register(&mut self, instance: &Registered) {
        let app = app(instance);
        let body = serde_json::json!({"instance": {
            "instanceId": instance.id, "hostName": "h", "app": app, "ipAddr": instance.address, "status": "UP",
            "port": {"$": instance.port, "@enabled": "true"}, "securePort": {"$": 443, "@enabled": "false"},
            "vipAddress": instance.service, "metadata": instance.metadata,
            "dataCenterInfo": {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"},
            "leaseInfo": {"renewalIntervalInSecs": 30, "durationInSecs": 3600},
        }});
        self.ask(Method::POST, &format!("/apps/{app}"), body.to_string()).await;
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
    check_load(&mut eureka).await;
}
