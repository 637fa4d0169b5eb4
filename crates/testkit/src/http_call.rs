//! Calls as an application makes them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::expect::Seen;
use crate::scenario::{Call, Target};

/// No answer takes longer; tests wait for conditions, not for time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes a call once.
pub async fn make(call: &Call) -> anyhow::Result<Seen> {
    match call.target()? {
        Target::Tcp(to) => Ok(connect(to).await),
        Target::Http { method, to, authority, path } => {
            let mut request = Request::builder().method(method).uri(path).header("host", authority);
            for (name, value) in &call.headers {
                request = request.header(name, value);
            }
            send(to, request.body(Empty::new())?).await
        }
    }
}

/// A plain GET, for administration ports and status pages.
pub async fn get(to: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let request = Request::builder().uri(path).header("host", "localhost").body(Empty::new())?;
    let seen = send(to, request).await?;
    Ok((seen.status, seen.body))
}

async fn connect(to: SocketAddr) -> Seen {
    let mut said = String::new();
    let reading = async {
        let mut stream = TcpStream::connect(to).await?;
        stream.read_to_string(&mut said).await
    };
    // Whoever is refused, cut off or kept waiting was served by nobody.
    let _cut_off = tokio::time::timeout(PATIENCE, reading).await;
    Seen { weight: 1.0, from: (!said.is_empty()).then_some(said), ..Seen::default() }
}

async fn send(to: SocketAddr, request: Request<Empty<Bytes>>) -> anyhow::Result<Seen> {
    tokio::time::timeout(PATIENCE, exchange(to, request)).await.context("no answer came")?
}

#[allow(clippy::disallowed_methods, reason = "how long a real server takes can only be told by a real clock")]
async fn exchange(to: SocketAddr, request: Request<Empty<Bytes>>) -> anyhow::Result<Seen> {
    let start = std::time::Instant::now();
    let Ok(stream) = TcpStream::connect(to).await else { return Ok(Seen { weight: 1.0, ..Seen::default() }) };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let (parts, body) = response.into_parts();
        anyhow::Ok((parts, body.collect().await?.to_bytes()))
    };
    tokio::pin!(exchange);
    let (parts, body) = tokio::select! {
        answer = &mut exchange => answer?,
        ended = connection => {
            ended?;
            exchange.await?
        }
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
    for (name, value) in told["headers"].as_object().into_iter().flatten() {
        seen.request.insert(name.clone(), value.as_str().unwrap_or_default().to_owned());
    }
}
