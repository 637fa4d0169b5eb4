//! The contracts of registries and of stores on a real Consul.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_source::contract::{
    Condition, Follower, Registered, RegistryRig, Server, check_load, check_registry, free_port, wanted,
};
use pilot_source::{RegistryOptions, Source};
use pilot_source_consul::{ConsulKv, ConsulKvOptions, ConsulOptions, ConsulSource};
use pilot_source_http::{Client, ClientOptions, Secret, ServerAddress};
use pilot_source_store::contract::{StoreRig, check_store};
use serde_json::json;
use tokio::process::Command;

const TOKEN: &str = "11111111-2222-3333-4444-555555555555";

struct Consul {
    server: Server,
    address: SocketAddr,
    client: Client,
}

fn at(address: SocketAddr, token: &str) -> ClientOptions {
    let server = ServerAddress::parse(&format!("http://{address}")).unwrap();
    let secret = Secret::new("x-consul-token", token);
    ClientOptions { patience: Duration::from_secs(2), secret, ..ClientOptions::new(vec![server]) }
}

impl Consul {
    /// With access control, so that a wrong token is one.
    async fn start() -> Option<Self> {
        let consul = wanted("PILOT_CONSUL")?;
        let [http, server_port, serf] = [free_port(), free_port(), free_port()];
        let address = SocketAddr::from(([127, 0, 0, 1], http));
        let server = Server::start(move || {
            let acl = format!(r#"tokens {{ initial_management = "{TOKEN}" agent = "{TOKEN}" }}"#);
            let mut command = Command::new(&consul);
            command
                .args([
                    "agent",
                    "-dev",
                    "-node",
                    "lab",
                    "-bind=127.0.0.1",
                    "-client=127.0.0.1",
                    "-dns-port=-1",
                ])
                .args(["-grpc-port=-1", "-grpc-tls-port=-1", "-serf-wan-port=-1", "-log-level=error"])
                .arg(format!("-http-port={http}"))
                .arg(format!("-server-port={server_port}"))
                .arg(format!("-serf-lan-port={serf}"))
                .args(["-hcl", "disable_update_check=true"])
                .args(["-hcl", &format!(r#"acl {{ enabled = true default_policy = "deny" {acl} }}"#)])
                .args(["-hcl", "limits { http_max_conns_per_client = 200 }"]);
            command
        });
        let patient = ClientOptions { patience: Duration::from_secs(30), ..at(address, TOKEN) };
        let mut consul = Self { server, address, client: Client::new(patient).unwrap() };
        consul.until_ready().await;
        Some(consul)
    }

    async fn until_ready(&mut self) {
        let client = self.client.clone();
        let is_ready = || async {
            let leader = client.page("/v1/status/leader", Duration::ZERO).await;
            let nodes = client.page("/v1/catalog/nodes", Duration::ZERO).await;
            leader.is_ok_and(|answer| answer.body.len() > 4)
                && nodes.is_ok_and(|answer| answer.body.len() > 4)
        };
        self.server.until("Consul has a leader", is_ready).await;
    }

    async fn ask(&self, path: &str, body: impl Into<Vec<u8>>) {
        let answer = self.client.ask(Method::PUT, path, body.into().into(), Duration::ZERO).await.unwrap();
        assert!(answer.status.is_success(), "{path}: {} {:?}", answer.status, answer.body);
    }

    fn source_with(&self, server: SocketAddr, token: &str) -> Box<dyn Source> {
        let options = ConsulOptions {
            registry: RegistryOptions::new("consul", "service.consul"),
            client: at(server, token),
            datacenter: "dc1".to_owned(),
            namespace: String::new(),
            partition: String::new(),
            wait: Duration::from_secs(3),
        };
        Box::new(ConsulSource::open(options).unwrap())
    }
}

impl RegistryRig for Consul {
    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        self.source_with(server, TOKEN)
    }

    fn server(&self) -> SocketAddr {
        self.address
    }

    async fn register(&mut self, instance: &Registered) {
        let check = json!({"CheckID": format!("check:{}", instance.id), "TTL": "1h", "Status": "passing"});
        let body = json!({"ID": instance.id, "Name": instance.service, "Address": instance.address,
            "Port": instance.port, "Meta": instance.metadata, "Check": check});
        self.ask("/v1/agent/service/register?replace-existing-checks=true", body.to_string()).await;
    }

    async fn deregister(&mut self, instance: &Registered) {
        self.ask(&format!("/v1/agent/service/deregister/{}", instance.id), "").await;
    }

    async fn set_condition(&mut self, instance: &Registered, condition: Condition) -> bool {
        let status = if condition == Condition::Well { "pass" } else { "fail" };
        self.ask(&format!("/v1/agent/check/{status}/check:{}", instance.id), "").await;
        true
    }

    async fn restart(&mut self) -> Option<bool> {
        self.server.stop().await;
        self.server.start_again();
        self.until_ready().await;
        Some(false)
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        let answer = |head: &str, body: &str| {
            let head = format!("HTTP/1.1 200 OK\r\n{head}content-length: {}\r\n\r\n", body.len());
            format!("{head}{body}").into_bytes()
        };
        let index = "x-consul-index: 5\r\n";
        vec![answer("", "{}"), answer(index, "[7]"), answer(index, "{"), vec![0xff; 64]]
    }

    async fn fill(&mut self, services: usize, instances: usize) {
        for service in 0..services {
            let name = format!("svc-{service}");
            // Sixty-four operations are the most that one transaction may have.
            let operation = |i: usize| {
                let instance = json!({"ID": format!("{name}-{i}"), "Service": name, "Address": "10.1.2.3", "Port": 8080,
                    "Meta": {"version": "v1"}});
                json!({"Service": {"Verb": "set", "Node": "elsewhere", "Service": instance}})
            };
            if service == 0 {
                let node = json!({"Node": "elsewhere", "Address": "10.1.2.3"});
                self.ask("/v1/catalog/register", node.to_string()).await;
            }
            let operations: Vec<_> = (0..instances).map(operation).collect();
            self.ask("/v1/txn", serde_json::to_string(&operations).unwrap()).await;
        }
    }
}

struct Kv(Consul);

impl StoreRig for Kv {
    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        let options = ConsulKvOptions {
            name: Name::new("consul-kv"),
            client: at(server, TOKEN),
            prefix: "istio/config".to_owned(),
            datacenter: String::new(),
            read: ReadOptions::default(),
            wait: Duration::from_secs(3),
        };
        Box::new(ConsulKv::open(options).unwrap())
    }

    fn server(&self) -> Option<SocketAddr> {
        Some(self.0.address)
    }

    async fn put(&mut self, key: &str, bytes: &[u8]) {
        self.0.ask(&format!("/v1/kv/istio/config/{key}"), bytes).await;
    }

    async fn delete(&mut self, key: &str) {
        let path = format!("/v1/kv/istio/config/{key}");
        let answer = self.0.client.ask(Method::DELETE, &path, "".into(), Duration::ZERO).await.unwrap();
        assert!(answer.status.is_success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consul_keeps_the_contract() {
    let Some(mut consul) = Consul::start().await else { return };
    check_registry(&mut consul).await;
    check_load(&mut consul).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consuls_keys_are_a_store_of_rules() {
    let Some(consul) = Consul::start().await else { return };
    check_store(&mut Kv(consul)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_token_is_told_without_it() {
    let Some(mut consul) = Consul::start().await else { return };
    consul.register(&Registered::new("shop", "shop-1", 8080)).await;
    let wrong = "99999999-2222-3333-4444-555555555555";
    let mut follower = Follower::start(consul.source_with(consul.address, wrong));
    follower.until("a refusal", |mirror| !mirror.issues.is_empty()).await;
    let issue = follower.mirror.issues.values().flatten().next().unwrap().to_string();
    assert!(issue.contains("is the token right?") && !issue.contains(wrong), "{issue}");
    assert!(!follower.mirror.ready, "what may not be seen is not nothing");
    follower.stop().await;
}
