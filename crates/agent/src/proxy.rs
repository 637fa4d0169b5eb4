use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::args::{Args, Command, ProxyArgs, VersionArgs};
use crate::bootstrap::{self, LogFormat};
use crate::dns::{Dns, DnsSettings};
use crate::grpc::{Socket, Upstream};
use crate::grpc_bootstrap::GrpcBootstrap;
use crate::identity::Secrets;
use crate::metrics::Metrics;
use crate::ready::{Condition, Readiness};
use crate::relay::{Keeper, Receivers, Relay};
use crate::sds::Place;
use crate::setup::{self, Envoy, Setup};
use crate::status::{AppProbes, Audience, Scrape, Status};
use crate::surroundings::{POD_DIRECTORY, Surroundings};
use crate::{Env, identity, redirect, relay, request, run, sds, status, version, wait};

const SECRETS_ADVICE: &str =
    "start the agent in a folder whose var/run/secrets it may write to, or mount one there";

type Servers = JoinSet<Result<(), std::io::Error>>;

/// Few threads: the agent mostly waits.
const THREADS: usize = 2;
/// One of each kind; more say nothing new.
const ORDERS: usize = 2;
/// Only changes are told, and those come seconds apart.
const HEALTH_EVENTS: usize = 8;

/// Runs the command that the arguments name. `unknown` are flags that were left out of them.
pub fn main(args: Args, unknown: &[String], env: Env) -> anyhow::Result<ExitCode> {
    let Args { log, command } = args;
    // Scripts read what these print.
    if !matches!(command, Command::Version(_) | Command::Request(_)) {
        log.init()?;
    }
    for flag in unknown {
        tracing::warn!(flag, "unknown flag has no effect");
    }
    let format = if log.as_json { LogFormat::Json } else { LogFormat::Text };
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()
        .context("cannot start threads")?;
    match command {
        Command::Version(VersionArgs { short }) => {
            let text = if short { version::ISTIO_VERSION.to_owned() } else { version::long() };
            println!("{text}");
        }
        Command::IstioIptables(args) => return redirect::run(&args, &env),
        Command::IstioCleanIptables(args) => return redirect::clean(&args, &env),
        Command::Request(args) => runtime.block_on(request::run(args))?,
        Command::Wait(args) => runtime.block_on(wait::run(args))?,
        Command::Proxy(args) => return runtime.block_on(proxy(&args, format, env)),
    }
    Ok(ExitCode::SUCCESS)
}

async fn proxy(args: &ProxyArgs, format: LogFormat, env: Env) -> anyhow::Result<ExitCode> {
    tracing::info!(version = version::long(), "agent");
    let place = Place::find(&env, Path::new("")).await?;
    let env = match place {
        Place::Own(_) => env,
        Place::Files(_) => env.with(identity::SERVED_BY_OTHERS, "true"),
    };
    let around = Surroundings::read(env, Path::new(POD_DIRECTORY))?;
    let setup = setup::prepare(args, format, &around)?;
    let Setup { envoy, settings, status_port, namespace, domain, probe, grpc_bootstrap, .. } = setup;
    write_files(envoy.as_ref(), grpc_bootstrap.as_ref())?;
    let metrics = Arc::new(Metrics::new().context("cannot count what the agent does")?);
    // The relay puts the name table here, and tells the control plane what the probes say about the workload.
    let (names_sender, names) = watch::channel(None);
    let (health, health_events) = mpsc::channel(HEALTH_EVENTS);
    let env = &around.env;
    let mut servers = JoinSet::new();
    let mut conditions = Vec::new();
    let mut receivers = Receivers::default();
    conditions.extend(grpc_bootstrap.map(|bootstrap| Condition::GrpcBootstrap(bootstrap.path)));
    if let Some(settings) = DnsSettings::read(env, &namespace, &domain)? {
        conditions.push(Condition::Names(names.clone()));
        receivers.names = Some(names_sender);
        let dns = Dns::bind(settings).await?;
        spawn(&mut servers, dns.serve(names.clone(), Arc::clone(&metrics)));
    }
    let readiness = Arc::new(Readiness::new(envoy.as_ref().map(|envoy| envoy.admin_port), conditions));
    let address = around.instance_addresses()[0];
    if let Some(probe) = probe {
        spawn(&mut servers, probe.at(address, env).run(Arc::clone(&readiness), health));
    }
    let roots = certify(&mut servers, (setup.identity, setup.authority), &place, &metrics);
    receivers.roots = Some(roots).filter(|_| env.flag("PROXY_CONFIG_XDS_AGENT") == Some(true));
    let keeper = (env.flag("PILOT_AGENT_XDS_SNAPSHOT") == Some(true))
        .then(|| Arc::new(Keeper::open(&setup.config_path, &setup.node_id, Arc::clone(&metrics))));
    if let Some(keeper) = &keeper {
        spawn(&mut servers, Arc::clone(keeper).save_changes());
    }
    let (remembered, last) = watch::channel(None);
    spawn(&mut servers, relay::remember(health_events, remembered));
    let socket = relay::bind(&setup.config_path)?;
    spawn(&mut servers, Relay::new(setup.xds, receivers, last, Arc::clone(&metrics), keeper).serve(socket));
    let (orders, told) = mpsc::channel(ORDERS);
    if status_port != 0 {
        let listener = status::bind(status_port).await?;
        let status = Status {
            readiness: Arc::clone(&readiness),
            orders,
            metrics: Arc::clone(&metrics),
            metrics_for: match env.flag("METRICS_LOCALHOST_ACCESS_ONLY") {
                Some(true) => Audience::Localhost,
                _ => Audience::Everybody,
            },
            scrape: Scrape::read(
                env,
                args.proxy_type,
                (status_port, envoy.as_ref().map_or(0, |envoy| envoy.own_ports[1])),
            )?,
            probes: AppProbes::read(env, address)?,
            names: names.clone(),
            port: status_port,
        };
        servers.spawn(status::serve(listener, status));
    }
    let status = match envoy {
        Some(envoy) => run::run((envoy, plan(args, format, &around)), settings, readiness, told).await?,
        None => run::without_envoy(readiness, told).await?,
    };
    servers.shutdown().await;
    tracing::info!(status, "agent ends");
    // A status has eight bits, whatever Envoy's was made of.
    Ok(ExitCode::from(u8::try_from(status & 0xff).expect("eight bits fit")))
}

fn write_files(envoy: Option<&Envoy>, grpc_bootstrap: Option<&GrpcBootstrap>) -> anyhow::Result<()> {
    if let Some(grpc) = grpc_bootstrap {
        grpc.write().context("GRPC_XDS_BOOTSTRAP can name another file for clients of gRPC, or none")?;
    }
    if let Some((envoy, text)) = envoy.and_then(|envoy| Some((envoy, envoy.bootstrap.as_ref()?))) {
        bootstrap::write_text(&envoy.file, text)
            .context("configPath in PROXY_CONFIG can name another place for the proxy's files")?;
    }
    Ok(())
}

/// How an Envoy would be started with what the files say by then.
fn plan(args: &ProxyArgs, format: LogFormat, around: &Surroundings) -> run::Plan {
    let (args, env) = (args.clone(), around.env.clone());
    Arc::new(move || {
        let around = Surroundings::read(env.clone(), Path::new(POD_DIRECTORY))?;
        setup::prepare(&args, format, &around)?.envoy.context("there is no Envoy")
    })
}

/// Has certificates made and served to Envoy. More roots of the mesh can be told.
fn certify(
    servers: &mut Servers,
    (settings, authority): (identity::Settings, Option<Upstream>),
    place: &Place,
    metrics: &Arc<Metrics>,
) -> watch::Sender<Vec<String>> {
    let (sender, roots) = watch::channel(Vec::new());
    let secrets = Arc::new(Secrets::new(&settings, Arc::clone(metrics)));
    match Socket::bind(place.path(), SECRETS_ADVICE) {
        Ok(socket) => spawn(servers, sds::serve(socket, Arc::clone(&secrets))),
        // A proxy without mutual TLS works without it.
        Err(error) => tracing::error!("no secrets for Envoy: {:#}", anyhow::Error::from(error)),
    }
    spawn(servers, identity::run(settings, authority, secrets, roots, Arc::clone(metrics)));
    sender
}

/// What serves until the agent ends.
fn spawn(servers: &mut Servers, served: impl Future<Output = ()> + Send + 'static) {
    servers.spawn(async {
        served.await;
        Ok(())
    });
}
