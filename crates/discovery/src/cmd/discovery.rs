//! The server: who is started in which order, and how all of it ends.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use axum::Router;
use pilot_base::Clock;
use pilot_cli::Env;
use pilot_server::{
    Callers, DebugDoor, Engine, EngineHandle, EngineOptions, GatewayNames, GrpcServer, HttpServer, Identity,
    KeyFetcher, Metrics, Pages, Port, Protocols, Routes, SystemClock, open_all_files, serve_http,
    serve_https, webhooks,
};
use pilot_source::{ClusterStates, Doubts, Source};
use pilot_source_kube::Tally;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::{Addresses, DiscoveryArgs, Settings};
use crate::cmd::version::BUILD;
use crate::features;
use crate::identity::IdentitySettings;
use crate::sources::{self, Sources};
use crate::writers::{Around, Writers};
use crate::{heap, kube_metrics, no_effect};

/// Serving begins without a source that takes longer than this: old proxies keep what they have, new ones need something.
const SOURCES_DEADLINE: Duration = Duration::from_secs(120);

/// A word to the API server at the end takes milliseconds.
const GIVING_UP: Duration = Duration::from_secs(2);

pub(crate) fn run(mut args: DiscoveryArgs) -> anyhow::Result<()> {
    // As in istiod, nothing is no folder.
    args.config_dir = args.config_dir.filter(|folder| !folder.as_os_str().is_empty());
    match open_all_files() {
        Ok(most) => tracing::info!("up to {most} files and connections may be open"),
        Err(error) => tracing::warn!("the limit of open files stays as it is: {error}"),
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve(args));
    // Whoever still reads a file has nobody left to tell.
    runtime.shutdown_background();
    result
}

async fn serve(args: DiscoveryArgs) -> anyhow::Result<()> {
    let env = Env::of_process();
    no_effect::tell(&env);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let settings = watch::Sender::default();
    let Sources { sources, clusters, doubts, tally, home } =
        sources::open(&args, &env, (&clock, settings.subscribe()))?;
    let writers = home.map(|home| Writers::new(home, &args, &env));
    let mut identities = IdentitySettings::new(&args, &env)?;
    if let Some(writers) = &writers {
        identities.keep_in(&writers.ca_secret()).await.context("the authority of the mesh")?;
    }
    let Settings { mesh, debounce, most_kinds, grpc, keys, addresses, shutdown } = args.settings(&env);
    let mut ends = Ends::new()?;
    let metrics = metrics(tally, clusters.clone())?;
    let options = EngineOptions { mesh, sources: sources.len(), debounce, most_kinds, settings };
    let engine = Engine::start(options, Arc::clone(&clock), Arc::clone(&metrics))?;
    let handle = engine.handle().clone();
    let fetcher = KeyFetcher::new(handle.clone(), Arc::clone(&clock), Arc::clone(&metrics), &keys);
    let names = GatewayNames::new(handle.clone(), Arc::clone(&clock));
    let tried = (fetcher.settled(), names.settled());
    let (serving, is_serving) = watch::channel(false);
    let (cluster, secrets) = writers.as_ref().map(|writers| writers.reviews(&handle)).unzip();
    let gates = identities.gates(&handle, &keys, cluster);
    let identity = identities.open(&metrics)?;
    let issuance = identity.as_ref().and_then(|identity| identities.issuance(identity, gates.certificates));
    let mut writing = JoinSet::new();
    let register = |writers: &Writers| writers.registrar(&env, &metrics, ends.stopped(), &mut writing);
    let registrar = writers.as_ref().map(register);
    let callers = Callers { gate: Arc::clone(&gates.xds), registrar, secrets };
    let door = DebugDoor { options: features::debug(&env), gate: gates.xds, mesh: handle.mesh_config() };
    let pages = pages((&handle, &metrics), is_serving.clone(), (clusters, doubts), door);
    let debug = pages.streams(env.get("POD_NAME").unwrap_or("pilot-discovery").to_owned());
    let grpc =
        GrpcServer::new(handle.clone(), Arc::clone(&metrics), is_serving, (callers, Some(debug)), grpc);
    // Certificates are asked for in plain text only where there is no other way.
    let plain_issuance = issuance.as_ref().filter(|_| addresses.secure_grpc.is_empty());
    let routes = grpc.routes(plain_issuance).context("reflection")?;
    let secure_routes = grpc.routes(issuance.as_ref()).context("reflection")?;
    let asked = webhooks(Arc::clone(&metrics));
    let secure_pages = asked.clone().merge(pages.clone().readiness());
    let plain_webhooks = addresses.https.is_empty().then_some(asked);
    let shared_routes = addresses.grpc.is_empty().then(|| routes.clone());
    let mut servers = serve_pages(pages, (shared_routes, plain_webhooks), &addresses, &ends).await?;

    let mut following = JoinSet::new();
    let vital = run_sources(sources, &handle, &mut following);
    following.spawn(fetcher.run());
    following.spawn(names.run());
    let certificate = identity.as_ref().map(Identity::tls);
    let tls = certificate.clone().filter(|_| !addresses.secure_grpc.is_empty());
    let around = Around::new(&handle, identity.as_ref(), (clock, metrics));
    identity.map(|identity| following.spawn(identity.follow()));
    tokio::select! {
        () = all_told(&handle, &vital, tried) => {}
        () = ends.signalled() => return Ok(()),
        Some(_) = following.join_next() => bail!("a source has ended by itself"),
    }
    let ports = open_ports(&addresses, routes, (secure_routes, tls)).await?;
    servers.spawn(grpc.serve(ports, ends.stopped()));
    if let Some(tls) = certificate.filter(|_| !addresses.https.is_empty()) {
        serve_webhooks(secure_pages, tls, (&addresses, &ends), &mut servers).await?;
    }
    let Addresses { http, grpc, secure_grpc, .. } = &addresses;
    // What is written depends on what is known; and who cannot serve is to take no seat.
    if let Some(writers) = writers {
        writers.start(&around, || ends.stopped(), &mut writing);
    }
    tracing::info!("serving xDS on {grpc}, with TLS on {secure_grpc}, and readiness on {http}");
    serving.send_replace(true);
    let why = over(&mut ends, &handle, &mut following, &mut servers).await;
    tracing::info!("stopping");
    serving.send_replace(false);
    ends.stop();
    let ended = ended(servers, shutdown).await;
    following.shutdown().await;
    given_up(writing).await;
    engine.stop();
    why.and(ended)
}

/// What people, probes and scrapers look at.
fn pages(
    (engine, metrics): (&EngineHandle, &Arc<Metrics>),
    serving: watch::Receiver<bool>,
    (clusters, doubts): (ClusterStates, Doubts),
    door: DebugDoor,
) -> Pages {
    Pages {
        engine: engine.clone(),
        metrics: Arc::clone(metrics),
        clock: Arc::clone(engine.clock()),
        build: BUILD,
        serving,
        clusters,
        doubts,
        door: Arc::new(door),
    }
}

fn metrics(tally: Tally, clusters: ClusterStates) -> anyhow::Result<Arc<Metrics>> {
    let metrics = Metrics::new(BUILD.version)?.with_heap(heap::usage);
    Ok(Arc::new(metrics.with(move || kube_metrics::text(&tally, &clusters))))
}

type Servers = JoinSet<Result<(), pilot_server::TransportError>>;

/// Until somebody wants the end. Whatever ends by itself is needed: better no server than one that says it is ready and
/// is not.
async fn over(
    ends: &mut Ends,
    engine: &EngineHandle,
    following: &mut JoinSet<()>,
    servers: &mut Servers,
) -> anyhow::Result<()> {
    tokio::select! {
        () = ends.signalled() => Ok(()),
        () = engine.gone() => Err(anyhow!("the engine has ended by itself")),
        Some(_) = following.join_next() => Err(anyhow!("a source has ended by itself")),
        Some(_) = servers.join_next() => Err(anyhow!("a server has ended by itself")),
    }
}

/// Everything but xDS; and that too, and webhooks, where they have no address of their own.
async fn serve_pages(
    pages: Pages,
    (routes, webhooks): (Option<Routes>, Option<Router>),
    addresses: &Addresses,
    ends: &Ends,
) -> anyhow::Result<Servers> {
    let mut servers = JoinSet::new();
    let mut start = |listener, router, protocols| {
        let serving = serve_http(HttpServer { listener, router, protocols }, ends.stopped());
        servers.spawn(async {
            serving.await;
            Ok(())
        });
    };
    let mut router = if addresses.monitoring.is_empty() { pages.clone().all() } else { pages.clone().main() };
    let protocols = if routes.is_some() { Protocols::Http1And2 } else { Protocols::Http1 };
    if let Some(routes) = routes {
        router = router.merge(routes.into_axum_router().reset_fallback());
    }
    if let Some(webhooks) = webhooks {
        router = router.merge(webhooks);
    }
    start(listen(&addresses.http, "httpAddr").await?, router, protocols);
    if !addresses.monitoring.is_empty() {
        start(listen(&addresses.monitoring, "monitoringAddr").await?, pages.monitoring(), Protocols::Http1);
    }
    Ok(servers)
}

/// Where xDS is served, in plain text and with TLS.
async fn open_ports(
    addresses: &Addresses,
    routes: Routes,
    (secure_routes, tls): (Routes, Option<watch::Receiver<Arc<ServerConfig>>>),
) -> anyhow::Result<Vec<Port>> {
    let mut ports = Vec::new();
    if !addresses.grpc.is_empty() {
        let listener = listen(&addresses.grpc, "grpcAddr").await?;
        ports.push(Port { listener, routes, tls: None });
    }
    if tls.is_some() {
        let listener = listen(&addresses.secure_grpc, "secureGRPCAddr").await?;
        ports.push(Port { listener, routes: secure_routes, tls });
    }
    Ok(ports)
}

/// What an API server asks, with TLS.
async fn serve_webhooks(
    router: Router,
    tls: watch::Receiver<Arc<ServerConfig>>,
    (addresses, ends): (&Addresses, &Ends),
    servers: &mut Servers,
) -> anyhow::Result<()> {
    let listener = listen(&addresses.https, "httpsAddr").await?;
    let server = HttpServer { listener, router, protocols: Protocols::Http1And2 };
    let serving = serve_https(server, tls, ends.stopped());
    servers.spawn(async {
        serving.await;
        Ok(())
    });
    Ok(())
}

/// Seats are given free, so that others need not wait; an API server that is slow does not keep us.
async fn given_up(mut writing: JoinSet<()>) {
    let all = async { while writing.join_next().await.is_some() {} };
    let _late = tokio::time::timeout(GIVING_UP, all).await;
    writing.shutdown().await;
}

/// Starts each of them, and tells the shards of those without which nobody is served.
fn run_sources(
    sources: Vec<Box<dyn Source>>,
    handle: &EngineHandle,
    following: &mut JoinSet<()>,
) -> Vec<u32> {
    let mut vital = Vec::new();
    for (shard, source) in (0..).zip(sources) {
        if source.is_vital() {
            vital.push(shard);
        }
        handle.run(source, shard, following);
    }
    vital
}

/// Waits until everything is known that proxies need. Nobody is served without `vital` sources: who comes back to a server
/// that knows nothing loses what he had.
async fn all_told(handle: &EngineHandle, vital: &[u32], tried: (impl Future, impl Future)) {
    if tokio::time::timeout(SOURCES_DEADLINE, handle.ready()).await.is_err() {
        tracing::error!(
            "some source has not told what it has within {SOURCES_DEADLINE:?}; serving without it, unless it is Kubernetes"
        );
        handle.told(vital).await;
    }
    tokio::join!(tried.0, tried.1);
}

async fn ended(mut servers: Servers, patience: Duration) -> anyhow::Result<()> {
    let all = async {
        while let Some(result) = servers.join_next().await {
            result.context("a server")?.context("a server")?;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(patience, all).await.unwrap_or_else(|_| {
        tracing::warn!("some streams did not end within {patience:?}");
        Ok(())
    })
}

/// `:8080` means every address of this machine, of both families where it has both.
async fn listen(address: &str, flag: &str) -> anyhow::Result<TcpListener> {
    let bound = match address.strip_prefix(':') {
        None => TcpListener::bind(address).await,
        Some(port) => match TcpListener::bind(format!("[::]:{port}")).await {
            Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
                TcpListener::bind(format!("0.0.0.0:{port}")).await
            }
            bound => bound,
        },
    };
    bound.with_context(|| format!("--{flag} {address}: cannot listen there"))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use pilot_base::Name;
    use pilot_model::MeshOptions;
    use pilot_server::{Engine, EngineOptions, Metrics, SystemClock};
    use pilot_source::{Batch, Event, Running, Sink, Source};
    use tokio::sync::{oneshot, watch};
    use tokio::task::JoinSet;

    use super::all_told;

    /// Says that there is nothing, once it may speak.
    struct Told(bool, oneshot::Receiver<()>);

    impl Source for Told {
        fn name(&self) -> Name {
            Name::new("test")
        }

        fn run(self: Box<Self>, sink: Sink) -> Running {
            Box::pin(async move {
                if self.1.await.is_ok() {
                    let events = vec![Event::Init, Event::InitDone];
                    sink.send(Batch { events, issues: Vec::new() }).await.unwrap();
                }
                sink.closed().await;
            })
        }

        fn is_vital(&self) -> bool {
            self.0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_served_without_the_home_cluster_however_long_it_takes() {
        let mesh = MeshOptions::default();
        let settings = watch::Sender::default();
        let options = EngineOptions { mesh, sources: 2, debounce: None, most_kinds: None, settings };
        let metrics = Arc::new(Metrics::new("1").unwrap());
        let engine = Engine::start(options, Arc::new(SystemClock::default()), metrics).unwrap();
        let (handle, mut tasks) = (engine.handle().clone(), JoinSet::new());
        let (_silent, never) = oneshot::channel();
        let (speak, later) = oneshot::channel();
        handle.run(Box::new(Told(false, never)), 0, &mut tasks);
        handle.run(Box::new(Told(true, later)), 1, &mut tasks);
        let tried = (std::future::ready(()), std::future::ready(()));
        let waiting = all_told(&handle, &[1], tried);
        tokio::pin!(waiting);
        let day = Duration::from_secs(24 * 3600);
        assert!(tokio::time::timeout(day, &mut waiting).await.is_err(), "an empty mesh is served");
        speak.send(()).unwrap();
        // The other is not waited for; the engine's thread lives by a real clock.
        tokio::time::resume();
        waiting.await;
    }
}
