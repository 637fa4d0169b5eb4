use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;

use crate::address::ServerAddress;
use crate::connector::Connector;
use crate::events::{EventStream, LineStream};
use crate::secret::{Known, Secret};
use crate::tls::{TlsError, TlsFiles};

/// How a registry is reached.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// If one cannot be asked the next one is.
    pub servers: Vec<ServerAddress>,
    pub secret: Option<Secret>,
    pub tls: TlsFiles,
    /// How long a server may take to answer, beyond what it was told to wait.
    pub patience: Duration,
    /// The largest answer that is read.
    pub most_bytes: usize,
}

impl ClientOptions {
    /// Ten seconds and 256 MiB: fifty thousand instances are some tens of megabytes in every registry's form.
    pub fn new(servers: Vec<ServerAddress>) -> Self {
        let (patience, most_bytes) = (Duration::from_secs(10), 256 << 20);
        Self { servers, secret: None, tls: TlsFiles::default(), patience, most_bytes }
    }
}

/// What a server said.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    server: Arc<str>,
}

/// Why there is no answer, or none that can be used.
#[derive(thiserror::Error, Debug)]
pub enum ClientError {
    /// The server cannot be reached, or broke off.
    #[error("{server} cannot be asked: {why}")]
    Reach { server: Arc<str>, why: String },
    /// It takes longer than it may.
    #[error("{server} has not answered within {patience:?}")]
    Slow { server: Arc<str>, patience: Duration },
    /// It answers more than anybody would read.
    #[error("{server} answers with more than {most} bytes")]
    Large { server: Arc<str>, most: usize },
    /// It refuses.
    #[error("{server} refuses: {}", refusal(*.status))]
    Refused { server: Arc<str>, status: StatusCode },
    /// It answers something else than it should.
    #[error("the answer of {server} cannot be read: {why}")]
    Form { server: Arc<str>, why: String },
    /// Nobody can be asked that.
    #[error("{path:?} cannot be asked for")]
    Path { path: String },
}

impl ClientError {
    /// Is this about what was asked for, and not about the server? Another page may well be answered.
    pub fn is_about_one_page(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::Form { .. } | Self::Large { .. } | Self::Path { .. } => true,
            Self::Reach { .. } | Self::Slow { .. } => false,
        }
    }

    /// With what it refuses, if it does.
    pub fn status(&self) -> Option<StatusCode> {
        if let Self::Refused { status, .. } = self { Some(*status) } else { None }
    }
}

fn refusal(status: StatusCode) -> String {
    if is_denial(status) { format!("{status}; is the token right?") } else { status.to_string() }
}

/// Is it about who asks?
fn is_denial(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

const JSON: &str = "application/json";

/// What is asked, and in which form the answer should be.
#[derive(Clone)]
struct Question<'a> {
    method: Method,
    path: &'a str,
    body: Bytes,
    accept: &'static str,
    /// A header of the server's own.
    own: Option<(&'static str, HeaderValue)>,
}

impl<'a> Question<'a> {
    fn new(method: Method, path: &'a str, body: Bytes) -> Self {
        Self { method, path, body, accept: JSON, own: None }
    }
}

type Pool = legacy::Client<Connector, Full<Bytes>>;

/// Connections that are kept for the next question, and how often they were thrown away.
#[derive(Clone)]
struct Connections {
    connector: Connector,
    kept: Arc<Mutex<(u64, Pool)>>,
}

impl Connections {
    fn new(connector: Connector) -> Self {
        let kept = Arc::new(Mutex::new((0, pool(&connector))));
        Self { connector, kept }
    }

    fn now(&self) -> (u64, Pool) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One of these has led nowhere, and the others may not either: the next question gets a new one.
    fn throw_away(&self, these: u64) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.0 == these {
            *kept = (these + 1, pool(&self.connector));
        }
    }
}

fn pool(connector: &Connector) -> Pool {
    legacy::Client::builder(TokioExecutor::new()).build(connector.clone())
}

/// Asks one of several servers; from one that fails it turns to the next.
#[derive(Clone)]
pub struct Client {
    connections: Connections,
    servers: Arc<[(ServerAddress, Arc<str>)]>,
    current: Arc<AtomicUsize>,
    secret: Known,
    patience: Duration,
    most_bytes: usize,
}

impl Client {
    pub fn new(options: ClientOptions) -> Result<Self, TlsError> {
        let ClientOptions { servers, secret, tls, patience, most_bytes } = options;
        let is_tls = servers.iter().any(ServerAddress::is_tls);
        let tls = if is_tls { Some(tls.connector(&[])?) } else { None };
        let connections = Connections::new(Connector { tls });
        let named = servers.into_iter().map(|server| (server.clone(), Arc::from(server.to_string())));
        let (servers, current, secret) = (named.collect(), Arc::default(), Known::new(secret));
        Ok(Self { connections, servers, current, secret, patience, most_bytes })
    }

    /// The same, with another word on who we are. Both turn to the next server together.
    #[must_use]
    pub fn with_secret(&self, secret: Option<Secret>) -> Self {
        Self { secret: Known::new(secret), ..self.clone() }
    }

    /// Asks for a page. `wait` is how long the server was told to take its time.
    pub async fn get(&self, path: &str, wait: Duration) -> Result<Answer, ClientError> {
        self.ask(Method::GET, path, Bytes::new(), wait).await
    }

    /// Asks with any method and body.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        wait: Duration,
    ) -> Result<Answer, ClientError> {
        self.put(Question::new(method, path, body), wait).await
    }

    /// A token that is refused may have been replaced: then the new one is tried.
    async fn put(&self, question: Question<'_>, wait: Duration) -> Result<Answer, ClientError> {
        let said = self.secret.now();
        let answer = self.put_once(question.clone(), wait).await?;
        if is_denial(answer.status) && self.secret.renew(said.as_ref()) {
            return self.put_once(question, wait).await;
        }
        Ok(answer)
    }

    async fn put_once(&self, question: Question<'_>, wait: Duration) -> Result<Answer, ClientError> {
        let patience = self.patience + wait;
        let (at, (these, pool)) = (self.asked(), self.connections.now());
        let answer = match tokio::time::timeout(patience, self.exchange(&pool, question)).await {
            Ok(answer) => answer,
            Err(_) => {
                self.connections.throw_away(these);
                Err(ClientError::Slow { server: self.server(at), patience })
            }
        };
        let failed = match &answer {
            Ok(answer) => answer.status.is_server_error(),
            Err(_) => true,
        };
        if failed {
            self.turn_from(at);
        }
        answer
    }

    /// A page that is right, or why it is not.
    pub async fn page(&self, path: &str, wait: Duration) -> Result<Answer, ClientError> {
        self.get(path, wait).await?.ok()
    }

    /// The same, asked for with a header that means something to this server.
    pub async fn page_with(
        &self,
        path: &str,
        header: (&'static str, &'static str),
    ) -> Result<Answer, ClientError> {
        let own = Some((header.0, HeaderValue::from_static(header.1)));
        let question = Question { own, ..Question::new(Method::GET, path, Bytes::new()) };
        self.put(question, Duration::ZERO).await?.ok()
    }

    /// A page in any form, unless it is still the one with this tag.
    pub async fn page_unless(
        &self,
        path: &str,
        tag: Option<&HeaderValue>,
    ) -> Result<Option<Answer>, ClientError> {
        let own = tag.map(|tag| ("if-none-match", tag.clone()));
        let question = Question { accept: "*/*", own, ..Question::new(Method::GET, path, Bytes::new()) };
        let answer = self.put(question, Duration::ZERO).await?;
        if answer.status == StatusCode::NOT_MODIFIED { Ok(None) } else { answer.ok().map(Some) }
    }

    /// A stream of events that the server sends for as long as it likes.
    pub async fn events(&self, path: &str) -> Result<EventStream, ClientError> {
        let question = Question::new(Method::GET, path, Bytes::new());
        self.stream(Question { accept: "text/event-stream", ..question }).await.map(EventStream::new)
    }

    /// An answer that goes on for as long as the server likes, line by line.
    pub async fn lines(&self, method: Method, path: &str, body: Bytes) -> Result<LineStream, ClientError> {
        self.stream(Question::new(method, path, body)).await
    }

    async fn stream(&self, question: Question<'_>) -> Result<LineStream, ClientError> {
        let said = self.secret.now();
        match self.stream_once(question.clone()).await {
            Err(error) if error.status().is_some_and(is_denial) && self.secret.renew(said.as_ref()) => {
                self.stream_once(question).await
            }
            begun => begun,
        }
    }

    async fn stream_once(&self, question: Question<'_>) -> Result<LineStream, ClientError> {
        let at = self.asked();
        let request = self.request(at, question)?;
        let (server, patience) = (self.server(at), self.patience);
        let (these, pool) = self.connections.now();
        let begun = tokio::time::timeout(patience, self.begin(&pool, at, request)).await;
        let begun = begun.unwrap_or_else(|_| {
            self.connections.throw_away(these);
            Err(ClientError::Slow { server: Arc::clone(&server), patience })
        });
        let begun = begun.and_then(|response| match response.status() {
            StatusCode::OK => Ok(LineStream::new(response.into_body(), Arc::clone(&server))),
            status => Err(ClientError::Refused { server, status }),
        });
        if begun.is_err() {
            self.turn_from(at);
        }
        begun
    }

    /// Which server is asked now.
    pub fn asked(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// The next one is asked from now on, unless somebody has turned already. Whoever learns nothing from a server that
    /// answers should do that: it may be none of those that were meant.
    pub fn turn_from(&self, at: usize) {
        let next = (at + 1) % self.servers.len().max(1);
        // Who lost this race finds that another has done it.
        let _done = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn exchange(&self, pool: &Pool, question: Question<'_>) -> Result<Answer, ClientError> {
        let at = self.asked();
        let request = self.request(at, question)?;
        let response = self.begin(pool, at, request).await?;
        let (parts, body) = response.into_parts();
        let server = self.server(at);
        let body = Limited::new(body, self.most_bytes).collect().await;
        let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => ClientError::Large { server: Arc::clone(&server), most: self.most_bytes },
            None => ClientError::Reach { server: Arc::clone(&server), why: deepest(&*error) },
        });
        Ok(Answer { status: parts.status, headers: parts.headers, body: body?.to_bytes(), server })
    }

    fn request(&self, at: usize, question: Question<'_>) -> Result<Request<Full<Bytes>>, ClientError> {
        let Question { method, path, body, accept, own } = question;
        let wrong = || ClientError::Path { path: path.to_owned() };
        let (address, _) = self.servers.get(at).ok_or_else(wrong)?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = address.page(path).ok_or_else(wrong)?;
        let headers = request.headers_mut();
        headers.insert(http::header::ACCEPT, HeaderValue::from_static(accept));
        headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        if let Some((name, value)) = own {
            headers.insert(name, value);
        }
        if let Some(value) = address.authorization() {
            headers.insert(AUTHORIZATION, value.clone());
        }
        if let Some(secret) = self.secret.now() {
            headers.insert(secret.name, secret.value);
        }
        Ok(request)
    }

    async fn begin(
        &self,
        pool: &Pool,
        at: usize,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, ClientError> {
        let asked = pool.request(request).await;
        asked.map_err(|error| ClientError::Reach { server: self.server(at), why: deepest(&error) })
    }

    fn server(&self, at: usize) -> Arc<str> {
        self.servers.get(at).map(|(_, name)| Arc::clone(name)).unwrap_or_else(|| Arc::from(""))
    }
}

impl Answer {
    pub fn ok(self) -> Result<Self, ClientError> {
        if self.status == StatusCode::OK {
            return Ok(self);
        }
        Err(ClientError::Refused { server: self.server, status: self.status })
    }

    /// What is not UTF-8 becomes replacement characters, so that one object with such a name is wrong and not all.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        let read = serde_json::from_str(&String::from_utf8_lossy(&self.body));
        read.map_err(|error| ClientError::Form { server: Arc::clone(&self.server), why: error.to_string() })
    }

    /// A header that has a number.
    pub fn number(&self, header: &str) -> Option<u64> {
        self.headers.get(header)?.to_str().ok()?.parse().ok()
    }

    /// Something else is wrong with this answer.
    pub fn wrong(&self, why: impl fmt::Display) -> ClientError {
        ClientError::Form { server: Arc::clone(&self.server), why: why.to_string() }
    }
}

/// The innermost cause is what people look for; those around it say that something failed.
fn deepest(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
