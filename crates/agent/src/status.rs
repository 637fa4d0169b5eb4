//! What the agent answers on its own port.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::ready::Readiness;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    /// Somebody else has the port.
    #[error(
        "cannot listen on status port {port}; another one can be set as statusPort in PROXY_CONFIG, 0 for none"
    )]
    Bind { port: u16, source: io::Error },
}

#[derive(Clone)]
struct Shared {
    readiness: Arc<Readiness>,
    quit: mpsc::Sender<()>,
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

/// Serves until it is dropped. `quit` hears of requests to end.
pub(crate) async fn serve(
    listener: TcpListener,
    readiness: Arc<Readiness>,
    quit: mpsc::Sender<()>,
) -> io::Result<()> {
    let router = Router::new()
        .route("/healthz/ready", get(ready))
        .route("/quitquitquit", post(quit_now))
        .with_state(Shared { readiness, quit });
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await
}

async fn ready(State(shared): State<Shared>) -> (StatusCode, String) {
    match shared.readiness.check().await {
        Ok(()) => (StatusCode::OK, String::new()),
        Err(reason) => {
            tracing::warn!(%reason, "proxy is not ready");
            (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n"))
        }
    }
}

async fn quit_now(
    State(shared): State<Shared>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
) -> (StatusCode, &'static str) {
    if !peer.ip().to_canonical().is_loopback() {
        return (StatusCode::FORBIDDEN, "only requests from localhost are allowed\n");
    }
    // A full channel holds a request to end already.
    let _ = shared.quit.try_send(());
    (StatusCode::OK, "OK")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use axum::Router;
    use axum::http::Method;
    use axum::routing::get;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::task::JoinSet;

    use super::{bind, serve};
    use crate::http_client::Question;
    use crate::ready::Readiness;
    use crate::ready::tests::READY;

    async fn ask(method: Method, port: u16, path: &str) -> (u16, String) {
        let url = format!("http://localhost:{port}{path}");
        let question = Question { method, url, body: String::new(), timeout: Duration::from_secs(60) };
        let answer = question.ask().await.unwrap();
        (answer.status.as_u16(), answer.body)
    }

    #[tokio::test]
    async fn readiness_follows_envoy() {
        let mut tasks = JoinSet::new();
        let admin = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let readiness = Arc::new(Readiness::new(admin.local_addr().unwrap().port()));
        let listener = bind(0).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (quit, mut quits) = mpsc::channel(1);
        tasks.spawn(serve(listener, Arc::clone(&readiness), quit));
        let router = Router::new().route("/stats", get(|| async { READY }));
        let envoy = tasks.spawn(async move { axum::serve(admin, router).await });

        assert_eq!(ask(Method::GET, port, "/healthz/ready").await, (200, String::new()));
        envoy.abort();
        // It was ready once, so nobody is asked any more.
        assert_eq!(ask(Method::GET, port, "/healthz/ready").await.0, 200);
        readiness.envoy_started();
        // Whether a connection that was accepted before is cut or refused is all the same.
        while ask(Method::GET, port, "/healthz/ready").await.0 != 503 {}
        let (status, reason) = ask(Method::GET, port, "/healthz/ready").await;
        assert!(status == 503 && reason.starts_with("Envoy does not tell its state"), "{status} {reason}");
        readiness.terminating();
        let told = (503, "the proxy is terminating\n".to_owned());
        assert_eq!(ask(Method::GET, port, "/healthz/ready").await, told);

        assert_eq!(ask(Method::GET, port, "/quitquitquit").await.0, 405);
        assert!(quits.try_recv().is_err());
        assert_eq!(ask(Method::POST, port, "/quitquitquit").await, (200, "OK".to_owned()));
        assert_eq!(quits.try_recv(), Ok(()));
    }

    #[tokio::test]
    async fn a_taken_port_is_told_with_what_to_do() {
        let taken = bind(0).await.unwrap();
        let error = bind(taken.local_addr().unwrap().port()).await.unwrap_err();
        assert!(error.to_string().contains("statusPort in PROXY_CONFIG"), "{error}");
    }
}
