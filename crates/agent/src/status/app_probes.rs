//! The probes that kubelet would send to the application itself, had the injector not turned them to the agent: mutual TLS
//! and redirection would be in kubelet's way.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use http::header::{HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use serde::Deserialize;
use tokio::time::timeout;

use super::grpc_health;
use crate::Env;
use crate::exchange::{Alpn, Limit, Protocol, Received, Sent, Target};

const VARIABLE: &str = "ISTIO_KUBE_APP_PROBERS";
const LARGEST_BODY: usize = 10 << 10;
const REDIRECTS: usize = 10;
/// The injector always says how long; should it not, then as long as kubelet waits.
const DEFAULT_TIMEOUT: u32 = 1;
const KINDS: [(&str, &[&str]); 2] =
    [("app-health", &["livez", "readyz", "startupz"]), ("app-lifecycle", &["prestopz", "poststartz"])];

#[derive(Debug, thiserror::Error)]
pub(crate) enum AppProbesError {
    /// Only the injector writes it, so it is damaged.
    #[error("{VARIABLE} is not what the injector writes: {0}")]
    Json(#[from] serde_json::Error),
    #[error(
        "{VARIABLE}: {0:?} must be /app-health/<container>/<livez, readyz or startupz> or /app-lifecycle/<container>/<prestopz or poststartz>"
    )]
    Path(String),
    #[error("{VARIABLE}: {0} must have exactly one of httpGet, tcpSocket and grpc")]
    Kind(String),
}

#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
struct Probe {
    http_get: Option<HttpGet>,
    tcp_socket: Option<TcpSocket>,
    grpc: Option<Grpc>,
    timeout_seconds: Option<u32>,
}

#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
struct HttpGet {
    #[serde(default)]
    path: String,
    port: u16,
    scheme: Option<String>,
}

#[derive(Deserialize, Clone, Debug)]
struct TcpSocket {
    port: u16,
}

#[derive(Deserialize, Clone, Debug)]
struct Grpc {
    port: u16,
    service: Option<String>,
}

/// Where applications are asked, and how.
#[derive(Clone, Debug)]
pub(crate) struct AppProbes {
    probes: BTreeMap<String, Probe>,
    destination: String,
    from: IpAddr,
    alpn: Alpn,
}

/// What kubelet is told.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Verdict {
    pub(crate) status: StatusCode,
    pub(crate) body: Vec<u8>,
}

/// What of kubelet's request reaches the application.
pub(crate) struct Asked<'a> {
    pub(crate) path: &'a str,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) status_port: u16,
}

impl AppProbes {
    /// `address` is the pod's own.
    pub(crate) fn read(env: &Env, address: IpAddr) -> Result<Self, AppProbesError> {
        let probes: BTreeMap<String, Probe> = match env.get(VARIABLE) {
            Some(text) => serde_json::from_str(text)?,
            None => BTreeMap::new(),
        };
        for (path, probe) in &probes {
            if !is_probe_path(path) {
                return Err(AppProbesError::Path(path.clone()));
            }
            let Probe { http_get, tcp_socket, grpc, .. } = probe;
            if [http_get.is_some(), tcp_socket.is_some(), grpc.is_some()].iter().filter(|is| **is).count()
                != 1
            {
                return Err(AppProbesError::Kind(path.clone()));
            }
        }
        let legacy = env.flag("REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION") == Some(true);
        Ok(Self {
            probes,
            destination: if legacy { "localhost".to_owned() } else { address.to_string() },
            from: speak_from(address),
            alpn: match env.flag("ISTIO_ENABLE_HTTP2_PROBING") {
                Some(false) => Alpn::Http1,
                _ => Alpn::Http2OrHttp1,
            },
        })
    }

    pub(crate) async fn ask(&self, asked: &Asked<'_>) -> Verdict {
        let Some(probe) = self.probes.get(asked.path) else {
            tracing::error!(path = asked.path, "no such probe of an application");
            let body = format!("app prober config does not exists for {}", asked.path).into_bytes();
            return Verdict { status: StatusCode::BAD_REQUEST, body };
        };
        let seconds = probe.timeout_seconds.filter(|seconds| *seconds > 0).unwrap_or(DEFAULT_TIMEOUT);
        let after = Duration::from_secs(seconds.into());
        let verdict = async {
            match probe {
                Probe { http_get: Some(http), .. } => self.http(http, asked).await,
                Probe { tcp_socket: Some(tcp), .. } => {
                    self.target(tcp.port, Protocol::Http1).connect().await?;
                    Ok(StatusCode::OK.into())
                }
                Probe { grpc: Some(grpc), .. } => {
                    let target = self.target(grpc.port, Protocol::Http2);
                    let service = grpc.service.as_deref().unwrap_or_default();
                    grpc_health::check(&target, service, asked.headers.get(USER_AGENT)).await?;
                    Ok(StatusCode::OK.into())
                }
                Probe { .. } => Ok(StatusCode::INTERNAL_SERVER_ERROR.into()),
            }
        };
        let verdict: anyhow::Result<Verdict> = timeout(after, verdict)
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {seconds}s")));
        verdict.unwrap_or_else(|error| {
            tracing::error!(
                path = asked.path,
                error = format!("{error:#}"),
                "probe of the application failed"
            );
            StatusCode::INTERNAL_SERVER_ERROR.into()
        })
    }

    fn target(&self, port: u16, protocol: Protocol) -> Target {
        Target { host: self.destination.clone(), port, from: Some(self.from), protocol }
    }

    /// kubelet follows redirects to the same host, and is content with those to others.
    async fn http(&self, http: &HttpGet, asked: &Asked<'_>) -> anyhow::Result<Verdict> {
        let tls = http.scheme.as_deref() == Some("HTTPS");
        let protocol = if tls { Protocol::Tls(self.alpn) } else { Protocol::Http1 };
        let mut target = self.target(http.port, protocol);
        let mut headers = asked.headers.clone();
        let authority = told_host(&mut headers, http.port, asked.status_port);
        let path = if http.path.starts_with('/') { http.path.clone() } else { format!("/{}", http.path) };
        let mut sent = Sent { method: Method::GET, path, authority, headers, body: bytes::Bytes::new() };
        for _ in 0..REDIRECTS {
            let received = target.exchange(sent.clone(), Limit::Cut(LARGEST_BODY)).await?;
            if !received.status.is_redirection() {
                return Ok(Verdict { status: received.status, body: received.body });
            }
            match self.follow(&received, &target, &sent) {
                Some((next, path, authority)) => {
                    (target, sent.path, sent.authority) = (next, path, authority);
                    // Where it leads is its own host.
                    sent.headers.remove(HOST);
                }
                None => return Ok(StatusCode::OK.into()),
            }
        }
        anyhow::bail!("more than {REDIRECTS} redirects")
    }

    /// The next place to ask, unless it is none or somebody else's.
    fn follow(&self, received: &Received, at: &Target, sent: &Sent) -> Option<(Target, String, String)> {
        let location: Uri = received.headers.get(LOCATION)?.to_str().ok()?.parse().ok()?;
        let path = location.path_and_query().map_or("/", |path| path.as_str());
        let Some(authority) = location.authority() else {
            let path = if path.starts_with('/') {
                path.to_owned()
            } else {
                let (directory, _) = sent.path.rsplit_once('/')?;
                format!("{directory}/{path}")
            };
            return Some((at.clone(), path, sent.authority.clone()));
        };
        if authority.host().trim_matches(['[', ']']) != self.destination {
            return None;
        }
        let (protocol, usual) = match location.scheme_str() {
            Some("https") => (Protocol::Tls(self.alpn), 443),
            _ => (Protocol::Http1, 80),
        };
        let next = self.target(authority.port_u16().unwrap_or(usual), protocol);
        Some((next, path.to_owned(), authority.to_string()))
    }
}

impl From<StatusCode> for Verdict {
    fn from(status: StatusCode) -> Self {
        Self { status, body: Vec::new() }
    }
}

/// An address of Envoy's passthrough, which redirection leaves alone.
pub(crate) fn speak_from(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::from([127, 0, 0, 6]),
        IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 6]),
    }
}

/// The host the application would have been asked for: kubelet writes the port of the agent into it.
fn told_host(headers: &mut HeaderMap, port: u16, status_port: u16) -> String {
    let told = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost").to_owned();
    let host = match told.rsplit_once(':') {
        Some((host, told_port)) if told_port.parse() == Ok(status_port) => format!("{host}:{port}"),
        _ => told,
    };
    if let Ok(value) = HeaderValue::from_str(&host) {
        headers.insert(HOST, value);
    }
    host
}

fn is_probe_path(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let ["", kind, container, what] = parts[..] else { return false };
    !container.is_empty() && KINDS.iter().any(|(name, all)| *name == kind && all.contains(&what))
}
