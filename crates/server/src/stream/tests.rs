//! A stream with a real engine behind it, and with places in the lanes that the test hands out.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use pilot_base::{Clock, Name};
use pilot_config::{ReadOptions, read};
use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use pilot_model::MeshOptions;
use pilot_source::{Batch, Event, Running, Sink, Source};
use pilot_xds::TypeUrl;
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::body::Body;
use tower::Service as _;

use super::Hub;
use crate::ads::Ads;
use crate::authenticate::{AuthOptions, Gate};
use crate::lanes::{LARGE, Lane, Lanes};
use crate::readers::{LONG, Readers};
use crate::registration::{Joining, Registrar};
use crate::{Engine, EngineOptions, Metrics, SystemClock};

/// Enough that the table of their routes is large.
const SERVICES: usize = 400;

/// Tells what the test tells it.
struct Told(mpsc::Receiver<Batch>);

impl Source for Told {
    fn name(&self) -> Name {
        Name::new("test")
    }

    fn run(mut self: Box<Self>, sink: Sink) -> Running {
        Box::pin(async move {
            while let Some(batch) = self.0.recv().await {
                if sink.send(batch).await.is_err() {
                    return;
                }
            }
        })
    }
}

fn events(text: &str, event: impl Fn(pilot_model::Object) -> Event) -> Vec<Event> {
    let reading = read(text, "test.yaml", &ReadOptions::default()).expect("the test's own YAML");
    assert!(reading.broken.is_empty(), "{:?}", reading.issues);
    reading.objects.into_iter().map(|(_, _, object)| event(object)).collect()
}

fn entry(service: usize, address: &str) -> String {
    entry_of(service, &[address.to_owned()])
}

fn entry_of(service: usize, addresses: &[String]) -> String {
    let endpoints: Vec<String> = addresses.iter().map(|address| format!("{{address: {address}}}")).collect();
    let endpoints = endpoints.join(", ");
    format!(
        "{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: s{service}, namespace: shop}}, spec: \
         {{hosts: [s{service}.example], ports: [{{name: http, number: 80, protocol: HTTP}}], resolution: STATIC, \
         endpoints: [{endpoints}]}}}}"
    )
}

fn rule(timeout: u8) -> String {
    format!(
        "{{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {{name: s0, namespace: shop}}, spec: \
         {{hosts: [s0.example], http: [{{timeout: {timeout}s, route: [{{destination: {{host: s0.example}}}}]}}]}}}}"
    )
}

/// A proxy that asks over one stream and takes what it is sent.
struct Client {
    asks: mpsc::UnboundedSender<Result<Frame<Bytes>, Status>>,
    body: Body,
    arrived: BytesMut,
}

impl Client {
    fn connect(hub: &Arc<Hub>) -> Self {
        let (asks, asked) = mpsc::unbounded_channel();
        let body = Body::new(StreamBody::new(UnboundedReceiverStream::new(asked)));
        let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
        let request = Request::builder().uri(path).body(body).unwrap();
        let mut ads = Ads { hub: Arc::clone(hub), max_request: 1 << 20 };
        let response = ads.call(request).into_inner().unwrap();
        Self { asks, body: response.into_body(), arrived: BytesMut::new() }
    }

    fn say(&self, request: &DeltaDiscoveryRequest) {
        let message = request.encode_to_vec();
        let mut framed = vec![0];
        framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        framed.extend(message);
        self.asks.send(Ok(Frame::data(framed.into()))).unwrap();
    }

    fn ask(&self, type_url: TypeUrl, names: &[&str]) {
        let id = "sidecar~10.9.0.1~cart-1.shop~shop.svc.cluster.local".to_owned();
        self.say(&DeltaDiscoveryRequest {
            node: Some(Node { id, ..Node::default() }),
            type_url: type_url.as_str().to_owned(),
            resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Default::default()
        });
    }

    /// The next response, which is accepted.
    async fn next(&mut self) -> DeltaDiscoveryResponse {
        loop {
            if let Some(header) = self.arrived.get(1..5) {
                let len = header.try_into().map(u32::from_be_bytes).unwrap() as usize;
                if self.arrived.len() >= 5 + len {
                    self.arrived.advance(5);
                    let response = DeltaDiscoveryResponse::decode(self.arrived.split_to(len)).unwrap();
                    self.say(&DeltaDiscoveryRequest {
                        type_url: response.type_url.clone(),
                        response_nonce: response.nonce.clone(),
                        ..Default::default()
                    });
                    return response;
                }
            }
            // A stream that says nothing more would hold up the whole suite.
            let frame = tokio::time::timeout(Duration::from_secs(60), self.body.frame()).await;
            let frame = frame.expect("something is due").expect("the stream goes on").unwrap();
            self.arrived.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// Asks for a type and takes what is sent of it; how many bytes that is.
    async fn fetch(&mut self, type_url: TypeUrl, names: &[&str]) -> usize {
        self.ask(type_url, names);
        let response = self.next().await;
        assert_eq!(response.type_url, type_url.as_str());
        response.encoded_len()
    }
}

fn hub(engine: &Engine, clock: Arc<dyn Clock>, metrics: Arc<Metrics>, ending: watch::Receiver<bool>) -> Hub {
    let options = AuthOptions { xds_auth: false, plaintext: false, identity_check: false };
    Hub {
        engine: engine.handle().clone(),
        bodies: Default::default(),
        lanes: Lanes::with_places(1, 1, Arc::clone(&clock)),
        readers: Readers::with_places(1, Arc::clone(&clock)),
        admission: None,
        gate: Arc::new(Gate::new(Vec::new(), options)),
        registrar: None,
        secrets: None,
        debug: None,
        clock,
        metrics,
        serving: watch::channel(true).1,
        max_age: None,
        ending,
    }
}

fn start(sources: usize) -> (Engine, Arc<dyn Clock>, Arc<Metrics>) {
    let (clock, metrics): (Arc<dyn Clock>, _) =
        (Arc::new(SystemClock::default()), Arc::new(Metrics::new("test").unwrap()));
    let options = EngineOptions {
        mesh: MeshOptions::default(),
        sources,
        debounce: None,
        settings: watch::Sender::default(),
    };
    let engine = Engine::start(options, Arc::clone(&clock), Arc::clone(&metrics)).unwrap();
    (engine, clock, metrics)
}

#[tokio::test]
async fn word_of_an_endpoint_overtakes_a_table_of_routes_that_waits() {
    let (engine, clock, metrics) = start(1);
    let (tell, told) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    engine.handle().run(Box::new(Told(told)), 0, &mut tasks);
    let tell = async |events| tell.send(Batch { events, issues: Vec::new() }).await.unwrap();
    let services: Vec<String> = (0..SERVICES).map(|service| entry(service, "10.1.0.1")).collect();
    let all = events(&services.join("\n---\n"), Event::InitApply).into_iter();
    tell([Event::Init].into_iter().chain(all).chain([Event::InitDone]).collect()).await;
    engine.handle().ready().await;

    // The stream ends when nothing of its connection is left, as it would on a server.
    let (_runs_on, ending) = watch::channel(false);
    let hub = Arc::new(hub(&engine, clock, metrics, ending));
    let mut client = Client::connect(&hub);
    client.fetch(TypeUrl::Cluster, &[]).await;
    client.fetch(TypeUrl::Endpoint, &["outbound|80||s0.example", "outbound|80||s1.example"]).await;
    client.fetch(TypeUrl::Listener, &[]).await;
    assert!(client.fetch(TypeUrl::Route, &["80"]).await > LARGE, "the table is large");

    let place = hub.lanes.place(Lane::Push).await;
    tell(events(&rule(1), Event::Apply)).await;
    for address in ["10.1.0.2", "10.1.0.3"] {
        // When the second one is told the table has been waiting since the first one at the latest.
        tell(events(&entry(0, address), Event::Apply)).await;
        assert_eq!(client.next().await.type_url, TypeUrl::Endpoint.as_str());
    }
    let many: Vec<String> = (0..2_000).map(|at| format!("10.2.{}.{}", at / 250, 1 + at % 250)).collect();
    tell(events(&entry_of(1, &many), Event::Apply)).await;
    let word = client.next().await;
    assert_eq!(word.type_url, TypeUrl::Endpoint.as_str());
    assert!(word.encoded_len() > LARGE, "word of many endpoints");
    drop(place);
    assert_eq!(client.next().await.type_url, TypeUrl::Route.as_str());
    drop(client);
    engine.stop();
}

/// Keeps whoever comes waiting, as an API server does that does not answer.
struct Unanswered;

impl Registrar for Unanswered {
    fn join<'a>(&'a self, _: &'a pilot_model::Proxy, _: Option<&'a [pilot_ca::SpiffeId]>) -> Joining<'a> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn who_waits_to_be_registered_keeps_nobody_from_asking_for_much() {
    let (engine, clock, metrics) = start(0);
    let (_runs_on, ending) = watch::channel(false);
    let readers = Readers::with_places(1, Arc::clone(&clock));
    let hub = || hub(&engine, Arc::clone(&clock), Arc::clone(&metrics), ending.clone());
    let waiting = Arc::new(Hub { registrar: Some(Arc::new(Unanswered)), readers: readers.clone(), ..hub() });
    let served = Arc::new(Hub { readers, ..hub() });
    let names: Vec<String> = (0..LONG / 8).map(|name| format!("name-{name}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();

    let mut waits = Client::connect(&waiting);
    waits.ask(TypeUrl::Endpoint, &names);
    let silent = tokio::time::timeout(Duration::from_millis(100), waits.body.frame()).await;
    assert!(silent.is_err(), "it is not registered");
    let mut client = Client::connect(&served);
    client.ask(TypeUrl::Endpoint, &names);
    let answer = client.next().await;
    assert_eq!((answer.type_url.as_str(), answer.resources.len()), (TypeUrl::Endpoint.as_str(), names.len()));
    drop((waits, client));
    engine.stop();
}
