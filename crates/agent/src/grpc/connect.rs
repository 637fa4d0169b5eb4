//! Connections to the control plane: one for each call, as Istio's agent does, so that each can end at another replica.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::{Code, Outgoing, Status};
use crate::clock::unix_seconds;
use crate::proxy_config::HostPort;

/// For the whole way to the server, as in Istio.
const CONNECT: Duration = Duration::from_secs(5);
/// What a server may send before it is told that there is room for more: large pushes come in few rounds.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// A server on the same machine that is reached by the name of this machine.
const LOCAL: &str = "localhost";
const LOCAL_NAME: &str = "istiod.istio-system.svc";
const AGENT: HeaderValue = HeaderValue::from_static("pilot-agent");
/// A token is a few kilobytes.
const LONGEST_TOKEN: u64 = 1 << 20;

/// Why there is no answer of a server.
#[derive(thiserror::Error, Debug)]
pub(crate) enum ConnectError {
    #[error("cannot connect to {server}: {source}")]
    Connect { server: String, source: io::Error },
    #[error("no connection to {server} within {} s", CONNECT.as_secs())]
    Slow { server: String },
    #[error(
        "no TLS with {server}: {source}; check that {roots} holds the root of the server, and that the server's certificate is for {name}"
    )]
    Handshake { server: String, roots: String, name: String, source: io::Error },
    #[error("{what} {path} cannot be used: {reason}")]
    File { what: &'static str, path: PathBuf, reason: String },
    #[error("the certificate of PROV_CERT or of the proxy cannot be shown: {0}")]
    Own(rustls::Error),
    #[error("there is no root of this system to trust: {0}")]
    NoSystemRoots(String),
    #[error("\"{0}\" is not a name that a certificate could have")]
    Name(String),
    #[error("{server} does not speak HTTP/2: {source}")]
    Http { server: String, source: hyper::Error },
    #[error("{name} cannot be a header: {value}")]
    Header { name: String, value: String },
    #[error("{server} answers with HTTP status {status}, which is not gRPC")]
    NotGrpc { server: String, status: u16 },
    #[error("{0}")]
    Status(Status),
}

impl ConnectError {
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Status(status) => status.clone(),
            other => Status::new(Code::Unavailable, other.to_string()),
        }
    }
}

/// Whom to trust.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Roots {
    File(PathBuf),
    /// Those that this machine trusts.
    System,
}

/// How the agent shows who it is in the handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identification {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
}

impl Identification {
    fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ConnectError> {
        let file =
            |what, path: &Path, reason: String| ConnectError::File { what, path: path.to_owned(), reason };
        let text = std::fs::read_to_string(&self.chain)
            .map_err(|error| file("certificate", &self.chain, error.to_string()))?;
        let wrong = |error: pilot_ca::MaterialError| file("certificate", &self.chain, error.to_string());
        let expiry = pilot_ca::expiry(&text).map_err(wrong)?;
        if expiry <= unix_seconds() {
            return Err(file("certificate", &self.chain, "it has expired".to_owned()));
        }
        let chain = pilot_ca::read_certificates("certificate", &text).map_err(wrong)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| file("key", &self.key, error.to_string()))?;
        Ok((chain, key))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Credentials {
    pub(crate) roots: Roots,
    pub(crate) own: Option<Identification>,
    /// The name that the server's certificate must have, if it is not the one that it is called by.
    pub(crate) server_name: Option<String>,
}

/// A server, and how it is spoken to. Files are read for each connection, so what was renewed is used.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) server: HostPort,
    /// Without it nothing is encrypted.
    pub(crate) tls: Option<Credentials>,
    pub(crate) token: Option<PathBuf>,
    pub(crate) headers: Vec<(String, String)>,
    /// How long it may be silent, and how long to answer when it is asked whether it is there.
    pub(crate) keepalive: (Duration, Duration),
}

/// An answer that has begun. The connection lives as long.
pub(crate) struct Call {
    pub(crate) body: Incoming,
    pub(crate) connection: JoinSet<()>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection on which one call can be made.
pub(crate) struct Connection {
    sender: http2::SendRequest<Outgoing>,
    driver: JoinSet<()>,
}

impl Upstream {
    /// As Istio has it: a server that says nothing is asked after half a minute.
    pub(crate) const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

    pub(crate) fn name(&self) -> String {
        let HostPort { host, port } = &self.server;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    pub(crate) async fn connect(&self) -> Result<Connection, ConnectError> {
        let slow = |_| ConnectError::Slow { server: self.name() };
        tokio::time::timeout(CONNECT, self.connect_slowly()).await.map_err(slow)?
    }

    async fn connect_slowly(&self) -> Result<Connection, ConnectError> {
        let HostPort { host, port } = &self.server;
        let failed = |source| ConnectError::Connect { server: self.name(), source };
        let tcp = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
        tcp.set_nodelay(true).map_err(failed)?;
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(tcp),
            Some(credentials) => Box::new(self.handshake(credentials, tcp).await?),
        };
        let (interval, timeout) = self.keepalive;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(interval)
            .keep_alive_timeout(timeout)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|source| ConnectError::Http { server: self.name(), source })?;
        let mut driver = JoinSet::new();
        driver.spawn(async {
            // The call that it carries is told of it.
            let _ended = connection.await;
        });
        Ok(Connection { sender, driver })
    }

    async fn handshake(
        &self,
        credentials: &Credentials,
        tcp: TcpStream,
    ) -> Result<tokio_rustls::client::TlsStream<TcpStream>, ConnectError> {
        let name = self.server_name(credentials);
        let config = client_config(credentials)?;
        let wanted = ServerName::try_from(name.clone()).map_err(|_| ConnectError::Name(name.clone()))?;
        TlsConnector::from(Arc::new(config)).connect(wanted, tcp).await.map_err(|source| {
            let roots = match &credentials.roots {
                Roots::File(path) => path.display().to_string(),
                Roots::System => "the system".to_owned(),
            };
            ConnectError::Handshake { server: self.name(), roots, name, source }
        })
    }

    fn server_name(&self, credentials: &Credentials) -> String {
        match &credentials.server_name {
            Some(name) => name.clone(),
            None if self.server.host.contains(LOCAL) => LOCAL_NAME.to_owned(),
            None => self.server.host.clone(),
        }
    }

    /// Makes a call on a connection, and waits until the answer begins.
    pub(crate) async fn call(
        &self,
        connection: Connection,
        path: &str,
        body: Outgoing,
    ) -> Result<Call, ConnectError> {
        let Connection { mut sender, driver } = connection;
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let uri = format!("{scheme}://{}{path}", self.name());
        *request.uri_mut() = uri.parse().map_err(|_| ConnectError::Name(self.name()))?;
        *request.headers_mut() = self.headers()?;
        let failed = |source| ConnectError::Http { server: self.name(), source };
        let response = sender.send_request(request).await.map_err(failed)?;
        if let Some(status) = Status::read(response.headers()) {
            return Err(ConnectError::Status(status));
        }
        let is_grpc = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
        if !response.status().is_success() || !is_grpc {
            return Err(ConnectError::NotGrpc { server: self.name(), status: response.status().as_u16() });
        }
        Ok(Call { body: response.into_body(), connection: driver })
    }

    fn headers(&self) -> Result<HeaderMap, ConnectError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(USER_AGENT, AGENT);
        for (name, value) in &self.headers {
            let wrong = || ConnectError::Header { name: name.clone(), value: value.clone() };
            let name = HeaderName::try_from(name.to_ascii_lowercase()).map_err(|_| wrong())?;
            headers.append(name, HeaderValue::try_from(value).map_err(|_| wrong())?);
        }
        if let Some(token) = self.token.as_deref().and_then(read_token) {
            // What stands in the file is not repeated: it is a secret.
            let wrong =
                |_| ConnectError::Header { name: "the token".to_owned(), value: "not text".to_owned() };
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(wrong)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        Ok(headers)
    }
}

/// Without a token the server may know the agent by its certificate.
fn read_token(path: &Path) -> Option<String> {
    let length = std::fs::metadata(path).ok()?.len();
    if length > LONGEST_TOKEN {
        tracing::warn!(path = %path.display(), length, "this is no token");
        return None;
    }
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|token| !token.is_empty())
}

fn client_config(credentials: &Credentials) -> Result<ClientConfig, ConnectError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::NoSystemRoots(error.to_string()))?
        .with_root_certificates(roots(&credentials.roots)?);
    let own = credentials.own.as_ref().and_then(|own| match own.read() {
        Ok(own) => Some(own),
        Err(error) => {
            // A token may do, as in Istio.
            tracing::warn!("no certificate is shown to the server: {error}");
            None
        }
    });
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(ConnectError::Own)?,
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn roots(roots: &Roots) -> Result<RootCertStore, ConnectError> {
    let mut store = RootCertStore::empty();
    match roots {
        Roots::System => {
            let found = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(found.certs);
            if store.is_empty() {
                let reasons: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
                return Err(ConnectError::NoSystemRoots(reasons.join("; ")));
            }
        }
        Roots::File(path) => {
            let wrong = |reason: String| ConnectError::File { what: "root", path: path.clone(), reason };
            for certificate in
                CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?
            {
                let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                store.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
            if store.is_empty() {
                return Err(wrong("it has no certificate in PEM".to_owned()));
            }
        }
    }
    Ok(store)
}
