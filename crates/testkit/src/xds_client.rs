//! A client of the discovery service that says exactly what a test wants it to say.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

/// The two kinds of streams.
pub trait Kind: Send + 'static {
    const METHOD: &'static str;
    type Request: prost::Message + Default + Send + 'static;
    type Response: prost::Message + Default + Send + 'static;
}

pub struct StateOfTheWorld;
pub struct Delta;

impl Kind for StateOfTheWorld {
    const METHOD: &'static str = "StreamAggregatedResources";
    type Request = DiscoveryRequest;
    type Response = DiscoveryResponse;
}

impl Kind for Delta {
    const METHOD: &'static str = "DeltaAggregatedResources";
    type Request = DeltaDiscoveryRequest;
    type Response = DeltaDiscoveryResponse;
}

pub struct Stream<K: Kind> {
    requests: mpsc::UnboundedSender<K::Request>,
    responses: Streaming<K::Response>,
}

/// Longer than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

impl<K: Kind> Stream<K> {
    pub async fn open(server: SocketAddr) -> anyhow::Result<Self> {
        Self::open_on(Endpoint::from_shared(format!("http://{server}"))?.connect().await?).await
    }

    /// The same on a connection that is there already.
    pub async fn open_on(channel: Channel) -> anyhow::Result<Self> {
        Self::open_as(channel, None).await
    }

    /// The same with a token that tells who calls.
    pub async fn open_as(channel: Channel, token: Option<&str>) -> anyhow::Result<Self> {
        let mut grpc = Grpc::new(channel);
        grpc.ready().await?;
        let (requests, receiver) = mpsc::unbounded_channel();
        let path = format!("/envoy.service.discovery.v3.AggregatedDiscoveryService/{}", K::METHOD);
        let codec: ProstCodec<K::Request, K::Response> = ProstCodec::default();
        let messages = UnboundedReceiverStream::new(receiver);
        let mut request = tonic::Request::new(messages);
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse()?);
        }
        let response = grpc.streaming(request, path.parse()?, codec).await?;
        Ok(Self { requests, responses: response.into_inner() })
    }

    pub fn send(&self, request: K::Request) {
        // A server that has ended the stream shows it when it is read.
        let _ended = self.requests.send(request);
    }

    /// The next response, or how the stream ended.
    pub async fn next(&mut self) -> anyhow::Result<Result<K::Response, Status>> {
        let message =
            tokio::time::timeout(PATIENCE, self.responses.message()).await.context("nothing came")?;
        Ok(message.and_then(|message| message.ok_or_else(|| Status::ok("the stream ended"))))
    }

    /// Is there nothing more to come for a while?
    pub async fn is_silent(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(300), self.responses.message()).await.is_err()
    }
}

/// A sidecar like any other.
pub fn node(name: &str) -> Node {
    Node { id: format!("sidecar~10.0.0.1~{name}.default~default.svc.cluster.local"), ..Node::default() }
}
