mod bill;
mod door;
pub(crate) mod dump;
mod held;
mod index;
mod propagation;
mod registry;
mod syncz;

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use pilot_base::{Clock, Issue};
use pilot_source::{ClusterState, ClusterStates, Doubts};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::debug::DebugDoor;
use crate::debug_stream::DebugStreams;
use crate::engine::EngineHandle;
use crate::metrics::Metrics;

/// What runs, for people and for tools that compare versions.
#[derive(Clone, Debug)]
pub struct BuildInfo {
    pub version: &'static str,
    pub revision: &'static str,
    pub status: &'static str,
}

/// The pages that people, probes and scrapers read.
#[derive(Clone)]
pub struct Pages {
    pub engine: EngineHandle,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    pub build: BuildInfo,
    /// Is everything there that proxies need?
    pub serving: watch::Receiver<bool>,
    /// The clusters that are followed.
    pub clusters: ClusterStates,
    /// What they hold back.
    pub doubts: Doubts,
    /// Who may see the pages for debugging.
    pub door: Arc<DebugDoor>,
}

/// What programs look for where there is no page.
pub(crate) const NOT_FOUND: (StatusCode, &str) = (StatusCode::NOT_FOUND, "404 page not found\n");

impl Pages {
    /// What kubelets ask, and the pages for debugging: on the plain HTTP port.
    pub fn main(self) -> Router {
        Router::new().route("/ready", routing::get(ready)).merge(self.debug()).with_state(self)
    }

    /// Only whether we are ready, for the port that API servers call.
    pub fn readiness(self) -> Router {
        Router::new().route("/ready", routing::get(ready)).with_state(self)
    }

    /// What is scraped, and the pages for debugging: on the monitoring port.
    pub fn monitoring(self) -> Router {
        Router::new()
            .route("/metrics", routing::get(metrics))
            .route("/version", routing::get(version))
            .merge(self.debug())
            .with_state(self)
    }

    /// The same pages for those who ask over xDS. `id` tells which of several servers this is.
    pub fn streams(&self, id: String) -> DebugStreams {
        let pages = debug().fallback(|| async { NOT_FOUND }).with_state(self.clone());
        DebugStreams {
            door: Arc::clone(&self.door),
            pages,
            build: self.build.clone(),
            id,
            clock: Arc::clone(&self.clock),
        }
    }

    /// What there is may be known to everybody; what it says, not.
    fn debug(&self) -> Router<Self> {
        if !self.door.options.on_http {
            return Router::new();
        }
        let guarded = debug().route_layer(from_fn_with_state(self.clone(), door::let_in));
        guarded.route("/debug", routing::get(index::page))
    }

    /// Both on one port, for who has only one.
    pub fn all(self) -> Router {
        Router::new()
            .route("/metrics", routing::get(metrics))
            .route("/version", routing::get(version))
            .with_state(self.clone())
            .merge(self.main())
    }
}

/// The pages for debugging, all of which `index` lists.
fn debug() -> Router<Pages> {
    Router::new()
        .route("/debug/list", routing::get(index::list))
        .route("/debug/bill", routing::get(bill::page))
        .route("/debug/clusterz", routing::get(clusters))
        .route("/debug/config_dump", routing::get(dump::config))
        .route("/debug/ecdsz", routing::get(dump::extensions))
        .route("/debug/edsz", routing::get(dump::endpoints))
        .route("/debug/held", routing::get(held::page).post(held::confirm))
        .route("/debug/issues", routing::get(issues))
        .route("/debug/ndsz", routing::get(dump::names))
        .route("/debug/propagation", routing::get(propagation::by_name).post(propagation::as_written))
        .route("/debug/registry/endpoints", routing::get(registry::endpoints))
        .route("/debug/registry/services", routing::get(registry::services))
        .route("/debug/registry/sources", routing::get(registry::sources))
        .route("/debug/syncz", routing::get(syncz::page))
}

async fn ready(State(pages): State<Pages>) -> StatusCode {
    if *pages.serving.borrow() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn version(State(pages): State<Pages>) -> String {
    let BuildInfo { version, revision, status } = pages.build;
    format!("{version}-{revision}-{status}")
}

async fn metrics(State(pages): State<Pages>) -> Response {
    pages.metrics.clients.note_standings(pages.engine.standings(), pages.clock.now());
    let text = pages.metrics.text(pages.clock.now() / 1000);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Everything that is wrong, as data. `?pretty` is for people.
async fn issues(State(pages): State<Pages>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let list: Value = pages.engine.issues().iter().map(issue).collect();
    written(&list, &query)
}

/// Which clusters are followed, and how far they are known, in istiod's form.
async fn clusters(State(pages): State<Pages>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let one = |cluster: &ClusterState| {
        let ClusterState { id, secret, sync } = cluster;
        json!({"id": id.as_str(), "secretName": secret, "syncStatus": sync.as_str()})
    };
    let list: Value = pages.clusters.borrow().iter().map(one).collect();
    written(&list, &query)
}

/// Data as text, for people if they ask for it.
fn written(data: &Value, query: &[(String, String)]) -> Response {
    let pretty = query.iter().any(|(key, _)| key == "pretty");
    let text = if pretty { format!("{data:#}") } else { data.to_string() };
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

fn issue(issue: &Issue) -> Value {
    let Issue { severity, object, path, place, message } = issue;
    json!({
        "severity": severity.to_string(),
        "kind": object.kind.as_str(),
        "namespace": object.namespace.as_str(),
        "name": object.name.as_str(),
        "path": path,
        "place": place,
        "message": message,
    })
}
