//! What sources hold back because it cannot be true, and the word of an operator that it is.

use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use pilot_source::Held;
use serde_json::{Value, json};

use super::{Pages, written};
use crate::debug::is_local;

/// Everything that is held back. `?pretty` is for people.
pub(super) async fn page(State(pages): State<Pages>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let one = |held: Held| {
        let Held { place, what, left } = held;
        json!({"place": place.as_str(), "what": what, "secondsLeft": left.as_secs()})
    };
    let list: Value = pages.doubts.held().into_iter().map(one).collect();
    written(&list, &query)
}

/// Says that it is true: of `?place=`, or of all. Only who is on this machine may say so, as by `kubectl exec` and
/// `kubectl port-forward`: it takes endpoints away from proxies.
pub(super) async fn confirm(
    State(pages): State<Pages>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    if !is_local(peer.map(|Extension(ConnectInfo(peer))| peer)) {
        return (StatusCode::FORBIDDEN, "only requests from this machine may confirm anything\n")
            .into_response();
    }
    let place = query.iter().find(|(key, _)| key == "place").map(|(_, value)| value.as_str());
    let confirmed = pages.doubts.confirm(place);
    for place in &confirmed {
        tracing::warn!("{place}: an operator says that what is gone is gone");
    }
    let names: Vec<&str> = confirmed.iter().map(pilot_base::Name::as_str).collect();
    Json(json!({ "confirmed": names })).into_response()
}
