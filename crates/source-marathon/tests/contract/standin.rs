//! As much of Marathon's REST interface as the adapter asks for, written from its public description.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use parking_lot::Mutex;
use pilot_source::contract::{Condition, Registered, garbled};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::BroadcastStream;

/// Tasks by app.
type Apps = BTreeMap<String, BTreeMap<String, (Registered, Condition)>>;

#[derive(Clone)]
struct Marathon {
    apps: Arc<Mutex<Apps>>,
    /// An app that cannot be asked for.
    refused: Arc<Mutex<String>>,
    events: broadcast::Sender<String>,
}

/// Ends streams.
const END: &str = "end";

pub(crate) struct Standin {
    pub(crate) address: SocketAddr,
    /// How often it is asked for everything.
    pub(crate) anew: Duration,
    marathon: Marathon,
    serving: JoinSet<std::io::Result<()>>,
}

impl Standin {
    pub(crate) async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let marathon =
            Marathon { apps: Arc::default(), refused: Arc::default(), events: broadcast::channel(100_000).0 };
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut standin = Self { address, anew: Duration::from_secs(3), marathon, serving: JoinSet::new() };
        standin.serve(listener);
        standin
    }

    fn serve(&mut self, listener: TcpListener) {
        let router = Router::new()
            .route("/v2/apps", routing::get(apps))
            .route("/v2/apps/{*id}", routing::get(app))
            .route("/v2/events", routing::get(events))
            .route("/ping", routing::get(|| async { "pong" }))
            .layer(from_fn(authorized))
            .with_state(self.marathon.clone());
        self.serving.spawn(axum::serve(listener, router).into_future());
    }

    pub(crate) async fn stop_and_start(&mut self) {
        self.serving.shutdown().await;
        // Connections outlive who accepted them; streams that stand are over.
        let _heard = self.marathon.events.send(END.to_owned());
        self.marathon.events = broadcast::channel(100_000).0;
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.serve(listener);
    }

    pub(crate) fn refuse(&self, app: &str) {
        app.clone_into(&mut self.marathon.refused.lock());
    }

    pub(crate) fn put(&self, app: &str, instance: &Registered, condition: Condition) {
        let mut apps = self.marathon.apps.lock();
        apps.entry(app.to_owned()).or_default().insert(instance.id.clone(), (instance.clone(), condition));
        self.tell("status_update_event", app);
    }

    pub(crate) fn remove(&self, app: &str) {
        self.marathon.apps.lock().remove(app).unwrap();
        self.tell("app_terminated_event", app);
    }

    fn tell(&self, name: &str, app: &str) {
        let data = json!({"appId": format!("/{app}"), "eventType": name});
        // Nobody may listen.
        let _heard = self.marathon.events.send(format!("event: {name}\r\ndata: {data}\r\n\r\n"));
    }
}

/// Of who has this nobody believes that he may ask.
pub(crate) const WRONG: &str = "wr0ng-t0ken";

async fn authorized(request: Request, next: Next) -> Response {
    match request.headers().get("authorization") {
        Some(said) if *said == format!("token={WRONG}") => StatusCode::UNAUTHORIZED.into_response(),
        _ => next.run(request).await,
    }
}

fn shown(name: &str, tasks: &BTreeMap<String, (Registered, Condition)>) -> Value {
    let task = |(instance, condition): &(Registered, Condition)| {
        json!({"id": instance.id, "host": instance.address, "state": "TASK_RUNNING", "ports": [instance.port],
            "healthCheckResults": [{"alive": *condition == Condition::Well}]})
    };
    // Labels belong to an app, and all its tasks have them.
    let labels =
        tasks.values().next_back().map(|(instance, _)| instance.metadata.clone()).unwrap_or_default();
    json!({"id": format!("/{name}"), "labels": labels, "tasks": tasks.values().map(task).collect::<Value>(),
        "healthChecks": [{"protocol": "MESOS_HTTP"}]})
}

async fn apps(State(marathon): State<Marathon>) -> Response {
    let apps = marathon.apps.lock();
    let all: Value = apps.iter().map(|(name, tasks)| shown(name, tasks)).collect();
    garbled(&json!({"apps": all}).to_string()).into_response()
}

async fn app(State(marathon): State<Marathon>, Path(name): Path<String>) -> Response {
    if *marathon.refused.lock() == name {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let apps = marathon.apps.lock();
    match apps.get(&name) {
        Some(tasks) => garbled(&json!({"app": shown(&name, tasks)}).to_string()).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn events(State(marathon): State<Marathon>) -> Response {
    let lines = BroadcastStream::new(marathon.events.subscribe());
    let lines = lines.take_while(|line| line.as_ref().is_ok_and(|line| line != END));
    let hello = tokio_stream::once(Ok("event: event_stream_attached\r\ndata: {}\r\n\r\n".to_owned()));
    Body::from_stream(hello.chain(lines)).into_response()
}
