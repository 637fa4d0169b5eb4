//! What each source has, how fresh it is, and the services of registries.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use pilot_base::{Labels, Millis, Name};
use pilot_model::{Config, ServiceEntry, WorkloadEntry};
use serde_json::{Value, json};

use super::{Pages, written};
use crate::sources::SourceState;

type Asked = Query<Vec<(String, String)>>;

/// Every source: what it has, whether it can be asked, when it was last heard of, when it last told something and how long
/// that took. `?source=` shows one.
pub(super) async fn sources(State(pages): State<Pages>, Query(query): Asked) -> Response {
    let Some(view) = pages.engine.registry().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let now = pages.clock.now();
    let is_asked = |source: &&SourceState| {
        query.iter().all(|(key, value)| key != "source" || source.name.as_str() == value)
    };
    let list: Value = view.sources.iter().filter(is_asked).map(|source| shown(source, now)).collect();
    written(&list, &query)
}

/// The services of all registries, and those that people wrote as ServiceEntries; `?source=` shows those of one.
pub(super) async fn services(State(pages): State<Pages>, Query(query): Asked) -> Response {
    let Some(view) = pages.engine.registry().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let list: Value = view.entries.iter().filter(|told| is_asked(told, &query)).map(service).collect();
    written(&list, &query)
}

/// Their endpoints; `?host=` shows those of one service.
pub(super) async fn endpoints(State(pages): State<Pages>, Query(query): Asked) -> Response {
    let Some(view) = pages.engine.registry().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let asked = view.entries.iter().filter(|told| is_asked(told, &query));
    let list: Value =
        asked.flat_map(|told| told.1.spec.endpoints.iter().map(move |one| listed(told, one))).collect();
    written(&list, &query)
}

/// An entry, and who told it.
type Told = (Name, Arc<Config<ServiceEntry>>);

fn is_asked((source, entry): &Told, query: &[(String, String)]) -> bool {
    query.iter().all(|(key, value)| match key.as_str() {
        "source" => source.as_str() == value,
        "host" => entry.spec.hosts.iter().any(|host| host.as_str() == value),
        _ => true,
    })
}

fn shown(source: &SourceState, now: Millis) -> Value {
    let SourceState { name, is_complete, trouble, warning, told_at, contact, changes, lag, rules, amount } =
        source;
    let heard = contact.as_ref().and_then(|contact| contact.age());
    json!({
        "name": name.as_str(),
        "complete": is_complete,
        "trouble": trouble,
        "warning": warning,
        "services": amount.services,
        "endpoints": amount.endpoints,
        "rules": rules,
        "changes": changes,
        "lastHeardSecondsAgo": heard.map(|age| age.as_secs()),
        "lastToldSecondsAgo": told_at.map(|at| now.saturating_sub(at) / 1000),
        "lagMicros": lag,
    })
}

fn service((source, entry): &Told) -> Value {
    let ports = entry
        .spec
        .ports
        .iter()
        .map(|port| json!({"number": port.number, "protocol": port.protocol.to_string()}));
    json!({
        "source": source.as_str(),
        "namespace": entry.id.namespace.as_str(),
        "name": entry.id.name.as_str(),
        "hosts": entry.spec.hosts.iter().map(pilot_base::Host::as_str).collect::<Vec<_>>(),
        "ports": ports.collect::<Value>(),
        "endpoints": entry.spec.endpoints.len(),
    })
}

fn listed((source, entry): &Told, endpoint: &WorkloadEntry) -> Value {
    let WorkloadEntry { address, ports, labels, network, locality, weight, service_account, is_healthy: _ } =
        endpoint;
    json!({
        "source": source.as_str(),
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
