use std::future::Future;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// A listening socket and what is served there.
pub struct HttpServer {
    pub listener: TcpListener,
    pub router: Router,
    pub protocols: Protocols,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocols {
    /// Pages. A client that says nothing does not keep its connection.
    Http1,
    /// gRPC too, without TLS.
    Http1And2,
}

/// Who sends half a request does not keep a connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// What waits for its turn is not served faster by letting more in.
const MAX_CONNECTIONS: usize = 1024;
/// Pages are small; what takes longer at the end is cut off.
const GRACE: Duration = Duration::from_secs(2);

/// Serves pages without TLS until `stop`.
pub async fn serve_http(server: HttpServer, stop: impl Future<Output = ()>) {
    let HttpServer { listener, router, protocols } = server;
    let router = router.fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found\n") });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    if protocols == Protocols::Http1 {
        builder = builder.http1_only();
    }
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HEADER_TIMEOUT);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let may_accept = connections.len() < MAX_CONNECTIONS;
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept(), if may_accept => {
                let stream = match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        pause_after(&error).await;
                        continue;
                    }
                };
                let service = TowerToHyperService::new(router.clone());
                let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
                let connection = graceful.watch(connection);
                connections.spawn(async move {
                    // A client that breaks off is its own affair.
                    let _broken = connection.await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
    // What is not done by then is dropped with the set.
    let _late = tokio::time::timeout(GRACE, graceful.shutdown()).await;
}

/// Without files or memory for a connection, trying again at once would only burn what is left.
async fn pause_after(error: &io::Error) {
    tracing::warn!("cannot accept a connection: {error}");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
