//! Calls as an application makes them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::certificates::Certificates;
use crate::expect::Seen;
use crate::scenario::{Call, Target};

/// No answer takes longer; tests wait for conditions, not for time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes a call once. A call with TLS needs certificates.
pub async fn make(call: &Call, certificates: Option<&Certificates>) -> anyhow::Result<Seen> {
    let Target { to, tls, http } = call.target()?;
    let tls = match tls {
        None => None,
        Some(name) => {
            let certificates = certificates.context("a call with TLS needs certificates")?;
            Some((TlsConnector::from(certificates.client(call)), ServerName::try_from(name)?))
        }
    };
    let Some(http) = http else { return Ok(connect(to, tls).await) };
    let mut request = Request::builder().method(http.method).uri(http.path).header("host", http.authority);
    for (name, value) in &call.headers {
        request = request.header(name, value);
    }
    send(to, tls, request.body(Full::default())?).await
}

/// How to speak TLS, and with whom.
type Tls = Option<(TlsConnector, ServerName<'static>)>;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection; an error if nobody listens there, or TLS does not come about.
async fn open(to: SocketAddr, tls: Tls) -> std::io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(to).await?;
    Ok(match tls {
        None => Box::new(stream),
        Some((connector, name)) => Box::new(connector.connect(name, stream).await?),
    })
}

/// A plain GET, for administration ports and status pages.
pub async fn get(to: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let request = Request::builder().uri(path).header("host", "localhost").body(Full::default())?;
    let seen = send(to, None, request).await?;
    Ok((seen.status, seen.body))
}

/// A plain POST of a text.
pub async fn post(to: SocketAddr, path: &str, body: &str) -> anyhow::Result<(u16, String)> {
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    let request = Request::builder().method("POST").uri(path).header("host", "localhost").body(body)?;
    let seen = send(to, None, request).await?;
    Ok((seen.status, seen.body))
}

async fn connect(to: SocketAddr, tls: Tls) -> Seen {
    let mut said = String::new();
    let reading = async {
        let mut stream = open(to, tls).await?;
        stream.read_to_string(&mut said).await
    };
    // Whoever is refused, cut off or kept waiting was served by nobody.
    let _cut_off = tokio::time::timeout(PATIENCE, reading).await;
    Seen { weight: 1.0, from: (!said.is_empty()).then_some(said), ..Seen::default() }
}

async fn send(to: SocketAddr, tls: Tls, request: Request<Full<Bytes>>) -> anyhow::Result<Seen> {
    tokio::time::timeout(PATIENCE, exchange(to, tls, request)).await.context("no answer came")?
}

#[allow(clippy::disallowed_methods, reason = "how long a real server takes can only be told by a real clock")]
async fn exchange(to: SocketAddr, tls: Tls, request: Request<Full<Bytes>>) -> anyhow::Result<Seen> {
    let start = std::time::Instant::now();
    let nobody = || Ok(Seen { weight: 1.0, ..Seen::default() });
    let Ok(stream) = open(to, tls).await else { return nobody() };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        anyhow::Ok((parts, body.collect().await?.to_bytes()))
    };
    tokio::pin!(exchange);
    let answer = tokio::select! {
        answer = &mut exchange => answer,
        ended = connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(error.into()),
        },
    };
    let (parts, body) = match answer {
        Ok(answer) => answer,
        // Whoever is not let in, without the right certificate or in plain text, may learn so only by being cut off.
        Err(_) => return nobody(),
    };
    let headers: BTreeMap<String, String> = parts
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned())))
        .collect();
    let body = String::from_utf8_lossy(&body).into_owned();
    let mut seen = Seen {
        weight: 1.0,
        status: parts.status.as_u16(),
        response: headers,
        after: start.elapsed(),
        ..Seen::default()
    };
    match seen.response.get("x-backend").cloned() {
        None => seen.body = body,
        Some(backend) => {
            seen.from = Some(backend);
            tell(&body, &mut seen);
        }
    }
    Ok(seen)
}

/// What the backend says it was asked.
fn tell(body: &str, seen: &mut Seen) {
    let told: Value = serde_json::from_str(body).unwrap_or_default();
    let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
    (seen.method, seen.path, seen.host) = (text("method"), text("path"), text("host"));
    seen.sni = text("sni");
    for (name, value) in told["headers"].as_object().into_iter().flatten() {
        seen.request.insert(name.clone(), value.as_str().unwrap_or_default().to_owned());
    }
}
