//! Servers that tell who they are and what they were asked.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::certificates::Certificates;
use crate::scenario::Backend;

/// Servers of one scenario. They end with it.
#[derive(Default)]
pub struct Backends {
    tasks: JoinSet<()>,
    counts: BTreeMap<String, Arc<AtomicU32>>,
}

struct Server {
    name: String,
    backend: Backend,
    tls: Option<TlsAcceptor>,
    requests: Arc<AtomicU32>,
}

impl Backends {
    pub async fn start(
        backends: &BTreeMap<String, Backend>,
        certificates: Option<&Certificates>,
    ) -> anyhow::Result<Self> {
        let mut all = Self::default();
        for (name, backend) in backends {
            let listener =
                listen(backend.at).await.with_context(|| format!("backend {name} at {}", backend.at))?;
            let requests = Arc::new(AtomicU32::new(0));
            all.counts.insert(name.clone(), Arc::clone(&requests));
            let tls = match (backend.tls, certificates) {
                (false, _) => None,
                (true, Some(certificates)) => Some(TlsAcceptor::from(Arc::clone(&certificates.server))),
                (true, None) => bail!("backend {name} needs certificates"),
            };
            let server = Arc::new(Server { name: name.clone(), backend: backend.clone(), tls, requests });
            all.tasks.spawn(accept(listener, server));
        }
        Ok(all)
    }

    /// How many requests a server has got.
    pub fn requests(&self, name: &str) -> u32 {
        self.counts.get(name).map_or(0, |count| count.load(Ordering::SeqCst))
    }
}

async fn listen(at: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(at).await
}

async fn accept(listener: TcpListener, server: Arc<Server>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let server = Arc::clone(&server);
        connections.spawn(async move {
            let Some(tls) = &server.tls else { return serve(stream, String::new(), server).await };
            // A caller that does not speak TLS is not heard.
            let Ok(stream) = tls.accept(stream).await else { return };
            let asked_for = stream.get_ref().1.server_name().unwrap_or_default().to_owned();
            serve(stream, asked_for, server).await;
        });
    }
}

async fn serve<S>(mut stream: S, asked_for: String, server: Arc<Server>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if server.backend.tcp {
        server.requests.fetch_add(1, Ordering::SeqCst);
        // A caller that left does not hear the name.
        let _left = stream.write_all(server.name.as_bytes()).await;
        let _left = stream.shutdown().await;
        return;
    }
    let service = service_fn(move |request| answer(Arc::clone(&server), asked_for.clone(), request));
    let connection = auto::Builder::new(TokioExecutor::new());
    let _broken = connection.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    server: Arc<Server>,
    asked_for: String,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let before = server.requests.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(server.backend.delay).await;
    let failing = server.backend.fail.filter(|fail| fail.times.is_none_or(|times| before < times));
    let headers: BTreeMap<&str, &str> = request
        .headers()
        .iter()
        .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
        .collect();
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let host = request.uri().authority().map(ToString::to_string);
    let host = host.or_else(|| headers.get("host").map(|host| (*host).to_owned()));
    let told = json!({
        "backend": server.name,
        "method": request.method().as_str(),
        "path": path,
        "host": host,
        "sni": asked_for,
        "headers": headers,
    });
    let text = server.backend.serves.get(path).cloned().unwrap_or_else(|| told.to_string());
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() =
        failing.and_then(|fail| http::StatusCode::from_u16(fail.status).ok()).unwrap_or(http::StatusCode::OK);
    if let Ok(name) = http::HeaderValue::from_str(&server.name) {
        response.headers_mut().insert("x-backend", name);
    }
    Ok(response)
}
