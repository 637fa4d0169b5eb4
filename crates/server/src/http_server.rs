use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tower::ServiceExt as _;

use crate::door::Door;
use crate::pages::NOT_FOUND;
use crate::prompt::Prompt;
use crate::tls::{self, Connection, TlsConfig, WAITING};

/// A listening socket and what is served there.
pub struct HttpServer {
    pub listener: TcpListener,
    pub router: Router,
    pub protocols: Protocols,
}

/// Where connections come from.
trait Connections {
    type Connection: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn next(&mut self) -> impl Future<Output = Self::Connection> + Send;

    /// Who is at the other end, for pages that only some may use. Those are not served with TLS.
    fn peer(_: &Self::Connection) -> Option<SocketAddr> {
        None
    }
}

impl Connections for Door {
    type Connection = Prompt<TcpStream>;

    async fn next(&mut self) -> Prompt<TcpStream> {
        Prompt::new(self.next().await.0, SAID)
    }

    fn peer(stream: &Prompt<TcpStream>) -> Option<SocketAddr> {
        stream.stream().peer_addr().ok()
    }
}

impl Connections for mpsc::Receiver<io::Result<Connection>> {
    type Connection = Connection;

    async fn next(&mut self) -> Connection {
        loop {
            match self.recv().await {
                Some(Ok(connection)) => return connection,
                Some(Err(_)) => {}
                // Who takes them ends only after us.
                None => std::future::pending().await,
            }
        }
    }
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
/// Enough to tell that there is somebody.
const SAID: usize = 1;
/// Pages that wait for their turn are not served faster by letting more in.
const MAX_PAGES: usize = 1024;
/// Pages are small; what takes longer at the end is cut off.
const GRACE: Duration = Duration::from_secs(2);

/// Serves pages without TLS until `stop`.
pub async fn serve_http(server: HttpServer, stop: impl Future<Output = ()>) {
    let HttpServer { listener, router, protocols } = server;
    serve(Door::of_pages(listener), router, protocols, stop).await;
}

/// Serves pages with TLS until `stop`.
pub async fn serve_https(server: HttpServer, tls: TlsConfig, stop: impl Future<Output = ()>) {
    let HttpServer { listener, router, protocols } = server;
    let (accepted, connections) = mpsc::channel(WAITING);
    let mut accepting = JoinSet::new();
    accepting.spawn(tls::accept(listener, tls, accepted));
    serve(connections, router, protocols, stop).await;
    accepting.shutdown().await;
}

async fn serve<C: Connections>(
    mut incoming: C,
    router: Router,
    protocols: Protocols,
    stop: impl Future<Output = ()>,
) {
    let router = router.fallback(|| async { NOT_FOUND });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    if protocols == Protocols::Http1 {
        builder = builder.http1_only();
    }
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(HEADER_TIMEOUT);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    let most = match protocols {
        Protocols::Http1 => MAX_PAGES,
        // Proxies stay, and each has one.
        Protocols::Http1And2 => usize::MAX,
    };
    loop {
        let may_accept = connections.len() < most;
        tokio::select! {
            () = &mut stop => break,
            stream = incoming.next(), if may_accept => {
                let service = serving(router.clone(), C::peer(&stream));
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

/// Serves a connection, and says who is at its other end.
fn serving(
    router: Router,
    peer: Option<SocketAddr>,
) -> impl Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send> + Send {
    service_fn(move |mut request: Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        router.clone().oneshot(request)
    })
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;

    use super::{HttpServer, MAX_PAGES, Protocols, serve_http};

    #[tokio::test]
    async fn where_proxies_are_served_too_pages_have_room_beside_them() {
        crate::open_all_files().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/ready", get(|| async { "yes" }));
        let mut serving = JoinSet::new();
        let server = HttpServer { listener, router, protocols: Protocols::Http1And2 };
        serving.spawn(serve_http(server, pending()));
        let mut proxies = Vec::new();
        for _ in 0..MAX_PAGES + 10 {
            let mut proxy = TcpStream::connect(address).await.unwrap();
            proxy.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
            proxies.push(proxy);
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        probe.write_all(b"GET /ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let read = probe.read_to_string(&mut answer);
        tokio::time::timeout(std::time::Duration::from_secs(60), read).await.expect("it is served").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("yes"), "{answer}");
    }
}
