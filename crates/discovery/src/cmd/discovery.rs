//! The server: who is started in which order, and how all of it ends.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use pilot_base::Clock;
use pilot_cli::Env;
use pilot_server::{Engine, EngineHandle, GrpcServer, HttpServer, Metrics, Pages, SystemClock, serve_http};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::{DiscoveryArgs, Settings};
use crate::cmd::version::BUILD;
use crate::sources;

/// Serving begins without a source that takes longer than this: old proxies keep what they have, new ones need something.
const SOURCES_DEADLINE: Duration = Duration::from_secs(120);

pub(crate) fn run(args: DiscoveryArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve(args));
    // Whoever still reads a file has nobody left to tell.
    runtime.shutdown_background();
    result
}

async fn serve(args: DiscoveryArgs) -> anyhow::Result<()> {
    let sources = sources::open(&args)?;
    warn_about_tls(&args);
    let Settings { mesh, grpc, addresses, shutdown } = args.settings(&Env::of_process());
    let mut ends = Ends::new()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let metrics = Arc::new(Metrics::new(BUILD.version)?);
    let engine = Engine::start(mesh, sources.len(), Arc::clone(&metrics))?;
    let handle = engine.handle().clone();
    let grpc = GrpcServer::new(handle.clone(), Arc::clone(&clock), Arc::clone(&metrics), grpc);
    let routes = grpc.routes().context("reflection")?;

    let (serving, is_serving) = watch::channel(false);
    let pages = Pages { engine: handle.clone(), metrics, clock, build: BUILD, serving: is_serving };
    let mut tasks = JoinSet::new();
    let mut router = if addresses.monitoring.is_empty() { pages.clone().all() } else { pages.clone().main() };
    if addresses.grpc.is_empty() {
        router = router.merge(routes.clone().into_axum_router());
    }
    let http = HttpServer { listener: listen(&addresses.http, "httpAddr").await?, router };
    tasks.spawn(serve_http(http, ends.stopped()));
    if !addresses.monitoring.is_empty() {
        let listener = listen(&addresses.monitoring, "monitoringAddr").await?;
        tasks.spawn(serve_http(HttpServer { listener, router: pages.monitoring() }, ends.stopped()));
    }

    for (shard, source) in (0..).zip(sources) {
        handle.run(source, shard, &mut tasks);
    }
    if !sources_told(&handle, &mut ends).await {
        return Ok(());
    }
    let mut streams = JoinSet::new();
    if addresses.grpc.is_empty() {
        let stopped = ends.stopped();
        streams.spawn(async {
            grpc.attend(stopped).await;
            Ok(())
        });
    } else {
        let listener = listen(&addresses.grpc, "grpcAddr").await?;
        streams.spawn(grpc.serve(listener, routes, ends.stopped()));
    }
    tracing::info!("serving xDS on {} and readiness on {}", addresses.grpc, addresses.http);
    serving.send_replace(true);
    ends.signalled().await;
    tracing::info!("stopping");
    serving.send_replace(false);
    ends.stop();
    let result = ended(streams, shutdown).await;
    tasks.shutdown().await;
    engine.stop();
    result
}

fn warn_about_tls(args: &DiscoveryArgs) {
    for (flag, address) in [("httpsAddr", &args.https_addr), ("secureGRPCAddr", &args.secure_grpc_addr)] {
        if !address.is_empty() {
            tracing::warn!("--{flag} {address}: TLS is not built yet, so nothing listens there");
        }
    }
}

/// Waits until everything is known that proxies need. False if the program is to end instead.
async fn sources_told(handle: &EngineHandle, ends: &mut Ends) -> bool {
    tokio::select! {
        () = handle.ready() => true,
        () = tokio::time::sleep(SOURCES_DEADLINE) => {
            tracing::error!("some source has not told what it has within {SOURCES_DEADLINE:?}; serving without it");
            true
        }
        () = ends.signalled() => false,
    }
}

async fn ended(
    mut streams: JoinSet<Result<(), pilot_server::TransportError>>,
    patience: Duration,
) -> anyhow::Result<()> {
    let all = async {
        while let Some(result) = streams.join_next().await {
            result.context("the xDS server")?.context("the xDS server")?;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(patience, all).await.unwrap_or_else(|_| {
        tracing::warn!("some streams did not end within {patience:?}");
        Ok(())
    })
}

/// `:8080` means every address of this machine.
async fn listen(address: &str, flag: &str) -> anyhow::Result<TcpListener> {
    let full = if address.starts_with(':') { format!("0.0.0.0{address}") } else { address.to_owned() };
    TcpListener::bind(&full).await.with_context(|| format!("--{flag} {address}: cannot listen there"))
}

/// The signals that end the program, and who is to be told.
struct Ends {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    stop: watch::Sender<bool>,
}

impl Ends {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            stop: watch::Sender::new(false),
        })
    }

    async fn signalled(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    fn stop(&self) {
        self.stop.send_replace(true);
    }

    fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stop.subscribe();
        async move {
            // Without anybody left to say it, it has stopped.
            let _gone = stop.wait_for(|stop| *stop).await;
        }
    }
}
