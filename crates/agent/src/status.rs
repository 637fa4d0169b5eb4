//! What the agent answers on its own port.

mod app_probes;
mod formats;
mod grpc_health;
mod gzip;
mod scrape;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::metrics::Metrics;
use crate::name_table::NameTable;
use crate::ready::Readiness;
pub(crate) use app_probes::{AppProbes, speak_from};
pub(crate) use grpc_health::check as grpc_health;
pub(crate) use scrape::Scrape;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    /// Somebody else has the port.
    #[error(
        "cannot listen on status port {port}; another one can be set as statusPort in PROXY_CONFIG, 0 for none"
    )]
    Bind { port: u16, source: io::Error },
}

/// What the agent is told to do over its port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// End at once, without draining.
    Quit,
    /// Drain, and end at once when told to later.
    Drain,
}

/// What there is to tell.
#[derive(Clone)]
pub(crate) struct Status {
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) orders: mpsc::Sender<Order>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) metrics_for: Audience,
    pub(crate) scrape: Scrape,
    pub(crate) probes: AppProbes,
    /// The last name table, as it came.
    pub(crate) names: watch::Receiver<Option<Bytes>>,
    pub(crate) port: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Audience {
    Everybody,
    Localhost,
}

/// On all addresses of both families where the machine has both.
pub(crate) async fn bind(port: u16) -> Result<TcpListener, StatusError> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(StatusError::Bind { port, source: error })
        }
        Err(_) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            .await
            .map_err(|source| StatusError::Bind { port, source }),
    }
}

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TcpListener, status: Status) -> io::Result<()> {
    let router = Router::new()
        .route("/healthz/ready", any(ready))
        .route("/metrics", any(stats))
        .route("/stats/prometheus", any(stats))
        .route("/quitquitquit", post(quit_now))
        .route("/drain", post(drain))
        .route("/app-health/{*probe}", any(app_probe))
        .route("/app-lifecycle/{*probe}", any(app_probe))
        .route("/debug/ndsz", any(ndsz))
        .with_state(status);
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await
}

async fn ready(State(status): State<Status>) -> (StatusCode, String) {
    match status.readiness.check().await {
        Ok(first) => {
            if let Some(took) = first {
                tracing::info!(millis = took.as_millis(), "proxy is ready");
                status.metrics.startup_duration.set(took.as_secs_f64());
            }
            (StatusCode::OK, String::new())
        }
        Err(reason) => {
            tracing::warn!(%reason, "proxy is not ready");
            (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
        }
    }
}

async fn stats(
    State(status): State<Status>,
    peer: ConnectInfo<SocketAddr>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    if status.metrics_for == Audience::Localhost && !is_local(peer) {
        return only_local();
    }
    let asked = scrape::Asked { query: query.as_deref(), headers: &headers };
    let (format, text) = status.scrape.merged(&asked, &status.metrics).await;
    gzip::answer(&headers, format, text)
}

async fn app_probe(State(status): State<Status>, uri: Uri, headers: HeaderMap) -> Response {
    let asked = app_probes::Asked { path: uri.path(), headers: &headers, status_port: status.port };
    let verdict = status.probes.ask(&asked).await;
    (verdict.status, verdict.body).into_response()
}

async fn ndsz(State(status): State<Status>, peer: ConnectInfo<SocketAddr>) -> Response {
    if !is_local(peer) {
        return only_local();
    }
    let json = [(CONTENT_TYPE, "application/json")];
    let names = status.names.borrow().clone();
    match names.map(NameTable::decode) {
        None => (StatusCode::NOT_FOUND, json, "{}".to_owned()).into_response(),
        Some(Ok(table)) => (json, table.to_json().to_string()).into_response(),
        Some(Err(error)) => {
            let reason = format!("the name table cannot be read: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response()
        }
    }
}

async fn quit_now(State(status): State<Status>, peer: ConnectInfo<SocketAddr>) -> Response {
    order(&status, peer, Order::Quit)
}

async fn drain(State(status): State<Status>, peer: ConnectInfo<SocketAddr>) -> Response {
    order(&status, peer, Order::Drain)
}

fn order(status: &Status, peer: ConnectInfo<SocketAddr>, order: Order) -> Response {
    if !is_local(peer) {
        return only_local();
    }
    // A full channel holds enough orders already.
    let _ = status.orders.try_send(order);
    "OK".into_response()
}

fn is_local(ConnectInfo(peer): ConnectInfo<SocketAddr>) -> bool {
    peer.ip().to_canonical().is_loopback()
}

fn only_local() -> Response {
    (StatusCode::FORBIDDEN, "Only requests from localhost are allowed\n").into_response()
}
