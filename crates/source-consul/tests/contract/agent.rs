//! Real agents of Consul, each a server of its own.

use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use pilot_config::ReadOptions;
use pilot_source::contract::{Server, free_port, wanted};
use pilot_source::{RegistryOptions, Source};
use pilot_source_consul::{ConsulKv, ConsulKvOptions, ConsulOptions, ConsulSource};
use pilot_source_http::{Client, ClientOptions, Secret, ServerAddress};
use pilot_source_store::StoreOptions;
use tokio::process::Command;

pub(crate) const TOKEN: &str = "11111111-2222-3333-4444-555555555555";

pub(crate) struct Consul {
    pub(crate) server: Server,
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    /// Where agents of other datacenters find it.
    pub(crate) wan: u16,
    /// Have instances a check each?
    pub(crate) has_checks: bool,
}

/// What an agent is beside a server on this machine.
pub(crate) struct Agent {
    pub(crate) datacenter: &'static str,
    /// Lines of its configuration.
    pub(crate) settings: Vec<String>,
    /// Where it is asked, and how by the test itself.
    pub(crate) http: u16,
    pub(crate) client: ClientOptions,
}

pub(crate) fn at(address: SocketAddr, token: &str) -> ClientOptions {
    let server = ServerAddress::parse(&format!("http://{address}")).unwrap();
    let secret = Secret::new("x-consul-token", token);
    ClientOptions { patience: Duration::from_secs(2), secret, ..ClientOptions::new(vec![server]) }
}

/// Longer than a busy machine takes for anything.
pub(crate) fn patient(client: ClientOptions) -> ClientOptions {
    ClientOptions { patience: Duration::from_secs(30), ..client }
}

/// With access control, so that a wrong token is one.
pub(crate) fn guarded() -> String {
    let acl = format!(r#"tokens {{ initial_management = "{TOKEN}" agent = "{TOKEN}" }}"#);
    format!(r#"acl {{ enabled = true default_policy = "deny" {acl} }}"#)
}

impl Consul {
    pub(crate) async fn start() -> Option<Self> {
        let http = free_port();
        let settings = vec![guarded(), format!("ports {{ http = {http} }}")];
        let client = patient(at(SocketAddr::from(([127, 0, 0, 1], http)), TOKEN));
        Self::start_as(Agent { datacenter: "dc1", settings, http, client }).await
    }

    pub(crate) async fn start_as(agent: Agent) -> Option<Self> {
        let consul = wanted("PILOT_CONSUL")?;
        let Agent { datacenter, settings, http, client } = agent;
        let [server_port, serf, wan] = [free_port(), free_port(), free_port()];
        let server = Server::start(move || {
            let mut command = Command::new(&consul);
            command
                .args(["agent", "-dev", "-bind=127.0.0.1", "-client=127.0.0.1", "-dns-port=-1"])
                .args(["-grpc-port=-1", "-grpc-tls-port=-1", "-log-level=error"])
                .args([format!("-node=lab-{datacenter}"), format!("-datacenter={datacenter}")])
                .arg(format!("-server-port={server_port}"))
                .arg(format!("-serf-lan-port={serf}"))
                .arg(format!("-serf-wan-port={wan}"))
                .args(["-hcl", "disable_update_check=true"])
                .args(["-hcl", "limits { http_max_conns_per_client = 200 }"]);
            for line in &settings {
                command.args(["-hcl", line]);
            }
            command
        });
        let address = SocketAddr::from(([127, 0, 0, 1], http));
        let mut consul =
            Self { server, address, client: Client::new(client).unwrap(), wan, has_checks: true };
        consul.until_ready().await;
        Some(consul)
    }

    pub(crate) async fn until_ready(&mut self) {
        let client = self.client.clone();
        let is_ready = || async {
            let leader = client.page("/v1/status/leader", Duration::ZERO).await;
            let nodes = client.page("/v1/catalog/nodes", Duration::ZERO).await;
            leader.is_ok_and(|answer| answer.body.len() > 4)
                && nodes.is_ok_and(|answer| answer.body.len() > 4)
        };
        self.server.until("Consul has a leader", is_ready).await;
    }

    pub(crate) async fn ask(&self, path: &str, body: impl Into<Vec<u8>>) {
        let answer = self.client.ask(Method::PUT, path, body.into().into(), Duration::ZERO).await.unwrap();
        assert!(answer.status.is_success(), "{path}: {} {:?}", answer.status, answer.body);
    }

    /// A store that asks in this way.
    pub(crate) fn keys_at(&self, client: ClientOptions) -> Box<dyn Source> {
        let options = ConsulKvOptions {
            store: StoreOptions::new("consul-kv", ReadOptions::default()),
            client,
            prefix: "istio/config".to_owned(),
            datacenter: String::new(),
            namespace: String::new(),
            partition: String::new(),
            wait: Duration::from_secs(3),
        };
        Box::new(ConsulKv::open(options).unwrap())
    }

    /// A source that asks in this way for a datacenter.
    pub(crate) fn follow_at(&self, client: ClientOptions, datacenter: &str) -> Box<dyn Source> {
        let name = if datacenter == "dc1" { "consul".to_owned() } else { format!("consul-{datacenter}") };
        let options = ConsulOptions {
            registry: RegistryOptions::new(&name, "service.consul"),
            client,
            datacenter: datacenter.to_owned(),
            // One that is named has that in the names of its services too.
            other_domains: if datacenter == "dc1" {
                Vec::new()
            } else {
                vec![format!("service.{datacenter}.consul")]
            },
            namespace: String::new(),
            partition: String::new(),
            wait: Duration::from_secs(3),
        };
        Box::new(ConsulSource::open(options).unwrap())
    }
}
