use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_base::Clock;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::server::NamedService as _;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::admission::Admission;
use crate::ads::Ads;
use crate::engine::EngineHandle;
use crate::metrics::Metrics;
use crate::stream::Hub;

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
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        serving: watch::Receiver<bool>,
        options: GrpcOptions,
    ) -> Self {
        let (end, ending) = watch::channel(false);
        let max_age = options.max_connection_age;
        let admission = options.streams_per_second.and_then(Admission::new).map(Mutex::new);
        let (bodies, lanes) = Default::default();
        let hub = Hub { engine, bodies, lanes, admission, clock, metrics, serving, max_age, ending };
        Self { hub: Arc::new(hub), options, end }
    }

    /// Everything that is served, for a port of its own or beside other things.
    pub fn routes(&self) -> Result<Routes, tonic_reflection::server::Error> {
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
        Ok(routes.routes())
    }

    /// Serves until `stop`, then ends every stream and waits until the connections are gone.
    pub async fn serve(
        self,
        listener: TcpListener,
        routes: Routes,
        stop: impl Future<Output = ()>,
    ) -> Result<(), tonic::transport::Error> {
        let options = self.options;
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(options.keepalive_interval))
            .http2_keepalive_timeout(Some(options.keepalive_timeout))
            .max_concurrent_streams(options.max_streams);
        if let Some(age) = options.max_connection_age {
            // Without a grace period the client is asked to go instead of being cut off; the streams end by themselves.
            server = server.max_connection_age(age);
        }
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let (told, tell) = tokio::sync::oneshot::channel();
        let attending = self.attend(async {
            stop.await;
            // A server that has failed meanwhile need not be told.
            let _failed = told.send(());
        });
        let stop = async {
            let _told = tell.await;
        };
        let serving = server.add_routes(routes).serve_with_incoming_shutdown(incoming, stop);
        tokio::pin!(serving);
        tokio::select! {
            result = &mut serving => result,
            () = attending => serving.await,
        }
    }

    /// Does what streams need while they are served elsewhere, and ends them at `stop`.
    pub async fn attend(self, stop: impl Future<Output = ()>) {
        tokio::select! {
            () = stop => {}
            () = self.hub.bodies.sweep() => {}
        }
        self.end.send_replace(true);
    }
}
