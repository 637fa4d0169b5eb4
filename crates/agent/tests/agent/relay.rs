//! The relay between Envoy's place and a control plane that a test makes up, good or bad.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::support::{self, Agent, Settings};

const STREAM: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const DELTA: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const CLUSTERS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
/// Far more than gRPC's libraries take.
const LARGE: usize = 20 << 20;

#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    #[prost(bytes = "bytes", repeated, tag = "2")]
    resources: Vec<Bytes>,
    #[prost(string, tag = "4")]
    type_url: String,
}

/// What a control plane does.
#[derive(Clone)]
enum Conduct {
    /// Sends this to whoever asks.
    Answer(Bytes),
    /// Ends connections as soon as they come.
    HangUp,
    /// Speaks another protocol.
    Http1,
}

struct ControlPlane {
    address: SocketAddr,
    heard: Heard,
    _server: JoinSet<()>,
}

/// What clients said.
#[derive(Clone, Default)]
struct Heard {
    headers: Arc<Mutex<Vec<HeaderMap>>>,
    /// The bytes of each stream.
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl ControlPlane {
    async fn start(conduct: Conduct) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Heard::default();
        let mut server = JoinSet::new();
        server.spawn(accept(listener, conduct, heard.clone()));
        Self { address, heard, _server: server }
    }
}

async fn accept(listener: TcpListener, conduct: Conduct, heard: Heard) {
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        match conduct.clone() {
            Conduct::HangUp => drop(stream),
            Conduct::Http1 => {
                connections.spawn(async move {
                    let _cut = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
                    tokio::time::sleep(Duration::from_secs(60)).await;
                });
            }
            Conduct::Answer(message) => {
                let heard = heard.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    if !request.uri().path().contains("AggregatedDiscoveryService") {
                        // Certificates are asked for at the same place.
                        return std::future::ready(Ok::<_, Infallible>(nothing()));
                    }
                    heard.headers.lock().unwrap().push(request.headers().clone());
                    let (message, heard) = (message.clone(), heard.clone());
                    std::future::ready(Ok(answer(request, message, &heard)))
                });
                connections.spawn(async move {
                    let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _cut = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        }
    }
}

/// What is sent, piece by piece.
struct Pieces(mpsc::UnboundedReceiver<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

fn nothing() -> Response<Pieces> {
    let mut response = Response::new(Pieces(mpsc::unbounded_channel().1));
    response.headers_mut().insert("grpc-status", "12".parse().unwrap());
    response
}

/// Waits for a first request, then answers, and stays.
fn answer(request: Request<Incoming>, message: Bytes, heard: &Heard) -> Response<Pieces> {
    let mut body = request.into_body();
    let (sender, receiver) = mpsc::unbounded_channel();
    let mut response = Response::new(Pieces(receiver));
    response.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let requests = Arc::clone(&heard.requests);
    let number = requests.lock().unwrap().len();
    requests.lock().unwrap().push(Vec::new());
    #[allow(clippy::disallowed_methods, reason = "a server in a test ends with its runtime")]
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            let is_first = requests.lock().unwrap()[number].is_empty();
            requests.lock().unwrap()[number].extend(frame.into_data().unwrap_or_default());
            if is_first {
                // A client that has gone shows it by ending its stream.
                let _gone = sender.send(framed(&message));
            }
        }
    });
    response
}

fn framed(message: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(0);
    out.put_u32(u32::try_from(message.len()).unwrap());
    out.put_slice(message);
    out.freeze()
}

/// A stream as Envoy would open it. Sends a request, and gives so many bytes of the answer, or how it ended.
async fn ask(socket: &Path, path: &str, request: &[u8], length: usize) -> Result<Vec<u8>, (String, String)> {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let (pieces, receiver) = mpsc::unbounded_channel();
    pieces.send(framed(request)).unwrap();
    let request = Request::post(format!("http://agent{path}")).body(Pieces(receiver)).unwrap();
    let mut body = sender.send_request(request).await.unwrap().into_body();
    let mut got = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame.unwrap().into_data() {
            Ok(data) => got.extend_from_slice(&data),
            Err(frame) => {
                let trailers = frame.into_trailers().unwrap();
                let text = |name: &str| trailers.get(name).unwrap().to_str().unwrap().to_owned();
                return Err((text("grpc-status"), text("grpc-message")));
            }
        }
        if got.len() >= length {
            return Ok(got);
        }
    }
    panic!("the stream ended without a word")
}

/// Both protocols have the type at another place.
fn request(type_tag: u8) -> Vec<u8> {
    request_for(type_tag, CLUSTERS)
}

fn request_for(type_tag: u8, type_url: &str) -> Vec<u8> {
    let mut out = vec![type_tag << 3 | 2, u8::try_from(type_url.len()).unwrap()];
    out.extend_from_slice(type_url.as_bytes());
    out
}

fn start(plane: &ControlPlane, vary: impl FnOnce(Settings) -> Settings) -> Agent {
    let settings =
        Settings::script("exec sleep 1000").instead("discoveryAddress", &plane.address.to_string());
    let agent = Agent::start(vary(settings));
    let socket = agent.settings.file("XDS");
    support::until("the socket", || socket.exists().then_some(()));
    agent
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_pass_as_they_came_however_many_and_on_several_streams() {
    let resource = Bytes::from((0..LARGE).map(|at| u8::try_from(at % 251).unwrap()).collect::<Vec<u8>>());
    let message = Answer { resources: vec![resource], type_url: CLUSTERS.to_owned() }.encode_to_vec();
    let plane = ControlPlane::start(Conduct::Answer(message.clone().into())).await;
    let agent = start(&plane, |settings| {
        let token = settings.file("var/run/secrets/tokens/istio-token");
        std::fs::create_dir_all(token.parent().unwrap()).unwrap();
        std::fs::write(token, "secret\n").unwrap();
        settings.variable("XDS_HEADER_COLOUR", "blue").variable("ISTIO_META_CLUSTER_ID", "here")
    });
    let (socket, wanted) = (agent.settings.file("XDS"), framed(&message));
    let (stream_request, delta_request) = (request(4), request(2));
    let (one, other) = tokio::join!(
        ask(&socket, STREAM, &stream_request, wanted.len()),
        ask(&socket, DELTA, &delta_request, wanted.len()),
    );
    assert!(one.unwrap() == wanted && other.unwrap() == wanted, "not a byte is another");
    for headers in plane.heard.headers.lock().unwrap().iter() {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(text("clusterid").as_deref(), Some("here"));
        assert_eq!(text("colour").as_deref(), Some("blue"));
        assert_eq!(text("authorization").as_deref(), Some("Bearer secret"));
    }
    assert!(!agent.log().contains("secret"), "tokens are not written down");
    let unknown = ask(&socket, "/other.Service/Method", &stream_request, 1).await.unwrap_err();
    assert_eq!(unknown.0, "12");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_that_misbehaves_ends_the_stream_with_a_reason() {
    let request = request(4);
    for (conduct, status, reason) in [
        (Conduct::Answer(Bytes::from_static(&[0xff, 0xff, 0xff])), "13", "not a discovery response"),
        (Conduct::HangUp, "14", ""),
        (Conduct::Http1, "14", ""),
    ] {
        let plane = ControlPlane::start(conduct).await;
        let agent = start(&plane, |settings| settings);
        let (found, message) = ask(&agent.settings.file("XDS"), STREAM, &request, 1).await.unwrap_err();
        assert_eq!(found, status, "{message}");
        assert!(message.contains(reason), "{message}");
    }
    let gone = ControlPlane::start(Conduct::HangUp).await;
    let address = gone.address;
    let agent = start(&gone, |settings| settings);
    drop(gone);
    let (status, message) = ask(&agent.settings.file("XDS"), STREAM, &request, 1).await.unwrap_err();
    assert_eq!(status, "14");
    assert!(message.contains(&format!("cannot connect to {address}")), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_asks_for_names_and_tells_health_on_every_stream() {
    let message = Answer { resources: Vec::new(), type_url: CLUSTERS.to_owned() }.encode_to_vec();
    let plane = ControlPlane::start(Conduct::Answer(message.into())).await;
    let dns = format!("127.0.0.1:{}", support::free_port());
    let agent = start(&plane, |settings| {
        settings
            .proxy("readinessProbe: {exec: {command: [/bin/true]}, periodSeconds: 1}")
            .variable("ISTIO_META_DNS_CAPTURE", "true")
            .variable("DNS_PROXY_ADDR", &dns)
    });
    support::until("a verdict", || agent.log().contains("health of the workload").then_some(()));
    let listeners = request_for(4, "type.googleapis.com/envoy.config.listener.v3.Listener");
    for number in 0..2 {
        ask(&agent.settings.file("XDS"), STREAM, &listeners, 1).await.unwrap();
        let told = |text: &str| {
            let heard = plane.heard.requests.lock().unwrap();
            heard
                .get(number)
                .is_some_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
        };
        support::until("names", || told("istio.networking.nds.v1.NameTable").then_some(()));
        support::until("health", || told("istio.v1.HealthInformation").then_some(()));
    }
}

#[test]
fn a_socket_that_cannot_be_made_ends_the_agent_with_what_to_do() {
    let long = "x".repeat(100);
    let settings = Settings::script("exec sleep 1000");
    let path = settings.file(&long);
    let mut agent = Agent::start(settings.instead("configPath", path.to_str().unwrap()));
    assert_eq!(agent.wait(), Some(1));
    let log = agent.log();
    assert!(
        log.contains("the kernel takes 107 at most") && log.contains("configPath in PROXY_CONFIG"),
        "{log}"
    );
}
