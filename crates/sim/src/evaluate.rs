//! What would come of a call, given the configuration that a proxy holds.
//!
//! ```text
//!   Call ──listener──► filter chain ──route──► route ──answer──► Branch…: with which chance, which answer
//! ```
//!
//! Nothing is drawn by lot: where Envoy would choose, every choice is told with its chance.

mod answer;
mod headers;
mod jwt;
mod listener;
mod matching;
mod rbac;
mod route;
mod security;
mod snapshot;
mod tls;
mod upstream;

pub use headers::HeaderOps;
pub use snapshot::Snapshot;
pub use upstream::{Retry, Upstream};

use std::net::SocketAddr;
use std::time::Duration;

/// What an application does.
#[derive(Clone, Debug)]
pub struct Call {
    /// Where it connects to.
    pub to: SocketAddr,
    pub tls: Option<TlsCall>,
    /// Nothing for a connection that is not HTTP.
    pub http: Option<HttpCall>,
}

/// TLS that the application speaks itself.
#[derive(Clone, Debug)]
pub struct TlsCall {
    pub server_name: String,
    pub shows_certificate: bool,
}

#[derive(Clone, Debug, Default)]
pub struct HttpCall {
    pub method: String,
    /// As in the Host header, port included if the client sends one.
    pub authority: String,
    /// Query included.
    pub path: String,
    pub headers: Vec<(String, String)>,
}

/// One of the things that may come of a call.
#[derive(Clone, Debug)]
pub struct Branch {
    /// From 0 to 1; all branches of a call together make 1.
    pub chance: f64,
    /// The answer does not come earlier.
    pub delay: Duration,
    pub answer: Answer,
}

#[derive(Clone, Debug)]
pub enum Answer {
    /// Nobody listens there, or the connection is closed.
    Refused,
    /// The proxy answers itself.
    Direct { status: u16, headers: Vec<(String, String)>, body: String },
    /// The call goes on.
    Forward(Box<Upstream>),
}

impl Answer {
    fn status(status: u16) -> Self {
        Self::Direct { status, headers: Vec::new(), body: String::new() }
    }
}

/// Everything that may come of a call. An error says what in the configuration could not be followed.
pub fn evaluate(snapshot: &Snapshot, call: &Call) -> Result<Vec<Branch>, String> {
    let certain = |answer| vec![Branch { chance: 1.0, delay: Duration::ZERO, answer }];
    let Some(chain) = listener::find(snapshot, call)? else { return Ok(certain(Answer::Refused)) };
    let inner = match tls::downstream(&chain, call.tls.as_ref())? {
        tls::Downstream::Refused => return Ok(certain(Answer::Refused)),
        tls::Downstream::Ended => &Call { tls: None, ..call.clone() },
        tls::Downstream::Untouched => call,
    };
    if !security::connection(&chain, call)? {
        return Ok(certain(Answer::Refused));
    }
    match listener::terminal(&chain)? {
        listener::Terminal::Tcp(clusters, key) => {
            let branch = |(cluster, chance): (String, f64)| Branch {
                chance,
                delay: Duration::ZERO,
                answer: upstream::tcp(snapshot, &cluster, inner, key),
            };
            Ok(clusters.into_iter().map(branch).collect())
        }
        // Encrypted bytes are no request.
        listener::Terminal::Http(_) if inner.tls.is_some() => Ok(certain(Answer::Refused)),
        listener::Terminal::Http(manager) => {
            let Some(http) = &call.http else { return Ok(certain(Answer::Refused)) };
            let secure = answer::must_be_secure(snapshot, &manager, http)?.filter(|_| call.tls.is_none());
            if let Some(elsewhere) = secure {
                return Ok(certain(elsewhere));
            }
            match security::request(&manager, call, http)? {
                security::Verdict::Pass(http) => answer::http(snapshot, &manager, &http, call.to),
                security::Verdict::Answer(answer) => Ok(certain(answer)),
            }
        }
    }
}
