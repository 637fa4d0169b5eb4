//! Consul, Eureka, ZooKeeper, stand-ins for Copilot and Marathon and a name server, side by side; Nomad, where it can run; and
//! where Pilot keeps what it is told itself.

mod nomad;
mod told;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use http::Method;
use pilot_source_http::{Client, ClientOptions, ServerAddress};
use pilot_source_zookeeper::{Create, ZkError, ZooKeeper};
use pilot_testkit::process::{Process, free_address};
use pilot_testkit::tools::Tools;
use serde_json::json;
use tokio::process::Command;
use tokio::sync::mpsc;

pub(crate) use self::nomad::Nomad;
use self::told::Told;

/// Where an instance registers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Registry {
    Consul,
    Eureka,
    ZooKeeper,
    Memory,
    CloudFoundry,
    Marathon,
    Dns,
    Nomad,
}

/// An instance of `reviews`.
#[derive(Clone, Debug)]
pub(crate) struct Reviews {
    pub(crate) registry: Registry,
    pub(crate) id: String,
    pub(crate) at: SocketAddr,
    pub(crate) version: &'static str,
    /// Who it is in mutual TLS; empty if it speaks none.
    pub(crate) account: &'static str,
}

/// The port by which `reviews` is called, wherever its instances listen.
pub(crate) const SERVICE_PORT: u16 = 19_480;

/// Names have no versions, so what stands there is a host of its own.
pub(crate) const NAME: &str = "_http._tcp.legacy.mesh.test";

pub(crate) struct Servers {
    pub(crate) consul: SocketAddr,
    pub(crate) eureka: SocketAddr,
    pub(crate) zookeeper: SocketAddr,
    pub(crate) memory: SocketAddr,
    session: ZooKeeper,
    pub(crate) told: Told,
    pub(crate) nomad: Option<Nomad>,
    _processes: [Process; 3],
}

/// Where the programs are, if all of them are.
#[allow(clippy::disallowed_methods, reason = "tests are told by the environment where programs are")]
pub(crate) fn programs() -> Option<[String; 3]> {
    let names = ["PILOT_CONSUL", "PILOT_EUREKA", "PILOT_ZOOKEEPER"];
    let found = names.map(|name| std::env::var(name).ok().filter(|path| Path::new(path).exists()));
    let [Some(consul), Some(eureka), Some(zookeeper)] = found else {
        let required = std::env::var_os("PILOT_REQUIRE_ALL").is_some_and(|value| !value.is_empty());
        assert!(!required, "{names:?} must name what `make components` gets");
        return None;
    };
    Some([consul, eureka, zookeeper])
}

impl Servers {
    pub(crate) async fn start(
        scratch: &Path,
        [consul, eureka, zookeeper]: [String; 3],
        tools: &Tools,
    ) -> anyhow::Result<Self> {
        let [consul_at, raft, serf] = [free_address()?, free_address()?, free_address()?];
        let mut command = Command::new(consul);
        command
            .args(["agent", "-dev", "-node", "lab", "-bind=127.0.0.1", "-client=127.0.0.1", "-dns-port=-1"])
            .args(["-grpc-port=-1", "-grpc-tls-port=-1", "-serf-wan-port=-1", "-log-level=error"])
            .arg(format!("-http-port={}", consul_at.port()))
            .arg(format!("-server-port={}", raft.port()))
            .arg(format!("-serf-lan-port={}", serf.port()))
            .args(["-hcl", "disable_update_check=true"]);
        let mut consul = Process::start("consul", scratch, &mut command)?;
        let eureka_at = free_address()?;
        let mut command = Command::new("java");
        command.args(["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", &eureka]).args([
            "--server.address=127.0.0.1",
            &format!("--server.port={}", eureka_at.port()),
            "--spring.application.name=eureka",
            "--eureka.instance.hostname=127.0.0.1",
            "--eureka.client.register-with-eureka=false",
            "--eureka.client.fetch-registry=false",
            "--eureka.server.enable-self-preservation=false",
            "--eureka.server.response-cache-update-interval-ms=100",
            "--eureka.server.wait-time-in-ms-when-sync-empty=0",
        ]);
        let mut eureka = Process::start("eureka", scratch, &mut command)?;
        let (mut zookeeper, zookeeper_at) = start_zookeeper(scratch, &zookeeper)?;
        consul.until_ok(consul_at, "/v1/catalog/nodes").await?;
        let is_there = || async { session(zookeeper_at).await.is_ok() };
        zookeeper.until("ZooKeeper answers", is_there).await?;
        eureka.until_ok(eureka_at, "/eureka/apps").await?;
        let session = session(zookeeper_at).await?;
        for path in ["/services", "/services/reviews"] {
            session.create(path, b"", Create::Persistent).await?;
        }
        let told = Told::start(scratch, tools).await?;
        let nomad = Nomad::start(scratch).await?;
        let (memory, _processes) = (free_address()?, [consul, eureka, zookeeper]);
        let (consul, eureka, zookeeper) = (consul_at, eureka_at, zookeeper_at);
        Ok(Self { consul, eureka, zookeeper, memory, session, told, nomad, _processes })
    }

    pub(crate) async fn register(&mut self, reviews: &Reviews) -> anyhow::Result<()> {
        let Reviews { registry, id, at, version, account } = reviews;
        let (address, port) = (at.ip().to_string(), at.port());
        let mut metadata = json!({"version": version, "protocol": "http"});
        if !account.is_empty() {
            metadata["istio-service-account"] = json!(account);
        }
        match registry {
            Registry::Consul => {
                let body =
                    json!({"ID": id, "Name": "reviews", "Address": address, "Port": port, "Meta": metadata});
                self.ask(self.consul, Method::PUT, "/v1/agent/service/register", body.to_string()).await
            }
            Registry::Eureka => {
                let center = json!({"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"});
                let body = json!({"instance": {
                    "instanceId": id, "hostName": id, "app": "REVIEWS", "ipAddr": address, "status": "UP",
                    "port": {"$": port, "@enabled": "true"}, "vipAddress": "reviews", "metadata": metadata,
                    "dataCenterInfo": center, "leaseInfo": {"durationInSecs": 3600},
                }});
                self.ask(self.eureka, Method::POST, "/eureka/apps/REVIEWS", body.to_string()).await
            }
            Registry::ZooKeeper => {
                let payload = json!({"metadata": metadata});
                let node = json!({"name": "reviews", "id": id, "address": address, "port": port, "payload": payload});
                let data = node.to_string();
                Ok(self.session.create(&node_of(id), data.as_bytes(), Create::Ephemeral).await?)
            }
            Registry::Memory => {
                let hosts = ["reviews.mesh.test"];
                let body = json!({"address": address, "port": port, "metadata": metadata, "hosts": hosts});
                self.ask(self.memory, Method::PUT, &instance_of(id), body.to_string()).await
            }
            Registry::CloudFoundry => {
                self.told.copilot(&format!("route reviews.mesh.test - {version} {at} 0")).await
            }
            Registry::Marathon => {
                let labels = format!("istio-host=reviews.mesh.test istio-service-port={SERVICE_PORT}");
                self.told.marathon(&format!("task {id} {id} {at} {version} {labels}")).await
            }
            Registry::Dns => self.told.nameserver(&format!("record {NAME} {at}")).await,
            Registry::Nomad => self.nomad()?.register(reviews).await,
        }
    }

    pub(crate) async fn deregister(&mut self, reviews: &Reviews) -> anyhow::Result<()> {
        let id = &reviews.id;
        match reviews.registry {
            Registry::Consul => {
                let path = format!("/v1/agent/service/deregister/{id}");
                self.ask(self.consul, Method::PUT, &path, String::new()).await
            }
            Registry::Eureka => {
                self.ask(self.eureka, Method::DELETE, &format!("/eureka/apps/REVIEWS/{id}"), String::new())
                    .await
            }
            Registry::ZooKeeper => Ok(self.session.delete(&node_of(id)).await?),
            Registry::Memory => self.ask(self.memory, Method::DELETE, &instance_of(id), String::new()).await,
            Registry::CloudFoundry => self.told.copilot(&format!("stop {}", reviews.at)).await,
            Registry::Marathon => self.told.marathon(&format!("stop {id}")).await,
            Registry::Dns => self.told.nameserver(&format!("gone {NAME} {}", reviews.at)).await,
            Registry::Nomad => self.nomad()?.deregister(id).await,
        }
    }

    fn nomad(&self) -> anyhow::Result<&Nomad> {
        self.nomad.as_ref().context("Nomad is not there")
    }

    async fn ask(&self, server: SocketAddr, method: Method, path: &str, body: String) -> anyhow::Result<()> {
        let client = Client::new(ClientOptions::new(vec![ServerAddress::parse(&server.to_string())?]))?;
        let answer = client.ask(method, path, body.into(), Duration::ZERO).await?;
        anyhow::ensure!(answer.status.is_success(), "{path}: {}", answer.status);
        Ok(())
    }
}

fn instance_of(id: &str) -> String {
    format!("/v1/services/reviews/instances/{id}")
}

fn node_of(id: &str) -> String {
    format!("/services/reviews/{id}")
}

fn start_zookeeper(scratch: &Path, lib: &str) -> anyhow::Result<(Process, SocketAddr)> {
    let at = free_address()?;
    let file = scratch.join("zoo.cfg");
    let data = scratch.join("zookeeper");
    let lines = [
        "tickTime=500".to_owned(),
        format!("dataDir={}", data.display()),
        "clientPortAddress=127.0.0.1".to_owned(),
        format!("clientPort={}", at.port()),
        "admin.enableServer=false".to_owned(),
    ];
    std::fs::write(&file, lines.join("\n"))?;
    let mut command = Command::new("java");
    command
        .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", &format!("{lib}/*")])
        .arg("org.apache.zookeeper.server.ZooKeeperServerMain")
        .arg(&file);
    Ok((Process::start("zookeeper", scratch, &mut command)?, at))
}

async fn session(at: SocketAddr) -> Result<ZooKeeper, ZkError> {
    let (sender, _) = mpsc::unbounded_channel();
    ZooKeeper::connect(&at.to_string(), Duration::from_secs(10), sender).await
}
