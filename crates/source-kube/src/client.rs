//! Requests to an API server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use data_encoding::BASE64;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use pilot_base::{Clock, Millis, Name};
use pilot_config::Document;
use pilot_source::Doubts;
use thiserror::Error;

use crate::access::{Access, AccessError, Credential};
use crate::pace::{Bucket, Pace};
use crate::wire::Connector;

/// No answer for so long is one that will not come.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Nothing of an answer for so long, once it has begun.
const BODY_PATIENCE: Duration = Duration::from_secs(60);
/// Far more than a page of objects, which etcd limits to 1.5 MB each, takes in practice.
const MAX_BODY: usize = 1 << 30;
/// What is wrong is told in less.
const MAX_REFUSAL: usize = 1 << 20;
/// Tokens of pods are rotated long before they end.
const TOKEN_AGE: Millis = 60_000;
const PING: Duration = Duration::from_secs(15);
const PONG: Duration = Duration::from_secs(10);

/// Why a request came to nothing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CallError {
    #[error("{0}")]
    Unreachable(String),
    #[error("{message}")]
    Refused { status: u16, reason: String, message: String, retry_after: Option<Duration> },
    #[error("the answer broke off: {0}")]
    Broken(String),
}

impl CallError {
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Unreachable(_) | Self::Broken(_) => None,
        }
    }

    /// How long the API server asks us to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::Unreachable(_) | Self::Broken(_) => None,
        }
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    pub method: Method,
    /// Path and query.
    pub path: &'a str,
    pub accept: &'static str,
    /// With the type of its content.
    pub body: Option<(&'static str, Bytes)>,
}

pub(crate) const JSON: &str = "application/json";

impl<'a> Call<'a> {
    pub fn get(path: &'a str) -> Self {
        Self { method: Method::GET, path, accept: JSON, body: None }
    }

    pub fn delete(path: &'a str) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    pub fn post(path: &'a str, body: impl Into<Bytes>) -> Self {
        Self { method: Method::POST, body: Some((JSON, body.into())), ..Self::get(path) }
    }

    /// Puts an object in the place of the one that is there.
    pub fn put(path: &'a str, body: impl Into<Bytes>) -> Self {
        Self { method: Method::PUT, ..Self::post(path, body) }
    }

    /// Changes the fields that the body names.
    pub fn merge(path: &'a str, body: impl Into<Bytes>) -> Self {
        let body = Some(("application/merge-patch+json", body.into()));
        Self { method: Method::PATCH, body, ..Self::get(path) }
    }
}

/// Who calls one API server. Copies share connections, pace and doubts.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    doubts: Doubts,
    /// How people call the API server.
    name: Name,
    /// Who can wait goes through here first.
    leisure: Option<Arc<Bucket>>,
}

type Http = legacy::Client<Connector, Full<Bytes>>;

struct Inner {
    /// All that is answered at once.
    calls: Http,
    /// What goes on for long, on connections of its own: what nobody reads for a while, as while much is to be done, keeps
    /// what comes after it on the same connection waiting.
    streams: Http,
    /// The same for who can wait.
    leisurely_streams: Http,
    server: String,
    credential: Credential,
    /// A token that was read from a file, and when.
    token: Mutex<Option<(Millis, HeaderValue)>>,
    clock: Arc<dyn Clock>,
    bucket: Bucket,
    leisure: Arc<Bucket>,
}

fn http(connector: &Connector) -> Http {
    legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(Duration::from_secs(90))
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PONG)
        .http2_keep_alive_while_idle(true)
        .build(connector.clone())
}

impl Client {
    pub fn new(access: &Access, pace: Pace, clock: Arc<dyn Clock>) -> Result<Self, AccessError> {
        let connector = Connector::new(access)?;
        let inner = Arc::new(Inner {
            calls: http(&connector),
            streams: http(&connector),
            leisurely_streams: http(&connector),
            server: access.server.clone(),
            credential: access.credential.clone(),
            token: Mutex::new(None),
            bucket: Bucket::new(pace, Arc::clone(&clock)),
            leisure: Arc::new(Bucket::new(pace.leisurely(), Arc::clone(&clock))),
            clock,
        });
        Ok(Self { inner, doubts: Doubts::default(), name: Name::new(&access.server), leisure: None })
    }

    /// The same for requests that can wait. All of them together get a part of the pace, so that others are never held up by
    /// them.
    #[must_use]
    pub fn at_leisure(&self) -> Self {
        Self { leisure: Some(Arc::clone(&self.inner.leisure)), ..self.clone() }
    }

    /// The same, for the API server of a cluster. What cannot be true in it is held back there.
    #[must_use]
    pub fn of_cluster(self, cluster: &Name, doubts: Doubts) -> Self {
        Self { name: Name::from(format!("cluster {cluster}")), doubts, ..self }
    }

    /// Is it the same API server, reached in the same way?
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    pub(crate) fn doubts(&self) -> &Doubts {
        &self.doubts
    }

    /// Where it is.
    pub fn server(&self) -> &str {
        &self.inner.server
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// Sends a request and reads the whole answer.
    pub async fn call(&self, call: Call<'_>) -> Result<Bytes, CallError> {
        let response = self.send(call, &self.inner.calls).await?;
        whole(response.into_body(), MAX_BODY).await
    }

    /// Sends a request whose answer goes on for long. It is a good one, and has only begun.
    pub async fn stream(&self, call: Call<'_>) -> Result<Response<Incoming>, CallError> {
        let Inner { streams, leisurely_streams, .. } = &*self.inner;
        self.send(call, if self.leisure.is_some() { leisurely_streams } else { streams }).await
    }

    async fn send(&self, call: Call<'_>, http: &Http) -> Result<Response<Incoming>, CallError> {
        if let Some(leisure) = &self.leisure {
            leisure.take().await;
        }
        self.inner.bucket.take().await;
        let request = self.request(call)?;
        let answer = tokio::time::timeout(ANSWER_PATIENCE, http.request(request)).await;
        let response = answer
            .map_err(|_| CallError::Unreachable(format!("no answer within {ANSWER_PATIENCE:?}")))?
            .map_err(|error| CallError::Unreachable(innermost(&error)))?;
        if response.status().is_success() {
            return Ok(response);
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            *self.inner.token.lock() = None;
        }
        Err(refusal(response).await)
    }

    fn request(&self, call: Call<'_>) -> Result<Request<Full<Bytes>>, CallError> {
        let wrong = |error: http::Error| CallError::Unreachable(error.to_string());
        let mut builder = Request::builder()
            .method(call.method)
            .uri(format!("{}{}", self.inner.server, call.path))
            .header(ACCEPT, call.accept)
            .header(USER_AGENT, concat!("pilot-discovery/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = self.authorization()? {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        match call.body {
            Some((content, bytes)) => {
                builder.header(CONTENT_TYPE, content).body(Full::new(bytes)).map_err(wrong)
            }
            None => builder.body(Full::default()).map_err(wrong),
        }
    }

    fn authorization(&self) -> Result<Option<HeaderValue>, CallError> {
        match &self.inner.credential {
            Credential::None => Ok(None),
            Credential::Token(token) => bearer(token).map(Some),
            Credential::Basic(name, password) => {
                let text = BASE64.encode(format!("{name}:{password}").as_bytes());
                secret(&format!("Basic {text}")).map(Some)
            }
            Credential::TokenFile(path) => self.file_token(path).map(Some),
        }
    }

    fn file_token(&self, path: &Path) -> Result<HeaderValue, CallError> {
        let now = self.inner.clock.now();
        let mut known = self.inner.token.lock();
        if let Some((at, token)) = &*known
            && now.saturating_sub(*at) < TOKEN_AGE
        {
            return Ok(token.clone());
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| CallError::Unreachable(format!("{}: {error}", path.display())))?;
        let token = bearer(text.trim())?;
        *known = Some((now, token.clone()));
        Ok(token)
    }
}

fn bearer(token: &str) -> Result<HeaderValue, CallError> {
    secret(&format!("Bearer {token}"))
}

fn secret(text: &str) -> Result<HeaderValue, CallError> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| CallError::Unreachable("the credential cannot stand in a header".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

/// What went wrong at the bottom; what stands above only says that a request failed.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// What a server says when it refuses: a `Status` object, or just a code.
async fn refusal(response: Response<Incoming>) -> CallError {
    let status = response.status();
    let retry_after = retry_after(response.headers());
    let body = whole(response.into_body(), MAX_REFUSAL).await.unwrap_or_default();
    let document = Document::parse(&body).ok();
    let field = |name: &str| {
        document.as_ref().map(|document| document.tree().text_at(&[name]).to_owned()).unwrap_or_default()
    };
    let mut message = field("message");
    if message.is_empty() {
        message = format!("the API server answered {status}");
    }
    CallError::Refused { status: status.as_u16(), reason: field("reason"), message, retry_after }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse::<u64>().ok()?;
    // A server that asks for more is asked again earlier.
    Some(Duration::from_secs(seconds.min(60)))
}

async fn whole(mut body: Incoming, limit: usize) -> Result<Bytes, CallError> {
    let mut all = BytesMut::new();
    while let Some(part) = part(&mut body, BODY_PATIENCE).await? {
        if all.len() + part.len() > limit {
            return Err(CallError::Broken(format!("it is longer than {limit} bytes")));
        }
        all.extend_from_slice(&part);
    }
    Ok(all.freeze())
}

/// What comes next of an answer; nothing at its end.
async fn part(body: &mut Incoming, patience: Duration) -> Result<Option<Bytes>, CallError> {
    loop {
        let frame = tokio::time::timeout(patience, body.frame()).await;
        let frame = frame.map_err(|_| CallError::Broken(format!("nothing came for {patience:?}")))?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(CallError::Broken(innermost(&error))),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// An answer that goes on for long, line by line.
pub(crate) struct Lines {
    body: Incoming,
    buffer: BytesMut,
    /// So much of the buffer has no end of line.
    searched: usize,
    patience: Duration,
}

/// One event holds one object.
const MAX_LINE: usize = 64 << 20;

impl Lines {
    /// Silence for longer than `patience` is an end.
    pub(crate) fn new(body: Incoming, patience: Duration) -> Self {
        Self { body, buffer: BytesMut::new(), searched: 0, patience }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            if let Some(line) = self.ready() {
                return Ok(Some(line));
            }
            if self.buffer.len() > MAX_LINE {
                return Err(CallError::Broken(format!("an event is longer than {MAX_LINE} bytes")));
            }
            match part(&mut self.body, self.patience).await? {
                Some(part) => self.buffer.extend_from_slice(&part),
                None => return Ok(None),
            }
        }
    }

    /// A line that has come already.
    pub(crate) fn ready(&mut self) -> Option<Bytes> {
        let end = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = end.map(|at| at + self.searched) else {
            self.searched = self.buffer.len();
            return None;
        };
        let line = self.buffer.split_to(end).freeze();
        self.buffer.advance(1);
        self.searched = 0;
        Some(line)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::sync::Arc;

    use pilot_base::Clock;

    use super::Client;
    use crate::access::{Access, Credential, Trust};
    use crate::pace::Pace;

    /// Time stands still.
    struct Held;

    impl Clock for Held {
        fn now(&self) -> u64 {
            0
        }
    }

    /// Of nobody in particular.
    pub(crate) fn client(server: &str) -> Client {
        let access = Access {
            server: server.to_owned(),
            server_name: None,
            trust: Trust::Anybody,
            identity: None,
            credential: Credential::None,
        };
        Client::new(&access, Pace::default(), Arc::new(Held)).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::{Client, testing};

    #[tokio::test]
    async fn all_who_can_wait_have_a_quarter_together() {
        let client = testing::client("https://10.0.0.1");
        let all: Vec<Client> = (0..7).map(|_| client.at_leisure()).collect();
        let let_through =
            |client: &Client| (0..160).filter(|_| client.leisure.as_ref().unwrap().wait().is_none()).count();
        assert_eq!(all.iter().map(let_through).sum::<usize>(), 40);
        assert!(client.inner.bucket.wait().is_none(), "others are not held up");
    }
}
