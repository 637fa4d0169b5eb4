//! The interface over HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, Query, Request, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use parking_lot::Mutex;
use pilot_config::ReadOptions;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::rules::{Conflict, Expected};
use crate::state::{Description, State};

/// An instance with more to say than this has something else to do.
const MOST_BYTES: usize = 1 << 20;
/// Who waits longer asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) state: Arc<Mutex<State>>,
    /// The version of the state; the source and those who wait for a change follow it.
    pub(crate) changed: watch::Sender<u64>,
    pub(crate) token: Option<Arc<str>>,
    pub(crate) read: ReadOptions,
}

impl Api {
    pub(crate) fn router(self) -> Router {
        let instance = routing::put(register).delete(deregister).get(instance);
        let rule = routing::put(write_rule).delete(remove_rule).get(rule);
        Router::new()
            .route("/v1/services", routing::get(services))
            .route("/v1/services/{service}", routing::get(service))
            .route("/v1/services/{service}/instances/{id}", instance)
            .route("/v1/services/{service}/instances/{id}/heartbeat", routing::put(heartbeat))
            .route("/v1/services/{service}/instances/{id}/health", routing::put(health))
            .route("/v1/rules", routing::get(rules))
            .route("/v1/rules/{key}", rule)
            .route("/openapi.yaml", routing::get(|| async { include_str!("../openapi.yaml") }))
            .layer(from_fn_with_state(self.clone(), authorized))
            .layer(DefaultBodyLimit::max(MOST_BYTES))
            .with_state(self)
    }

    /// Does something, and tells whoever follows.
    fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let done = act(&mut state);
        let version = state.version();
        drop(state);
        tell(&self.changed, version);
        done
    }
}

/// Tells of a version, unless a newer one was told meanwhile.
pub(crate) fn tell(changed: &watch::Sender<u64>, version: u64) {
    changed.send_if_modified(|told| {
        let is_newer = version > *told;
        *told = version.max(*told);
        is_newer
    });
}

async fn authorized(Shared(api): Shared<Api>, request: Request, next: Next) -> Response {
    if let Some(token) = &api.token {
        let said = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let said = said.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        // Hashes are compared, so that it cannot be measured how much of a guess is right.
        let digest = |bytes: &[u8]| ring::digest::digest(&ring::digest::SHA256, bytes);
        if digest(said).as_ref() != digest(token.as_bytes()).as_ref() {
            return refusal(StatusCode::UNAUTHORIZED, "send the token as Authorization: Bearer TOKEN");
        }
    }
    next.run(request).await
}

fn refusal(status: StatusCode, why: impl Into<String>) -> Response {
    (status, Json(json!({"error": why.into()}))).into_response()
}

fn found(instance: Option<()>) -> Response {
    match instance {
        Some(()) => StatusCode::NO_CONTENT.into_response(),
        None => refusal(StatusCode::NOT_FOUND, "not registered"),
    }
}

async fn register(
    Shared(api): Shared<Api>,
    Path((service, id)): Path<(String, String)>,
    body: axum::body::Bytes,
) -> Response {
    let description: Description = match serde_json::from_slice(&body) {
        Ok(description) => description,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, error.to_string()),
    };
    // Who registers wrongly should know at once; what others register cannot be asked.
    let issues = check(&service, &id, &description);
    if !issues.is_empty() {
        return refusal(StatusCode::BAD_REQUEST, issues.join("; "));
    }
    let version = api.change(|state| {
        state.put(&service, &id, description);
        state.version()
    });
    Json(json!({"version": version})).into_response()
}

/// What would be wrong with an instance if it were the only one.
fn check(service: &str, id: &str, description: &Description) -> Vec<String> {
    let mut alone = State::default();
    alone.put(service, id, description.clone());
    let options = pilot_source::RegistryOptions::new("memory", "service.mesh");
    let Some(registration) = alone.registration(service) else { return Vec::new() };
    let entries = options.entries(&registration);
    let mut told: Vec<String> =
        entries.issues.into_iter().map(|issue| format!("{}: {}", issue.path, issue.message)).collect();
    if entries.made.iter().all(|made| made.object.is_none()) && told.is_empty() {
        told.push("port: is missing".to_owned());
    }
    told
}

async fn deregister(Shared(api): Shared<Api>, Path((service, id)): Path<(String, String)>) -> Response {
    found(api.change(|state| state.remove(&service, &id)))
}

async fn heartbeat(Shared(api): Shared<Api>, Path((service, id)): Path<(String, String)>) -> Response {
    found(api.change(|state| state.heartbeat(&service, &id)))
}

#[derive(Deserialize)]
struct Health {
    healthy: bool,
}

async fn health(
    Shared(api): Shared<Api>,
    Path((service, id)): Path<(String, String)>,
    body: axum::body::Bytes,
) -> Response {
    // Whatever it says that it is: as for registrations.
    let Health { healthy } = match serde_json::from_slice(&body) {
        Ok(health) => health,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, error.to_string()),
    };
    found(
        api.change(|state| state.describe(&service, &id, |description| description.healthy = Some(healthy))),
    )
}

#[derive(Deserialize)]
struct Watch {
    after: Option<u64>,
    wait: Option<u64>,
}

/// As soon as there is something else than the version that somebody has seen, or they have waited for long enough.
async fn wait(api: &Api, Watch { after, wait }: Watch) {
    let Some(after) = after else { return };
    let patience = wait.map_or(LONGEST_WAIT, Duration::from_secs).min(LONGEST_WAIT);
    let mut changed = api.changed.subscribe();
    // Whoever has seen more than there is has seen it before we began anew.
    let is_other = |version: &u64| *version != after;
    // Whoever waited long enough is told what there is.
    let _over = tokio::time::timeout(patience, changed.wait_for(is_other)).await;
}

/// All services; with `after`, as soon as there is something newer than that version.
async fn services(Shared(api): Shared<Api>, Query(watch): Query<Watch>) -> Response {
    wait(&api, watch).await;
    let state = api.state.lock();
    let services: Value = state.services().map(|name| (name.clone(), json!(state.instances(name)))).collect();
    Json(json!({"version": state.version(), "services": services})).into_response()
}

async fn service(Shared(api): Shared<Api>, Path(service): Path<String>) -> Response {
    let state = api.state.lock();
    let instances = state.instances(&service);
    if instances.is_empty() {
        return refusal(StatusCode::NOT_FOUND, "no such service");
    }
    Json(json!({"version": state.version(), "instances": instances})).into_response()
}

async fn instance(Shared(api): Shared<Api>, Path((service, id)): Path<(String, String)>) -> Response {
    let state = api.state.lock();
    match state.instances(&service).get(&id) {
        Some(description) => Json(json!(description)).into_response(),
        None => refusal(StatusCode::NOT_FOUND, "not registered"),
    }
}

async fn rules(Shared(api): Shared<Api>, Query(watch): Query<Watch>) -> Response {
    wait(&api, watch).await;
    let state = api.state.lock();
    let all: Value = state.rules.keys().map(|(key, version)| (key.clone(), json!(version))).collect();
    Json(json!({"version": state.version(), "rules": all})).into_response()
}

async fn rule(Shared(api): Shared<Api>, Path(key): Path<String>) -> Response {
    let state = api.state.lock();
    match state.rules.get(&key) {
        Some((version, text)) => {
            ([(header::ETAG, format!("\"{version}\""))], text.to_owned()).into_response()
        }
        None => refusal(StatusCode::NOT_FOUND, "no such document"),
    }
}

/// The version that a writer has seen: `If-Match: "7"`, `If-Match: *` for any, or `If-None-Match: *` for none.
fn expected(headers: &HeaderMap) -> Result<Expected, &'static str> {
    if headers.contains_key(header::IF_NONE_MATCH) {
        return Ok(Expected::Nothing);
    }
    let Some(said) = headers.get(header::IF_MATCH) else { return Ok(Expected::Whatever) };
    let said = said.to_str().unwrap_or_default().trim();
    if said == "*" {
        return Ok(Expected::Any);
    }
    let number = said.trim_matches('"').parse().ok();
    number.map(Expected::Version).ok_or("If-Match is not a version such as \"7\"")
}

fn conflict(conflict: &Conflict) -> Response {
    let why = match conflict {
        Conflict::Newer(version) => format!("it has version {version} now"),
        Conflict::Gone => "it is gone".to_owned(),
    };
    refusal(StatusCode::PRECONDITION_FAILED, why)
}

async fn write_rule(
    Shared(api): Shared<Api>,
    Path(key): Path<String>,
    headers: HeaderMap,
    text: String,
) -> Response {
    let expected = match expected(&headers) {
        Ok(expected) => expected,
        Err(why) => return refusal(StatusCode::BAD_REQUEST, why),
    };
    let wrong: Vec<String> = match pilot_config::read(&text, &key, &api.read) {
        Err(issue) => vec![issue.to_string()],
        Ok(reading) if reading.broken.is_empty() => Vec::new(),
        Ok(reading) => reading.issues.iter().map(ToString::to_string).collect(),
    };
    if !wrong.is_empty() {
        return refusal(StatusCode::BAD_REQUEST, wrong.join("; "));
    }
    let written = api.change(|state| {
        let written = state.rules.put(&key, text, expected)?;
        state.note_rule(&key);
        Ok::<u64, Conflict>(written)
    });
    match written {
        Ok(version) => ([(header::ETAG, format!("\"{version}\""))], StatusCode::NO_CONTENT).into_response(),
        Err(why) => conflict(&why),
    }
}

async fn remove_rule(Shared(api): Shared<Api>, Path(key): Path<String>, headers: HeaderMap) -> Response {
    let expected = match expected(&headers) {
        Ok(expected) => expected,
        Err(why) => return refusal(StatusCode::BAD_REQUEST, why),
    };
    let removed = api.change(|state| {
        let removed = state.rules.remove(&key, expected)?;
        if removed.is_some() {
            state.note_rule(&key);
        }
        Ok::<Option<()>, Conflict>(removed)
    });
    match removed {
        Ok(removed) => found(removed),
        Err(why) => conflict(&why),
    }
}
