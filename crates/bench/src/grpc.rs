//! One ADS stream over one connection, as Istio's agent opens it.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;

use crate::fleet::Proxy;
use crate::shape::Protocol;
use crate::wire::Arriving;

/// Windows of Istio's agent, for streams and for connections.
pub(crate) const WINDOW: u32 = 1 << 20;

/// How a stream ended that should not have.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The server did not let it in.
    #[error("refused with {0}")]
    Refused(String),
    /// It was cut off.
    #[error("{0:#}")]
    Lost(#[from] anyhow::Error),
}

fn path(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Delta => "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources",
        Protocol::Sotw => "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
    }
}

/// Is and stays a proxy until the stream ends.
pub(crate) async fn run(proxy: &Proxy, server: SocketAddr) -> Result<(), Ended> {
    let tcp = TcpStream::connect(server).await.with_context(|| {
        format!(
            "no connection to {server}; does it listen there, and is `ulimit -n` above the number of proxies?"
        )
    })?;
    tcp.set_nodelay(true).context("a socket without delays")?;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let (client, connection) = builder.handshake(tcp).await.context("no HTTP/2")?;
    tokio::select! {
        ended = connection => {
            ended.context("the connection broke")?;
            Err(Ended::Lost(anyhow::anyhow!("the connection was closed")))
        }
        ended = talk(proxy, client, server) => ended,
    }
}

async fn talk(proxy: &Proxy, client: SendRequest<Bytes>, server: SocketAddr) -> Result<(), Ended> {
    let mut client = client.ready().await.context("no stream can be opened")?;
    let request = Request::post(format!("http://{server}{}", path(proxy.protocol)))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "pilot-bench")
        .body(())
        .context("a request")?;
    let (response, mut requests) = client.send_request(request, false).context("no stream can be opened")?;
    let first = proxy.state.lock().open(&proxy.node);
    send(&mut requests, first)?;
    let response: Response<RecvStream> = response.await.context("no answer")?;
    if response.status() != 200 {
        return Err(Ended::Refused(format!("status {}", response.status())));
    }
    if let Some(status) = grpc_status(response.headers()) {
        return Err(Ended::Refused(status));
    }
    proxy.shared.counters.opened.fetch_add(1, Ordering::Relaxed);
    read(proxy, response.into_body(), &mut requests).await
}

async fn read(proxy: &Proxy, mut body: RecvStream, requests: &mut SendStream<Bytes>) -> Result<(), Ended> {
    let mut arriving = Arriving::default();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.context("the stream broke")?;
        body.flow_control().release_capacity(chunk.len()).context("flow control")?;
        proxy.shared.counters.received.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        let outgoing = {
            let mut state = proxy.state.lock();
            state.now = proxy.shared.stopwatch.now();
            arriving.feed(&chunk, &mut *state).context("what came cannot be read")?;
            state.take_outgoing()
        };
        send(requests, outgoing)?;
    }
    let trailers = body.trailers().await.context("the stream broke")?;
    let status = trailers.as_ref().and_then(grpc_status).unwrap_or_else(|| "no status".to_owned());
    Err(Ended::Refused(status))
}

fn send(requests: &mut SendStream<Bytes>, messages: Vec<Bytes>) -> anyhow::Result<()> {
    for message in messages {
        if let Err(error) = requests.send_data(message, false) {
            bail!("nothing can be sent: {error}");
        }
    }
    Ok(())
}

/// The status that ends a stream, in words.
fn grpc_status(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    text("grpc-status")
        .map(|code| format!("gRPC status {code}: {}", text("grpc-message").unwrap_or_default()))
}
