//! What each source has, how fresh it is, and the services of registries.

use std::collections::BTreeMap;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use pilot_base::{Labels, Millis};
use pilot_model::{Config, ServiceEntry, WorkloadEntry};
use serde_json::{Value, json};

use super::{Pages, written};
use crate::sources::{RegistryView, SourceState};

type Asked = Query<Vec<(String, String)>>;

/// Every source: what it has, whether it can be asked, when it last told something and how long that took.
pub(super) async fn sources(State(pages): State<Pages>, Query(query): Asked) -> Response {
    let Some(view) = pages.engine.registry().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let counts = counts(&view);
    let now = pages.clock.now();
    let list: Value = view.sources.iter().map(|source| shown(source, &counts, now)).collect();
    written(&list, &query)
}

/// The services of all registries; `?source=` shows those of one.
pub(super) async fn services(State(pages): State<Pages>, Query(query): Asked) -> Response {
    let Some(view) = pages.engine.registry().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let list: Value =
        view.entries.iter().filter(|entry| is_asked(entry, &query)).map(|entry| service(entry)).collect();
    written(&list, &query)
}

/// Their endpoints; `?host=` shows those of one service.
pub(super) async fn endpoints(State(pages): State<Pages>, Query(query): Asked) -> Response {
    let Some(view) = pages.engine.registry().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let asked = view.entries.iter().filter(|entry| is_asked(entry, &query));
    let list: Value = asked
        .flat_map(|entry| entry.spec.endpoints.iter().map(move |endpoint| listed(entry, endpoint)))
        .collect();
    written(&list, &query)
}

fn is_asked(entry: &Config<ServiceEntry>, query: &[(String, String)]) -> bool {
    query.iter().all(|(key, value)| match key.as_str() {
        "source" => source_of(entry) == value,
        "host" => entry.spec.hosts.iter().any(|host| host.as_str() == value),
        _ => true,
    })
}

/// People are a source too.
fn source_of(entry: &Config<ServiceEntry>) -> &str {
    entry.spec.registry.as_ref().map_or("ServiceEntry", |registry| registry.name.as_str())
}

/// Services and endpoints by source.
fn counts(view: &RegistryView) -> BTreeMap<&str, (usize, usize)> {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for entry in &view.entries {
        let (services, endpoints) = counts.entry(source_of(entry)).or_default();
        *services += entry.spec.hosts.len();
        *endpoints += entry.spec.endpoints.len();
    }
    counts
}

fn shown(source: &SourceState, counts: &BTreeMap<&str, (usize, usize)>, now: Millis) -> Value {
    let SourceState { name, is_complete, trouble, told_at, changes, lag, rules } = source;
    let (services, endpoints) = counts.get(name.as_str()).copied().unwrap_or_default();
    json!({
        "name": name.as_str(),
        "complete": is_complete,
        "trouble": trouble,
        "services": services,
        "endpoints": endpoints,
        "rules": rules,
        "changes": changes,
        "lastToldSecondsAgo": now.saturating_sub(*told_at) / 1000,
        "lagMicros": lag,
    })
}

fn service(entry: &Config<ServiceEntry>) -> Value {
    let ports = entry
        .spec
        .ports
        .iter()
        .map(|port| json!({"number": port.number, "protocol": port.protocol.to_string()}));
    json!({
        "source": source_of(entry),
        "namespace": entry.id.namespace.as_str(),
        "name": entry.id.name.as_str(),
        "hosts": entry.spec.hosts.iter().map(pilot_base::Host::as_str).collect::<Vec<_>>(),
        "ports": ports.collect::<Value>(),
        "endpoints": entry.spec.endpoints.len(),
    })
}

fn listed(entry: &Config<ServiceEntry>, endpoint: &WorkloadEntry) -> Value {
    let WorkloadEntry { address, ports, labels, network, locality, weight, service_account, is_healthy: _ } =
        endpoint;
    json!({
        "source": source_of(entry),
        "host": entry.spec.hosts.first().map(pilot_base::Host::as_str),
        "address": address.as_str(),
        "ports": ports.iter().map(|(name, port)| (name.to_string(), json!(port))).collect::<Value>(),
        "labels": object(labels),
        "network": network.as_str(),
        "locality": locality.as_str(),
        "weight": weight,
        "serviceAccount": service_account.as_str(),
    })
}

fn object(labels: &Labels) -> Value {
    labels.iter().map(|(key, value)| (key.to_string(), json!(value.as_str()))).collect()
}
