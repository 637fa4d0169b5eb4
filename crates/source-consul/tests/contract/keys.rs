//! The contract of stores on the keys of a real Consul.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use data_encoding::BASE64;
use http::Method;
use pilot_config::ReadOptions;
use pilot_source::Source;
use pilot_source::contract::{Follower, RegistryRig};
use pilot_source_consul::{ConsulKv, ConsulKvOptions};
use pilot_source_store::StoreOptions;
use pilot_source_store::contract::{Seen, StoreRig, Written, check_store, check_store_load, rule};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::agent::{Consul, TOKEN, at};

pub(crate) struct Kv(pub(crate) Consul);

fn path(key: &str) -> String {
    format!("/v1/kv/istio/config/{key}")
}

impl StoreRig for Kv {
    fn about(&self) -> &'static str {
        "Consul 1.22.3, keys"
    }

    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        self.0.keys_at(at(server, TOKEN))
    }

    fn server(&self) -> Option<SocketAddr> {
        Some(self.0.address)
    }

    async fn put(&mut self, key: &str, bytes: &[u8]) -> bool {
        self.0.ask(&path(key), bytes).await;
        true
    }

    async fn put_if(&mut self, key: &str, seen: Seen, bytes: &[u8]) -> Option<Written> {
        let version = if let Seen::Version(version) = seen { version } else { 0 };
        let question = format!("{}?cas={version}", path(key));
        let answer = self.0.client.ask(Method::PUT, &question, bytes.to_vec().into(), Duration::ZERO).await;
        if !answer.unwrap().json::<bool>().unwrap() {
            return Some(Written::Conflict);
        }
        let page = self.0.client.page(&path(key), Duration::ZERO).await.unwrap().json::<Value>().unwrap();
        Some(Written::Version(page[0]["ModifyIndex"].as_u64().unwrap()))
    }

    async fn delete(&mut self, key: &str) {
        let answer = self.0.client.ask(Method::DELETE, &path(key), "".into(), Duration::ZERO).await.unwrap();
        assert!(answer.status.is_success());
    }

    async fn list(&mut self) -> BTreeSet<String> {
        let page = self.0.client.page(&path("?keys=true"), Duration::ZERO).await.unwrap();
        let keys: Vec<String> = page.json().unwrap();
        keys.iter().map(|key| key.trim_start_matches("istio/config/").to_owned()).collect()
    }

    async fn restart(&mut self) -> Option<bool> {
        RegistryRig::restart(&mut self.0).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consuls_keys_keep_the_contract_of_stores() {
    let Some(consul) = Consul::start().await else { return };
    let mut keys = Kv(consul);
    check_store(&mut keys).await;
    keys.delete("first").await;
    check_store_load(&mut keys).await;
}

/// Consul forgets after a quarter of an hour that a key was deleted, and with it the index of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_that_goes_back_is_no_loss_while_nothing_is_missing() {
    let index = Arc::new(AtomicU64::new(100));
    let (now, value) = (Arc::clone(&index), BASE64.encode(rule("first", 1).as_bytes()));
    let router = Router::new().fallback(move || {
        let index = now.load(Ordering::Relaxed).to_string();
        let body = json!([{"Key": "istio/config/first", "Value": value}]).to_string();
        async move { ([("x-consul-index", index)], body) }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(axum::serve(listener, router).into_future());
    let options = ConsulKvOptions {
        store: StoreOptions::new("consul-kv", ReadOptions::default()),
        client: at(address, "none"),
        prefix: "istio/config".to_owned(),
        datacenter: String::new(),
        namespace: String::new(),
        partition: String::new(),
        wait: Duration::from_secs(3),
    };
    let mut follower = Follower::start(Box::new(ConsulKv::open(options).unwrap()));
    follower.until("the rule", |mirror| mirror.ready && mirror.objects().count() == 1).await;
    index.store(50, Ordering::Relaxed);
    follower.rest(Duration::from_millis(500)).await;
    assert_eq!((follower.mirror.rows, follower.mirror.reports), (0, 0));
    follower.stop().await;
}
