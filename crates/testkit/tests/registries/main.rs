//! One service in all registries, split by one rule, on a real Envoy, while its instances come and go.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod ctl;
mod freshness;
mod identity;
mod secrets;
mod servers;
mod stores;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pilot_testkit::backend::Backends;
use pilot_testkit::http_call;
use pilot_testkit::process::{Process, free_address};
use pilot_testkit::scenario::{Backend, Call};
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;

use servers::{NAME, Nomad, Registry, Reviews, SERVICE_PORT, Servers, programs};

const HOST: &str = "reviews.mesh.test";

/// One rule that splits between versions. Those that stand under a name of DNS have none, and are a host.
fn rules(versions: &[(Registry, &str)]) -> String {
    let of_labels = versions.iter().filter(|(registry, _)| *registry != Registry::Dns);
    let label = |registry: Registry| if registry == Registry::CloudFoundry { "cfapp" } else { "version" };
    let subset = |(registry, version): &(Registry, &str)| {
        format!("  - {{name: {version}, labels: {{{}: {version}}}}}\n", label(*registry))
    };
    let route = |(registry, version): &(Registry, &str)| match registry {
        Registry::Dns => "    - {destination: {host: legacy.mesh.test}, weight: 10}\n".to_owned(),
        _ => format!("    - {{destination: {{host: {HOST}, subset: {version}}}, weight: 10}}\n"),
    };
    format!(
        "apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: reviews, namespace: default}}
spec:
  host: {HOST}
  subsets:
{}---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: reviews, namespace: default}}
spec:
  hosts: [{HOST}]
  http:
  - retries: {{attempts: 0}}
    route:
{}",
        of_labels.map(subset).collect::<String>(),
        versions.iter().map(route).collect::<String>()
    )
}

/// All registries, each of which has a version of its own. Nomad is not always there.
fn versions(nomad: Option<&Nomad>) -> Vec<(Registry, &'static str)> {
    let all = [
        (Registry::Consul, "v1"),
        (Registry::Eureka, "v2"),
        (Registry::ZooKeeper, "v3"),
        (Registry::Memory, "v4"),
        (Registry::CloudFoundry, "v5"),
        (Registry::Marathon, "v6"),
        (Registry::Dns, "v7"),
    ];
    all.into_iter().chain(nomad.map(|_| (Registry::Nomad, "v8"))).collect()
}

/// Three instances of each version: two serve at any time, the third comes and another one goes.
fn reviews(versions: &[(Registry, &'static str)]) -> Vec<Reviews> {
    let instance = |(place, (registry, version)): (u8, (Registry, &'static str)), number: u8| Reviews {
        registry,
        id: format!("reviews-{version}-{number}"),
        at: SocketAddr::from(([127, 0, 1, 100 + 10 * place + number], 18_480)),
        version,
        // Nobody has a certificate.
        account: "",
    };
    let versions = (0..).zip(versions.iter().copied());
    versions.flat_map(|version| (0..3).map(move |number| instance(version, number))).collect()
}

fn start_agent(
    scratch: &Path,
    server: &PilotServer,
    admin: SocketAddr,
    tools: &Tools,
) -> anyhow::Result<Process> {
    let proxy_config = json!({
        "binaryPath": tools.envoy()?,
        "configPath": scratch.join("proxy"),
        "discoveryAddress": server.grpc.to_string(),
        "controlPlaneAuthPolicy": "NONE",
        "proxyAdminPort": admin.port(),
        "statusPort": 0,
        "concurrency": 1,
        "terminationDrainDuration": "0s",
    });
    let mut command = Command::new(tools.own("pilot-agent")?);
    command
        .current_dir(scratch)
        .env("PROXY_CONFIG", proxy_config.to_string())
        .env("POD_NAME", "productpage")
        .env("POD_NAMESPACE", "default")
        .env("INSTANCE_IP", "127.0.0.1")
        .env("ISTIO_META_INTERCEPTION_MODE", "NONE")
        .env("ENVOY_STATUS_PORT", "0")
        .env("ENVOY_PROMETHEUS_PORT", "0")
        .args(["proxy", "sidecar", "--domain=default.svc.cluster.local"]);
    Process::start("pilot-agent", scratch, &mut command)
}

fn call() -> Call {
    serde_json::from_value(json!({"get": format!("http://{HOST}:{SERVICE_PORT}/")})).unwrap()
}

/// Who answered how often, and how often nobody did.
#[derive(Default, Debug)]
struct Tally {
    answers: BTreeMap<String, u32>,
    failures: Vec<String>,
}

async fn keep_calling(stop: Arc<AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    while !stop.load(Ordering::Relaxed) {
        match http_call::make(&call(), None).await {
            Ok(seen) if seen.status == 200 => {
                *tally.answers.entry(seen.from.unwrap_or_default()).or_default() += 1;
            }
            Ok(seen) => tally.failures.push(format!("status {}", seen.status)),
            Err(error) => tally.failures.push(error.to_string()),
        }
    }
    tally
}

/// How often each version answered; nobody may have failed to.
async fn tallied(mut callers: JoinSet<Tally>) -> BTreeMap<String, u32> {
    let (mut total, mut by_version) = (0, BTreeMap::new());
    while let Some(tally) = callers.join_next().await {
        let Tally { answers, failures } = tally.unwrap();
        assert_eq!(failures, Vec::<String>::new(), "no request fails while instances come and go");
        for (from, count) in answers {
            total += count;
            let version =
                from.trim_start_matches("reviews-").split('-').next().unwrap_or_default().to_owned();
            *by_version.entry(version).or_insert(0) += count;
        }
    }
    println!("{total} requests, 0 failures: {by_version:?}");
    by_version
}

/// Does Envoy have an instance?
async fn envoy_has(admin: SocketAddr, at: SocketAddr) -> bool {
    let page = http_call::get(admin, "/clusters").await;
    page.is_ok_and(|(_, body)| body.contains(&format!("::{at}::")))
}

/// How long it takes from the registry to Envoy.
#[allow(clippy::disallowed_methods, reason = "a measurement, of which nothing depends")]
async fn until_envoy(agent: &mut Process, admin: SocketAddr, (at, is_there): (SocketAddr, bool)) -> Duration {
    let began = std::time::Instant::now();
    let arrived = || async { envoy_has(admin, at).await == is_there };
    agent.until("Envoy has what the registry has", arrived).await.unwrap();
    began.elapsed()
}

/// All registries, as a server is told of them.
fn flags(scratch: &Path, servers: &Servers) -> Vec<String> {
    let mut flags = vec![
        "--registryDomain=mesh.test".to_owned(),
        format!("--registryServicePort={SERVICE_PORT}"),
        format!("--meshConfig={}", scratch.join("mesh.yaml").display()),
        format!("--consulserverURL=http://{}", servers.consul),
        format!("--eurekaserverURL=http://{}/eureka", servers.eureka),
        "--eurekaserverInterval=100ms".to_owned(),
        format!("--zookeeperserverURL={}", servers.zookeeper),
        format!("--cfConfig={}", scratch.join("cf.yaml").display()),
        format!("--memoryAddr={}", servers.memory),
        format!("--marathonserverURL=http://{}", servers.told.marathon_at),
        format!("--dnsserver={}", servers.told.nameserver_at),
        format!("--dnsNames={NAME}"),
    ];
    let mut registries = "--registries=Consul,Eureka,ZooKeeper,CloudFoundry,Memory,Marathon,DNS".to_owned();
    if let Some(nomad) = &servers.nomad {
        flags.push(format!("--nomadserverURL=http://{}", nomad.address));
        registries += ",Nomad";
    }
    flags.push(registries);
    flags
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_rule_splits_a_service_of_all_registries() {
    let tools = Tools::of_environment();
    if let Some(why) = tools.why_skip_envoy() {
        println!("skipped: {why}");
        return;
    }
    let Some(programs) = programs() else {
        println!("skipped: `make components` gets Consul, Eureka and ZooKeeper");
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let mut servers = Servers::start(scratch.path(), programs, &tools).await.unwrap();
    let versions = versions(servers.nomad.as_ref());
    let all = reviews(&versions);
    let backend = |one: &Reviews| -> (String, Backend) {
        (one.id.clone(), serde_json::from_value(json!({"at": one.at.to_string()})).unwrap())
    };
    let _backends = Backends::start(&all.iter().map(backend).collect(), None).await.unwrap();
    let first: Vec<&Reviews> = all.iter().filter(|one| !one.id.ends_with("-2")).collect();
    // What Pilot itself keeps can be told when Pilot is there.
    let is_own = |one: &&&Reviews| one.registry == Registry::Memory;
    for one in first.iter().filter(|one| !is_own(one)) {
        servers.register(one).await.unwrap();
    }
    std::fs::create_dir(scratch.path().join("config")).unwrap();
    // Nobody signs certificates here.
    std::fs::write(scratch.path().join("mesh.yaml"), "enableAutoMtls: false\n").unwrap();
    std::fs::write(scratch.path().join("config/rules.yaml"), rules(&versions)).unwrap();
    let flags = flags(scratch.path(), &servers);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let env = [("PILOT_ENABLE_ALPN_FILTER", "false"), ("PILOT_ENABLE_METADATA_EXCHANGE", "false")];
    let server = PilotServer::start_in(scratch.path(), &flags, &env).await.unwrap();
    for one in first.iter().filter(is_own) {
        servers.register(one).await.unwrap();
    }
    let admin = free_address().unwrap();
    let mut agent = start_agent(scratch.path(), &server, admin, &tools).unwrap();
    for one in &first {
        until_envoy(&mut agent, admin, (one.at, true)).await;
    }
    let answers = || async { http_call::make(&call(), None).await.is_ok_and(|seen| seen.status == 200) };
    agent.until("Envoy answers", answers).await.unwrap();

    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..2 {
        callers.spawn(keep_calling(Arc::clone(&stop)));
    }
    let mut spans: BTreeMap<Registry, Vec<Duration>> = BTreeMap::new();
    for round in 0..5_usize {
        for version in all.chunks(3) {
            // The one that is out comes in, and then another one goes out.
            let (comes, goes) = (&version[(round + 2) % 3], &version[round % 3]);
            servers.register(comes).await.unwrap();
            let span = until_envoy(&mut agent, admin, (comes.at, true)).await;
            spans.entry(comes.registry).or_default().push(span);
            servers.deregister(goes).await.unwrap();
            until_envoy(&mut agent, admin, (goes.at, false)).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let by_version = tallied(callers).await;
    for (registry, mut spans) in spans {
        spans.sort();
        println!(
            "{registry:?}: from the registry to Envoy in {:?} (median), {:?} (longest)",
            spans[2], spans[4]
        );
    }
    let expected: Vec<&str> = versions.iter().map(|(_, version)| *version).collect();
    assert_eq!(by_version.keys().map(String::as_str).collect::<Vec<_>>(), expected);
    seen_by_people(&server, &tools, &versions).await;
}

/// What `pilotctl registry` and the pages show.
async fn seen_by_people(server: &PilotServer, tools: &Tools, versions: &[(Registry, &str)]) {
    let (_, body) = http_call::get(server.monitoring, "/debug/registry/endpoints").await.unwrap();
    let endpoints: Vec<Value> = serde_json::from_str(&body).unwrap();
    assert_eq!(endpoints.len(), 2 * versions.len(), "{body}");
    let address = server.monitoring.to_string();
    let mut command = Command::new(tools.own("pilotctl").unwrap());
    let shown = command.args(["registry", "sources", "--address", &address]).output().await.unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    println!("{shown}");
    for (registry, _) in versions {
        let source = format!("{registry:?}").to_ascii_lowercase();
        let line = shown.lines().find(|line| line.starts_with(&source));
        let words: Vec<&str> = line.into_iter().flat_map(str::split_whitespace).collect();
        // Each instance is an app of its own there.
        let services = if *registry == Registry::Marathon { "2" } else { "1" };
        assert_eq!(words.get(1..4), Some(&["ok", services, "2"][..]), "{shown}");
    }
    let (_, metrics) = http_call::get(server.monitoring, "/metrics").await.unwrap();
    assert!(metrics.contains("pilot_source_up{source=\"zookeeper\"} 1"), "{metrics}");
    assert!(metrics.contains("pilot_source_last_heard_seconds{source=\"eureka\"}"), "{metrics}");
}
