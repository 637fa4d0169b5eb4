//! A way to an API server on which a test sees each request, and says what becomes of it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::kube::KubeServer;

/// One request, as a client sent it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Asked {
    pub method: String,
    /// With its query.
    pub path: String,
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Pass,
    /// It is answered like this instead.
    Refuse(u16),
    /// It waits until something else becomes of it.
    Wait,
}

type Rule = Arc<dyn Fn(&Asked) -> Fate + Send + Sync>;

/// Stands before an API server, to which it speaks TLS.
pub struct Gatekeeper {
    pub address: SocketAddr,
    rule: watch::Sender<Rule>,
    asked: Arc<Mutex<Vec<Asked>>>,
    _tasks: JoinSet<()>,
}

/// What one connection needs.
#[derive(Clone)]
struct Road {
    server: SocketAddr,
    tls: TlsConnector,
    rule: watch::Receiver<Rule>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

impl Gatekeeper {
    /// One that speaks plain HTTP.
    pub async fn before(kube: &KubeServer) -> anyhow::Result<Self> {
        Self::open(kube, None).await
    }

    /// One that shows the API server's own certificate, and speaks HTTP/2 as that does.
    pub async fn in_place_of(kube: &KubeServer) -> anyhow::Result<Self> {
        let [certificate, key] = kube.certificate();
        let (chain, key) =
            (vec![CertificateDer::from_pem_file(certificate)?], PrivateKeyDer::from_pem_file(key)?);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self::open(kube, Some(Arc::new(tls).into())).await
    }

    async fn open(kube: &KubeServer, acceptor: Option<TlsAcceptor>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(kube.authority())?)?;
        let tls =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_root_certificates(roots)
                .with_no_client_auth();
        let first: Rule = Arc::new(|_| Fate::Pass);
        let (rule, follow) = watch::channel(first);
        let asked = Arc::default();
        let road =
            Road { server: kube.address, tls: Arc::new(tls).into(), rule: follow, asked: Arc::clone(&asked) };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(road.clone().meet(near, acceptor.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, rule, asked, _tasks: tasks })
    }

    /// From now on this is what becomes of requests, also of those that wait.
    pub fn rule(&self, rule: impl Fn(&Asked) -> Fate + Send + Sync + 'static) {
        self.rule.send_replace(Arc::new(rule));
    }

    /// Everything that was asked since this was last called, in order.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock())
    }

    /// A kubeconfig that leads here.
    pub fn kubeconfig(&self, token: &str) -> String {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "lab", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        });
        config.to_string()
    }
}

impl Road {
    /// One connection. Whoever ends it has ended it.
    async fn meet(self, near: TcpStream, acceptor: Option<TlsAcceptor>) {
        let service = service_fn(move |request| {
            let road = self.clone();
            async move { Ok::<_, Infallible>(road.lead(request).await) }
        });
        if let Some(acceptor) = acceptor {
            let Ok(near) = acceptor.accept(near).await else { return };
            let builder = auto::Builder::new(TokioExecutor::new());
            let _ended = builder.serve_connection(TokioIo::new(near), service).await;
        } else {
            let mut builder = hyper::server::conn::http1::Builder::new();
            let _ended = builder.half_close(false).serve_connection(TokioIo::new(near), service).await;
        }
    }

    async fn lead(mut self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path_and_query().map_or_else(String::new, ToString::to_string);
        let asked = Asked { method: request.method().to_string(), path };
        self.asked.lock().push(asked.clone());
        loop {
            let fate = self.rule.borrow_and_update()(&asked);
            match fate {
                Fate::Pass => break,
                Fate::Refuse(status) => return refused(status),
                Fate::Wait => {
                    if self.rule.changed().await.is_err() {
                        return refused(503);
                    }
                }
            }
        }
        self.pass(request).await.unwrap_or_else(|_| refused(502))
    }

    async fn pass(&self, mut request: Request<Incoming>) -> anyhow::Result<Answer> {
        let stream = TcpStream::connect(self.server).await?;
        let name = ServerName::from(self.server.ip());
        let stream = self.tls.connect(name, stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        if let Some(path) = request.uri().path_and_query().cloned() {
            *request.uri_mut() = Uri::from(path);
        }
        *request.version_mut() = Version::HTTP_11;
        request.headers_mut().insert(HOST, HeaderValue::from_str(&self.server.to_string())?);
        let mut carrying = JoinSet::new();
        carrying.spawn(async move {
            let _ended = connection.await;
        });
        let response = sender.send_request(request).await.context("the API server did not answer")?;
        // The connection lives as long as what it carries.
        Ok(response.map(|body| {
            body.map_frame(move |frame| {
                let _alive = (&carrying, &sender);
                frame
            })
            .boxed()
        }))
    }
}

fn refused(status: u16) -> Answer {
    let said = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status,
        "reason": "Refused", "message": format!("a test answers {status}"),
    });
    let body = Full::new(Bytes::from(said.to_string())).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    response
}
