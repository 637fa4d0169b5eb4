use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::server::NamedService as _;
use tonic::service::Routes;
use tonic::transport::server::{Connected, Router};
use tonic::transport::{Error, Server};

use crate::admission::Admission;
use crate::ads::Ads;
use crate::authenticate::Gate;
use crate::certificate_service::CertificateService;
use crate::debug_stream::DebugStreams;
use crate::door::Door;
use crate::engine::EngineHandle;
use crate::gather::Gather;
use crate::identity::Issuance;
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::prompt::{PREFACE, Prompt};
use crate::readers::Readers;
use crate::registration::Registrar;
use crate::secret_access::SecretReview;
use crate::shared_bodies::SharedBodies;
use crate::stream::Hub;
use crate::tls::{self, TlsConfig, WAITING};

/// Limits of a port that anybody may talk to.
#[derive(Clone, Copy, Debug)]
pub struct GrpcOptions {
    pub keepalive_interval: Duration,
    pub keepalive_timeout: Duration,
    /// After this the client is asked to come back, so that a rollout ends balanced.
    pub max_connection_age: Option<Duration>,
    pub max_streams: u32,
    pub max_request: usize,
    /// How many streams may begin a second; nothing if there is no limit.
    pub streams_per_second: Option<f64>,
}

impl Default for GrpcOptions {
    fn default() -> Self {
        Self {
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            max_connection_age: None,
            max_streams: 100_000,
            max_request: 4 << 20,
            streams_per_second: None,
        }
    }
}

/// Who is let in, and where workloads outside of the platform are registered, if anywhere.
pub struct Callers {
    pub gate: Arc<Gate>,
    pub registrar: Option<Arc<dyn Registrar>>,
    /// Who knows which gateways may read Secrets; without anybody, all that are of their namespace.
    pub secrets: Option<Arc<dyn SecretReview>>,
}

/// A listening socket.
pub struct Port {
    pub listener: TcpListener,
    pub routes: Routes,
    /// Without it nothing is encrypted, and nobody asked who he is.
    pub tls: Option<TlsConfig>,
}

/// xDS over gRPC.
pub struct GrpcServer {
    hub: Arc<Hub>,
    options: GrpcOptions,
    /// Said when the server is to end; the streams listen.
    end: watch::Sender<bool>,
}

impl GrpcServer {
    pub fn new(
        engine: EngineHandle,
        metrics: Arc<Metrics>,
        serving: watch::Receiver<bool>,
        (callers, debug): (Callers, Option<DebugStreams>),
        options: GrpcOptions,
    ) -> Self {
        let Callers { gate, registrar, secrets } = callers;
        let (end, ending) = watch::channel(false);
        let max_age = options.max_connection_age;
        let admission = options.streams_per_second.and_then(Admission::new).map(Mutex::new);
        let clock = Arc::clone(engine.clock());
        let hub = Hub {
            engine,
            bodies: SharedBodies::default(),
            lanes: Lanes::new(Arc::clone(&clock)),
            readers: Readers::new(Arc::clone(&clock)),
            admission,
            gate,
            registrar,
            secrets,
            debug,
            clock,
            metrics,
            serving,
            max_age,
            ending,
        };
        Self { hub: Arc::new(hub), options, end }
    }

    /// Everything that is served, for a port of its own or beside other things; certificates where `issuance` is given.
    pub fn routes(&self, issuance: Option<&Issuance>) -> Result<Routes, tonic_reflection::server::Error> {
        let ads = Ads { hub: Arc::clone(&self.hub), max_request: self.options.max_request };
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(pilot_envoy_api::ADS_DESCRIPTORS)
                .with_service_name(Ads::NAME)
        };
        let mut routes = Routes::builder();
        routes
            .add_service(ads)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?);
        if let Some(Issuance { gate, authority, limits }) = issuance {
            routes.add_service(CertificateService {
                gate: Arc::clone(gate),
                authority: authority.clone(),
                limits: *limits,
                metrics: Arc::clone(&self.hub.metrics),
                clock: Arc::clone(&self.hub.clock),
            });
        }
        Ok(routes.routes())
    }

    /// Serves until `stop`, then ends every stream and waits until the connections are gone. Without ports it does what
    /// streams need that are served elsewhere.
    pub async fn serve(self, ports: Vec<Port>, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let (tell, told) = watch::channel(false);
        let mut serving = JoinSet::new();
        for port in ports {
            serving.spawn(serve_port(self.options, port, told.clone()));
        }
        tokio::pin!(stop);
        tokio::select! {
            () = &mut stop => {}
            () = self.hub.bodies.sweep() => {}
            () = self.hub.lanes.release() => {}
            () = self.hub.readers.release() => {}
            // A port that ends by itself takes the others along: half a server is none.
            Some(ended) = serving.join_next() => return ended.unwrap_or(Ok(())),
        }
        tell.send_replace(true);
        self.end.send_replace(true);
        while let Some(ended) = serving.join_next().await {
            ended.unwrap_or(Ok(()))?;
        }
        Ok(())
    }
}

async fn serve_port(options: GrpcOptions, port: Port, told: watch::Receiver<bool>) -> Result<(), Error> {
    let Port { listener, routes, tls } = port;
    let router = router(options, routes);
    match tls {
        None => {
            let (sender, accepted) = mpsc::channel(WAITING);
            serve_accepted(router, (accept(listener, sender), accepted), told).await
        }
        Some(config) => {
            let (sender, accepted) = mpsc::channel(WAITING);
            serve_accepted(router, (tls::accept(listener, config, sender), accepted), told).await
        }
    }
}

/// Serves until it is told to end, and then the old connections until they are gone.
async fn serve_accepted<C>(
    router: Router,
    (accepting, accepted): (impl Future<Output = ()>, mpsc::Receiver<io::Result<C>>),
    told: watch::Receiver<bool>,
) -> Result<(), Error>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let is_told = |mut told: watch::Receiver<bool>| async move {
        // Whoever could say so is gone.
        let _gone = told.wait_for(|told| *told).await;
    };
    let serving = router.serve_with_incoming_shutdown(ReceiverStream::new(accepted), is_told(told.clone()));
    let accepting = async move {
        tokio::select! {
            // Ends when the server has.
            () = accepting => {}
            // While old connections end, no new ones are taken.
            () = is_told(told) => {}
        }
    };
    let ((), served) = tokio::join!(accepting, serving);
    served
}

/// Takes connections without TLS until nobody wants them any more.
async fn accept(listener: TcpListener, accepted: mpsc::Sender<io::Result<Prompt<Gather<TcpStream>>>>) {
    let mut door = Door::of_streams(listener);
    loop {
        tokio::select! {
            () = accepted.closed() => return,
            (stream, _) = door.next() => {
                // A client that is gone already shows it soon.
                let _gone = stream.set_nodelay(true);
                let _gone = accepted.send(Ok(Prompt::new(Gather::new(stream), PREFACE))).await;
            }
        }
    }
}

/// As much as a client may say before anybody has read it. Proxies say little but once, and thousands may do so together.
const WINDOW: u32 = 128 << 10;

fn router(options: GrpcOptions, routes: Routes) -> Router {
    let mut server = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .http2_keepalive_interval(Some(options.keepalive_interval))
        .http2_keepalive_timeout(Some(options.keepalive_timeout))
        .max_concurrent_streams(options.max_streams);
    if let Some(age) = options.max_connection_age {
        // Without a grace period the client is asked to go instead of being cut off; the streams end by themselves.
        server = server.max_connection_age(age);
    }
    server.add_routes(routes)
}
