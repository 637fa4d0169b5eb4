//! The contract of stores on a real etcd.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use data_encoding::BASE64;
use http::Method;
use pilot_config::ReadOptions;
use pilot_source::Source;
use pilot_source::contract::{Follower, Server, free_port};
use pilot_source_etcd::{EtcdOptions, EtcdSource};
use pilot_source_http::{Client, ClientOptions, ServerAddress};
use pilot_source_store::StoreOptions;
use pilot_source_store::contract::{Seen, StoreRig, Written, check_store, check_store_load, rule};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

struct Etcd {
    server: Server,
    address: SocketAddr,
    client: Client,
    user: Option<(String, String)>,
    _scratch: TempDir,
}

fn at(address: SocketAddr) -> ClientOptions {
    let server = ServerAddress::parse(&format!("http://{address}")).unwrap();
    ClientOptions { patience: Duration::from_secs(2), ..ClientOptions::new(vec![server]) }
}

/// Debian installs it beside iptables for the same suites.
#[allow(clippy::disallowed_methods, reason = "tests are told by the environment what may be skipped")]
fn is_there() -> bool {
    let found = std::process::Command::new("etcd").arg("--version").output().is_ok();
    let required = std::env::var_os("PILOT_REQUIRE_ALL").is_some_and(|value| !value.is_empty());
    assert!(found || !required, "etcd is not installed: `make packages` does that");
    if !found {
        println!("skipped: etcd is not installed");
    }
    found
}

impl Etcd {
    async fn start() -> Option<Self> {
        if !is_there() {
            return None;
        }
        let scratch = tempfile::tempdir().unwrap();
        let (address, peer) = (SocketAddr::from(([127, 0, 0, 1], free_port())), free_port());
        let data = scratch.path().join("etcd");
        let server = Server::start(move || {
            let mut command = Command::new("etcd");
            let peer = format!("http://127.0.0.1:{peer}");
            command
                .arg(format!("--data-dir={}", data.display()))
                .arg(format!("--listen-client-urls=http://{address}"))
                .arg(format!("--advertise-client-urls=http://{address}"))
                .arg(format!("--listen-peer-urls={peer}"))
                .arg(format!("--initial-advertise-peer-urls={peer}"))
                .arg(format!("--initial-cluster=default={peer}"));
            command
        });
        let client = Client::new(ClientOptions { patience: Duration::from_secs(10), ..at(address) }).unwrap();
        let mut etcd = Self { server, address, client, user: None, _scratch: scratch };
        etcd.until_ready().await;
        Some(etcd)
    }

    async fn until_ready(&mut self) {
        let asked = self.client.clone();
        let is_ready = || async { asked.page("/health", Duration::ZERO).await.is_ok() };
        self.server.until("etcd answers", is_ready).await;
    }

    fn follow_at(&self, client: ClientOptions) -> Box<dyn Source> {
        let options = EtcdOptions {
            store: StoreOptions::new("etcd", ReadOptions::default()),
            client,
            prefix: "/istio/config".to_owned(),
            user: self.user.clone(),
            alive: Duration::from_millis(500),
        };
        Box::new(EtcdSource::open(options).unwrap())
    }

    /// Wants a password from now on.
    async fn guard(&self) {
        self.ask("/v3/auth/user/add", json!({"name": "root", "password": "open sesame"})).await;
        self.ask("/v3/auth/role/add", json!({"name": "root"})).await;
        self.ask("/v3/auth/user/grant", json!({"user": "root", "role": "root"})).await;
        self.ask("/v3/auth/enable", json!({})).await;
    }

    async fn ask(&self, path: &str, body: Value) -> Value {
        let answer =
            self.client.ask(Method::POST, path, body.to_string().into(), Duration::ZERO).await.unwrap();
        assert!(answer.status.is_success(), "{path}: {} {:?}", answer.status, answer.body);
        answer.json().unwrap()
    }
}

fn key_of(key: &str) -> String {
    BASE64.encode(format!("/istio/config/{key}").as_bytes())
}

impl StoreRig for Etcd {
    fn about(&self) -> &'static str {
        "etcd 3.4"
    }

    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        self.follow_at(at(server))
    }

    fn server(&self) -> Option<SocketAddr> {
        Some(self.address)
    }

    fn stream(&self) -> &'static str {
        "/v3/watch"
    }

    async fn put(&mut self, key: &str, bytes: &[u8]) -> bool {
        self.ask("/v3/kv/put", json!({"key": key_of(key), "value": BASE64.encode(bytes)})).await;
        true
    }

    async fn put_if(&mut self, key: &str, seen: Seen, bytes: &[u8]) -> Option<Written> {
        let version = if let Seen::Version(version) = seen { version } else { 0 };
        let compare = json!({"key": key_of(key), "target": "MOD", "result": "EQUAL", "modRevision": version.to_string()});
        let put = json!({"requestPut": {"key": key_of(key), "value": BASE64.encode(bytes)}});
        let answer = self.ask("/v3/kv/txn", json!({"compare": [compare], "success": [put]})).await;
        if answer["succeeded"] != true {
            return Some(Written::Conflict);
        }
        Some(Written::Version(answer["header"]["revision"].as_str().unwrap().parse().unwrap()))
    }

    async fn delete(&mut self, key: &str) {
        self.ask("/v3/kv/deleterange", json!({"key": key_of(key)})).await;
    }

    async fn list(&mut self) -> BTreeSet<String> {
        let end = BASE64.encode(b"/istio/config0");
        let answer =
            self.ask("/v3/kv/range", json!({"key": key_of(""), "range_end": end, "keys_only": true})).await;
        let key = |pair: &Value| {
            let key = BASE64.decode(pair["key"].as_str().unwrap().as_bytes()).unwrap();
            String::from_utf8_lossy(&key).trim_start_matches("/istio/config/").to_owned()
        };
        answer["kvs"].as_array().into_iter().flatten().map(key).collect()
    }

    async fn restart(&mut self) -> Option<bool> {
        self.server.stop().await;
        self.server.start_again();
        self.until_ready().await;
        Some(true)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcds_keys_keep_the_contract_of_stores() {
    let Some(mut etcd) = Etcd::start().await else { return };
    check_store(&mut etcd).await;
    etcd.delete("first").await;
    check_store_load(&mut etcd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_password_is_told_without_it() {
    let Some(mut etcd) = Etcd::start().await else { return };
    etcd.put("first", rule("first", 1).as_bytes()).await;
    etcd.guard().await;
    etcd.user = Some(("root".to_owned(), "wrong word".to_owned()));
    let mut follower = Follower::start(etcd.source(etcd.address));
    follower.until("a refusal", |mirror| !mirror.issues.is_empty()).await;
    let issue = follower.mirror.issues.values().flatten().next().unwrap().to_string();
    assert!(issue.contains("refuses") && !issue.contains("wrong word") && !follower.mirror.ready, "{issue}");
    follower.stop().await;
    etcd.user = Some(("root".to_owned(), "open sesame".to_owned()));
    let mut follower = Follower::start(etcd.source(etcd.address));
    follower.until("the rule", |mirror| mirror.objects().count() == 1).await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_servers_that_want_a_password_one_that_is_there_is_asked() {
    let Some(mut etcd) = Etcd::start().await else { return };
    etcd.put("first", rule("first", 1).as_bytes()).await;
    etcd.guard().await;
    etcd.user = Some(("root".to_owned(), "open sesame".to_owned()));
    let nobody = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let servers =
        [nobody, nobody, etcd.address].map(|at| ServerAddress::parse(&format!("http://{at}")).unwrap());
    let client = ClientOptions { servers: servers.to_vec(), ..at(etcd.address) };
    let mut follower = Follower::start(etcd.follow_at(client));
    follower.until("the rule", |mirror| mirror.ready && mirror.objects().count() == 1).await;
    follower.stop().await;
}
