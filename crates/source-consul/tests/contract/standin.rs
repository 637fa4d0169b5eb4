//! What a real Consul does only when something is wrong with it: as much of its interface as shows that.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing};
use parking_lot::Mutex;
use pilot_model::Object;
use pilot_source::contract::{Follower, Mirror};
use pilot_source::{RegistryOptions, Source};
use pilot_source_consul::{ConsulOptions, ConsulSource};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::agent::at;

#[derive(Clone)]
struct Standin {
    world: Arc<Mutex<World>>,
    /// The index of the last change, which those wait for who ask with an older one.
    index: watch::Sender<u64>,
}

#[derive(Default)]
struct World {
    /// The index and the port of each service.
    services: BTreeMap<String, (u64, u16)>,
    critical: Vec<String>,
    /// A service that cannot be asked for.
    refused: String,
    /// Of which services the instances were asked for.
    read: BTreeSet<String>,
}

type Asked = Query<BTreeMap<String, String>>;

async fn answer(State(standin): State<Standin>, Query(query): Asked, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if let Some(after) = query.get("index").and_then(|text| text.parse::<u64>().ok()) {
        let mut index = standin.index.subscribe();
        // Who hangs up has stopped waiting.
        let _changed = index.wait_for(|index| *index > after).await;
    }
    let mut world = standin.world.lock();
    let is_filtered = query.contains_key("filter");
    let mut index = *standin.index.borrow();
    let body = match path.strip_prefix("/v1/health/service/") {
        Some(name) if name == world.refused => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        Some(name) => {
            let (of_service, port) = world.services.get(name).copied().unwrap_or_default();
            index = of_service;
            world.read.extend((!is_filtered).then(|| name.to_owned()));
            let status = if world.critical.iter().any(|one| one == name) { "critical" } else { "passing" };
            let one = json!({"Node": {"Node": "n", "Address": "10.0.0.1"}, "Checks": [{"Status": status}],
                "Service": {"ID": name, "Port": port, "ModifyIndex": of_service}});
            if is_filtered { json!([]) } else { json!([one]) }
        }
        None => match path.as_str() {
            "/v1/catalog/services" => world.services.keys().map(|name| (name.clone(), json!([]))).collect(),
            "/v1/health/state/critical" => {
                let check = |name: &String| json!({"Node": "n", "CheckID": name, "ServiceName": name});
                world.critical.iter().map(check).collect()
            }
            _ => Value::Array(Vec::new()),
        },
    };
    ([("x-consul-index", index.to_string())], body.to_string()).into_response()
}

impl Standin {
    fn change(&self, change: impl FnOnce(&mut World, u64)) {
        let index = *self.index.borrow() + 1;
        change(&mut self.world.lock(), index);
        self.index.send_replace(index);
    }

    /// Of which services the instances were asked for since the last time.
    fn read(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.world.lock().read)
    }
}

async fn start(services: usize) -> (Standin, Box<dyn Source>, JoinSet<std::io::Result<()>>) {
    let services = (0..services).map(|i| (format!("s{i}"), (1, 8080))).collect();
    let world = Arc::new(Mutex::new(World { services, ..World::default() }));
    let standin = Standin { world, index: watch::Sender::new(1) };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let mut serving = JoinSet::new();
    let router = Router::new().fallback(routing::get(answer)).with_state(standin.clone());
    serving.spawn(axum::serve(listener, router).into_future());
    let options = ConsulOptions {
        registry: RegistryOptions::new("consul", "service.consul"),
        client: at(address, "none"),
        datacenter: String::new(),
        other_domains: Vec::new(),
        namespace: String::new(),
        partition: String::new(),
        wait: std::time::Duration::from_secs(30),
    };
    (standin, Box::new(ConsulSource::open(options).unwrap()), serving)
}

/// How many endpoints a service has, and at which port.
fn told(mirror: &Mirror, name: &str) -> Vec<u16> {
    let entry = mirror.objects().find_map(|object| match object {
        Object::ServiceEntry(entry) if entry.spec.hosts[0].as_str().starts_with(name) => Some(&entry.spec),
        _ => None,
    });
    let endpoints = entry.into_iter().flat_map(|entry| &entry.endpoints);
    endpoints.filter_map(|endpoint| endpoint.ports.values().next().copied()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_cannot_be_read_is_told_and_tried_again_and_takes_no_other_along() {
    let (standin, source, _serving) = start(3).await;
    "s1".clone_into(&mut standin.world.lock().refused);
    let mut follower = Follower::start(source);
    follower.until("the others", |mirror| mirror.ready && mirror.objects().count() == 2).await;
    let issue = follower.mirror.issues.values().flatten().next().unwrap().to_string();
    assert!(issue.contains("default/s1.consul") && issue.contains("500"), "{issue}");
    standin.change(|world, index| _ = world.services.insert("s0".into(), (index, 8081)));
    follower.until("a change of another", |mirror| told(mirror, "s0") == [8081]).await;
    standin.world.lock().refused.clear();
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    assert_eq!(told(&follower.mirror, "s1"), [8080]);
    // One that was known keeps what it was.
    standin.change(|world, index| {
        "s1".clone_into(&mut world.refused);
        world.critical.push("s1".to_owned());
        world.services.insert("s1".into(), (index, 8080));
    });
    follower.until("that it cannot be read", |mirror| !mirror.issues.is_empty()).await;
    assert_eq!(told(&follower.mirror, "s1"), [8080]);
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_that_is_told_by_name_has_only_that_service_read() {
    let (standin, source, _serving) = start(40).await;
    let mut follower = Follower::start(source);
    follower.until("all", |mirror| mirror.objects().count() == 40).await;
    assert_eq!(standin.read().len(), 40);
    standin.change(|world, index| {
        world.critical.push("s7".to_owned());
        world.services.insert("s7".into(), (index, 8080));
    });
    follower.until("that one is ill", |mirror| told(mirror, "s7").is_empty()).await;
    assert_eq!(standin.read(), ["s7".to_owned()].into());
    // Without a name all are asked for their index, and only the one that has changed is read.
    standin.change(|world, index| _ = world.services.insert("s9".into(), (index, 8081)));
    follower.until("another port", |mirror| told(mirror, "s9") == [8081]).await;
    assert_eq!(standin.read(), ["s9".to_owned()].into());
    follower.stop().await;
}
