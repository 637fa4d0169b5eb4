//! As much of Nomad's HTTP interface as the adapter asks for, written from its public description.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use parking_lot::Mutex;
use pilot_source::contract::{Registered, garbled};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::BroadcastStream;

#[derive(Clone)]
struct Nomad {
    services: Arc<Mutex<Services>>,
    /// The index of each, and the line that tells it.
    events: broadcast::Sender<(u64, String)>,
}

#[derive(Default)]
struct Services {
    by_name: BTreeMap<String, BTreeMap<String, Value>>,
    index: u64,
    /// The last events: so many are remembered for who asks for older ones.
    last: VecDeque<(u64, String)>,
    /// How long a question for one service takes.
    delay: Duration,
    /// A service that cannot be asked for.
    refused: String,
}

/// As many as Nomad remembers where nobody says otherwise.
const REMEMBERED: usize = 100;

/// Ends streams.
const END: &str = "end";

pub(crate) struct Standin {
    pub(crate) address: SocketAddr,
    nomad: Nomad,
    serving: JoinSet<std::io::Result<()>>,
}

impl Standin {
    pub(crate) async fn start() -> Self {
        let nomad = Nomad { services: Arc::default(), events: broadcast::channel(100_000).0 };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut standin = Self { address, nomad, serving: JoinSet::new() };
        standin.serve(listener);
        standin
    }

    fn serve(&mut self, listener: TcpListener) {
        let router = Router::new()
            .route("/v1/services", routing::get(services))
            .route("/v1/service/{name}", routing::get(service))
            .route("/v1/event/stream", routing::get(events))
            .route("/v1/status/leader", routing::get(|| async { "\"127.0.0.1:4647\"" }))
            .layer(from_fn(authorized))
            .with_state(self.nomad.clone());
        self.serving.spawn(axum::serve(listener, router).into_future());
        let events = self.nomad.events.clone();
        self.serving.spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                // Nobody may listen.
                let _heard = events.send((0, "{}\n".to_owned()));
            }
        });
    }

    pub(crate) async fn stop_and_start(&mut self) {
        self.serving.shutdown().await;
        // Connections outlive who accepted them; streams that stand are over.
        let _heard = self.nomad.events.send((0, END.to_owned()));
        self.nomad.events = broadcast::channel(100_000).0;
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.serve(listener);
    }

    /// How it answers from now on.
    pub(crate) fn behave(&self, delay: Duration, refused: &str) {
        let mut services = self.nomad.services.lock();
        (services.delay, services.refused) = (delay, refused.to_owned());
    }

    pub(crate) fn put(&self, instance: &Registered) {
        let tags: Vec<String> =
            instance.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let registration = json!({"ID": instance.id, "ServiceName": instance.service, "Namespace": "default",
            "Address": instance.address, "Port": instance.port, "Tags": tags, "Datacenter": "dc1"});
        let mut services = self.nomad.services.lock();
        services
            .by_name
            .entry(instance.service.clone())
            .or_default()
            .insert(instance.id.clone(), registration.clone());
        self.tell(&mut services, "ServiceRegistration", &registration);
    }

    pub(crate) fn remove(&self, instance: &Registered) {
        let mut services = self.nomad.services.lock();
        let instances = services.by_name.get_mut(&instance.service).unwrap();
        let registration = instances.remove(&instance.id).unwrap();
        if instances.is_empty() {
            services.by_name.remove(&instance.service);
        }
        self.tell(&mut services, "ServiceDeregistration", &registration);
    }

    fn tell(&self, services: &mut Services, kind: &str, registration: &Value) {
        services.index += 1;
        let event = json!({"Topic": "Service", "Type": kind, "Payload": {"Service": registration}});
        let line = format!("{}\n", json!({"Index": services.index, "Events": [event]}));
        services.last.push_back((services.index, line.clone()));
        if services.last.len() > REMEMBERED {
            services.last.pop_front();
        }
        // Nobody may listen.
        let _heard = self.nomad.events.send((services.index, line));
    }
}

async fn authorized(request: Request, next: Next) -> Response {
    match request.headers().get("x-nomad-token") {
        Some(token) if *token == crate::WRONG => StatusCode::FORBIDDEN.into_response(),
        _ => next.run(request).await,
    }
}

fn answer(services: &Services, body: &Value) -> Response {
    ([("x-nomad-index", services.index.max(1).to_string())], garbled(&body.to_string())).into_response()
}

async fn services(State(nomad): State<Nomad>) -> Response {
    let services = nomad.services.lock();
    let named: Value = services.by_name.keys().map(|name| json!({"ServiceName": name, "Tags": []})).collect();
    answer(&services, &json!([{"Namespace": "default", "Services": named}]))
}

async fn service(State(nomad): State<Nomad>, Path(name): Path<String>) -> Response {
    let delay = nomad.services.lock().delay;
    tokio::time::sleep(delay).await;
    let services = nomad.services.lock();
    if services.refused == name {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let instances: Value =
        services.by_name.get(&name).into_iter().flat_map(BTreeMap::values).cloned().collect();
    answer(&services, &instances)
}

async fn events(State(nomad): State<Nomad>, Query(query): Query<BTreeMap<String, String>>) -> Response {
    let from: u64 = query.get("index").and_then(|text| text.parse().ok()).unwrap_or_default();
    let services = nomad.services.lock();
    let lines = BroadcastStream::new(nomad.events.subscribe());
    let lines = lines.take_while(|line| line.as_ref().is_ok_and(|(_, line)| line != END));
    let lines = lines.map(|line| line.map(|(_, line)| line));
    let missed = services.last.iter().filter(|(index, _)| *index >= from).map(|(_, line)| line.clone());
    let missed: Vec<_> = std::iter::once("{}\n".to_owned()).chain(missed).map(Ok).collect();
    Body::from_stream(tokio_stream::iter(missed).chain(lines)).into_response()
}
