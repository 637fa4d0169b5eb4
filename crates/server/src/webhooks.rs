//! What an API server asks before it keeps an object.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use pilot_webhook::review;

use crate::metrics::Metrics;

/// An object has at most 1.5 MB, since etcd keeps no more; a question may hold it twice, before and after.
const MAX_QUESTION: usize = 8 << 20;

/// `/validate`, and everything below it: who installs a webhook may tell us more in the path.
pub fn webhooks(metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/validate", routing::post(validate))
        .route("/validate/{*more}", routing::post(validate))
        .with_state(metrics)
}

async fn validate(State(metrics): State<Arc<Metrics>>, headers: HeaderMap, body: Body) -> Response {
    let refuse = |status: StatusCode, why: &'static str| {
        metrics.validation.http_error(status.as_u16());
        (status, why).into_response()
    };
    let Ok(body) = to_bytes(body, MAX_QUESTION).await else {
        return refuse(StatusCode::BAD_REQUEST, "the body is too long, or broke off\n");
    };
    if body.is_empty() {
        return refuse(StatusCode::BAD_REQUEST, "no body found\n");
    }
    if headers.get(header::CONTENT_TYPE).is_none_or(|kind| kind != "application/json") {
        let why = "invalid Content-Type, want `application/json`\n";
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
    }
    let answer = review(&body);
    metrics.validation.count(&answer.outcome);
    ([(header::CONTENT_TYPE, "application/json")], answer.json).into_response()
}
