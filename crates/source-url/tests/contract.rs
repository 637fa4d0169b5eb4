//! The contract of stores on a page that a web server in the test has.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing};
use parking_lot::Mutex;
use pilot_base::Hash64;
use pilot_config::ReadOptions;
use pilot_source::Source;
use pilot_source::contract::{Follower, Relay, Road};
use pilot_source_http::ClientOptions;
use pilot_source_store::StoreOptions;
use pilot_source_store::contract::{StoreRig, check_store, check_store_load, rule};
use pilot_source_url::{UrlOptions, open};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

#[derive(Clone, Default)]
struct Shown {
    documents: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    /// How often the page was sent, and how often it was not because it was as before.
    sent: Arc<AtomicUsize>,
    spared: Arc<AtomicUsize>,
}

async fn page(State(shown): State<Shown>, headers: HeaderMap) -> Response {
    let all: Vec<Vec<u8>> = shown.documents.lock().values().cloned().collect();
    let body = all.join(&b"\n---\n"[..]);
    let tag = format!("\"{}\"", Hash64::of(&body).0);
    if headers.get("if-none-match").is_some_and(|seen| *seen == *tag) {
        shown.spared.fetch_add(1, Ordering::Relaxed);
        return StatusCode::NOT_MODIFIED.into_response();
    }
    shown.sent.fetch_add(1, Ordering::Relaxed);
    ([("etag", tag)], body).into_response()
}

struct Web {
    shown: Shown,
    address: SocketAddr,
    serving: JoinSet<std::io::Result<()>>,
}

impl Web {
    async fn start() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut web = Self { shown: Shown::default(), address, serving: JoinSet::new() };
        web.serve().await;
        web
    }

    async fn serve(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.address = listener.local_addr().unwrap();
        let router = Router::new().route("/mesh/rules.yaml", routing::get(page));
        self.serving.spawn(axum::serve(listener, router.with_state(self.shown.clone())).into_future());
    }
}

fn follow(url: String) -> Box<dyn Source> {
    let options = UrlOptions {
        store: StoreOptions::new("config-url", ReadOptions::default()),
        client: ClientOptions { patience: Duration::from_secs(2), ..ClientOptions::new(Vec::new()) },
        url,
        every: Duration::from_millis(50),
    };
    Box::new(open(options).unwrap())
}

impl StoreRig for Web {
    fn about(&self) -> &'static str {
        "a page, asked again and again (web server in the test)"
    }

    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        follow(format!("http://{server}/mesh/rules.yaml"))
    }

    fn server(&self) -> Option<SocketAddr> {
        Some(self.address)
    }

    async fn put(&mut self, key: &str, bytes: &[u8]) -> bool {
        self.shown.documents.lock().insert(key.to_owned(), bytes.to_vec());
        true
    }

    async fn delete(&mut self, key: &str) {
        self.shown.documents.lock().remove(key);
    }

    async fn list(&mut self) -> BTreeSet<String> {
        self.shown.documents.lock().keys().cloned().collect()
    }

    async fn restart(&mut self) -> Option<bool> {
        self.serving.shutdown().await;
        self.serve().await;
        Some(true)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_keeps_the_contract_of_stores() {
    let mut web = Web::start().await;
    check_store(&mut web).await;
    web.shown.documents.lock().clear();
    check_store_load(&mut web).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_is_as_before_is_not_sent_again_and_nobody_is_told_who_asked() {
    let mut web = Web::start().await;
    web.put("first", rule("first", 1).as_bytes()).await;
    let relay = Relay::to(web.address).await;
    let url = format!("http://pilot:hunter2@{}/mesh/rules.yaml?signature=hunter2", relay.address);
    let mut follower = Follower::start(follow(url));
    follower.until("the rule", |mirror| mirror.ready && mirror.objects().count() == 1).await;
    while web.shown.spared.load(Ordering::Relaxed) < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((web.shown.sent.load(Ordering::Relaxed), follower.mirror.rows), (1, 0));
    web.put("first", b"kind: [").await;
    follower.until("that it cannot be read", |mirror| !mirror.issues.is_empty()).await;
    relay.set(Road::Cut);
    follower.until("that nobody answers", |mirror| mirror.issues.len() == 2).await;
    let told: String = follower.mirror.issues.values().flatten().map(|issue| format!("{issue}\n")).collect();
    assert!(told.contains("/mesh/rules.yaml") && !told.contains("hunter2"), "{told}");
    follower.stop().await;
}
