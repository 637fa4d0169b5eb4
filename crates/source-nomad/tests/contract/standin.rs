//! As much of Nomad's HTTP interface as the adapter asks for, written from its public description.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use parking_lot::Mutex;
use pilot_source::contract::Registered;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::BroadcastStream;

#[derive(Clone)]
struct Nomad {
    services: Arc<Mutex<Services>>,
    events: broadcast::Sender<String>,
}

#[derive(Default)]
struct Services {
    by_name: BTreeMap<String, BTreeMap<String, Value>>,
    index: u64,
}

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
            .with_state(self.nomad.clone());
        self.serving.spawn(axum::serve(listener, router).into_future());
    }

    pub(crate) async fn stop_and_start(&mut self) {
        self.serving.shutdown().await;
        // Connections outlive who accepted them; streams that stand are over.
        let _heard = self.nomad.events.send(END.to_owned());
        self.nomad.events = broadcast::channel(100_000).0;
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.serve(listener);
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
        let line = json!({"Index": services.index, "Events": [event]});
        // Nobody may listen.
        let _heard = self.nomad.events.send(format!("{line}\n"));
    }
}

fn answer(services: &Services, body: &Value) -> Response {
    ([("x-nomad-index", services.index.max(1).to_string())], body.to_string()).into_response()
}

async fn services(State(nomad): State<Nomad>) -> Response {
    let services = nomad.services.lock();
    let named: Value = services.by_name.keys().map(|name| json!({"ServiceName": name, "Tags": []})).collect();
    answer(&services, &json!([{"Namespace": "default", "Services": named}]))
}

async fn service(State(nomad): State<Nomad>, Path(name): Path<String>) -> Response {
    let services = nomad.services.lock();
    let instances: Value =
        services.by_name.get(&name).into_iter().flat_map(BTreeMap::values).cloned().collect();
    answer(&services, &instances)
}

async fn events(State(nomad): State<Nomad>) -> Response {
    let lines = BroadcastStream::new(nomad.events.subscribe());
    let lines = lines.take_while(|line| line.as_ref().is_ok_and(|line| line != END));
    let alive = tokio_stream::once(Ok("{}\n".to_owned()));
    Body::from_stream(alive.chain(lines)).into_response()
}
