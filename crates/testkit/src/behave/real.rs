//! A real Envoy, started by our agent, fed by our server or by a real istiod.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use crate::backend::Backends;
use crate::behave::kube::Cluster;
use crate::behave::{compare_issues, mesh_config};
use crate::certificates::{self, Certificates};
use crate::expect::{Precision, Seen, compare};
use crate::http_call;
use crate::objects::Objects;
use crate::process::{Process, free_address};
use crate::scenario::{Call, ClientKind, Scenario};
use crate::secrets::Secrets;
use crate::tools::Tools;

/// Who tells Envoy what to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Server {
    Pilot,
    /// Ours, which is told everything by an API server.
    PilotOnKube,
    Istiod,
}

/// Every step has a listener and a route of its own; when Envoy answers there, everything before it has arrived.
const MARKER: &str = "marker.behave.test";
const MARKER_HOST: &str = "*/marker.behave.test";

/// Every gateway has this label, by which it serves the marker too.
const MARKER_LABEL: [(&str, &str); 1] = [("behave", "marker")];

/// Scenarios have nothing there.
pub(super) const MARKER_NAMESPACE: &str = "behave";

fn marker_port(step: usize) -> usize {
    19_900 + step
}

/// How many updates of each type Envoy was sent.
const UPDATES: &str = "/stats?filter=update_attempt";

/// Longer than istiod waits for more changes before it pushes those it has (100 ms after each).
const ISTIOD_PAUSE: Duration = Duration::from_millis(800);

/// Copies are sent without waiting for them.
const MIRROR_PATIENCE: Duration = Duration::from_secs(10);

pub async fn run(scenario: &Scenario, server: Server, tools: &Tools) -> anyhow::Result<Vec<String>> {
    let scratch = tempfile::tempdir()?;
    let folder = Folder::new(scratch.path(), server)?;
    run_in(
        World { place: At::Folder(folder), client: scenario.client.kind, objects: Objects::default() },
        scenario,
        &scratch,
        (server, tools),
    )
    .await
}

/// The same with everything in an API server, which is as it was before when it is over.
pub async fn run_on(
    cluster: &mut Cluster,
    scenario: &Scenario,
    tools: &Tools,
) -> anyhow::Result<Vec<String>> {
    let scratch = tempfile::tempdir()?;
    std::fs::copy(cluster.kubeconfig(), scratch.path().join("kubeconfig"))?;
    let world =
        World { place: At::Cluster(cluster), client: scenario.client.kind, objects: Objects::default() };
    run_in(world, scenario, &scratch, (Server::PilotOnKube, tools)).await
}

async fn run_in(
    mut world: World<'_>,
    scenario: &Scenario,
    scratch: &TempDir,
    (server, tools): (Server, &Tools),
) -> anyhow::Result<Vec<String>> {
    let certs = scratch.path().join("certs");
    let certificates = Certificates::create(&certs)?;
    let _secrets = Secrets::serve(scratch.path(), &certs)?;
    let backends = Backends::start(&scenario.backends, Some(&certificates)).await?;
    let caller = Caller { backends: &backends, certificates: &certificates };
    let placed = |text: &str| text.replace(certificates::PLACE, &certs.display().to_string());
    std::fs::write(scratch.path().join("mesh.yaml"), mesh_config(scenario))?;
    world.objects.apply(&placed(&scenario.world));
    let mut plane = ControlPlane::new(server, scratch.path(), &scenario.env)?;
    world.write(0, None).await?;
    plane.start(world.folder().as_deref(), tools).await?;
    let admin = free_address()?;
    let mut envoy = start_envoy(scenario, scratch.path(), Addresses { grpc: plane.grpc, admin }, tools)?;

    let mut wrong = Vec::new();
    for (number, step) in (1..).zip(&scenario.steps) {
        world.objects.apply(&placed(&step.apply));
        for what in &step.remove {
            world.objects.remove(what)?;
        }
        if step.restart {
            let before = modified(admin).await?;
            plane.start(world.folder().as_deref(), tools).await?;
            world.write(number, Some(plane.http)).await?;
            arrived(&mut envoy, admin, number).await?;
            plane.settled(admin).await?;
            let after = modified(admin).await?;
            if before != after {
                wrong.push(format!(
                    "step {number}: the new server says something else: {before}, then {after}"
                ));
            }
        }
        world.write(number, Some(plane.http)).await?;
        arrived(&mut envoy, admin, number).await?;
        plane.settled(admin).await?;
        for (call_number, call) in (1..).zip(&step.calls) {
            let found = caller.call(call).await?;
            wrong.extend(found.into_iter().map(|f| format!("step {number}, call {call_number}: {f}")));
        }
    }
    if server != Server::Istiod {
        wrong.extend(compare_issues(&scenario.issues, &issues(plane.http).await?));
    }
    if !wrong.is_empty() {
        wrong.push(format!("Envoy printed:\n{}", warnings(&envoy.output())));
    }
    Ok(wrong)
}

/// The objects of a scenario, where the server finds them.
struct World<'a> {
    place: At<'a>,
    client: ClientKind,
    objects: Objects,
}

enum At<'a> {
    Folder(Folder),
    Cluster(&'a mut Cluster),
}

impl World<'_> {
    /// The folder that the server follows, if it follows one.
    fn folder(&self) -> Option<PathBuf> {
        match &self.place {
            At::Folder(folder) => Some(folder.path.clone()),
            At::Cluster(_) => None,
        }
    }

    /// Makes everything there as it is now, and the marker of a step last. Who asks a cluster must have seen the rest before.
    async fn write(&mut self, step: usize, seen_by: Option<SocketAddr>) -> anyhow::Result<()> {
        self.objects.widen_sidecars(MARKER_HOST);
        let mut files = self.objects.files().clone();
        let marker = marker(step, self.client);
        match &mut self.place {
            At::Folder(folder) => {
                // Written last, so that a server that reads file by file has read everything else before.
                let mut names: Vec<String> = files.keys().cloned().collect();
                names.push("zz-marker".to_owned());
                files.insert("zz-marker".to_owned(), marker);
                folder.write(&names, &files)
            }
            At::Cluster(cluster) => {
                cluster.write(&files).await?;
                if let Some(server) = seen_by {
                    cluster.until_seen(server).await?;
                }
                cluster.add(&marker).await
            }
        }
    }
}

/// The folder that the server follows.
struct Folder {
    path: PathBuf,
    /// Where Kubernetes' own objects go, if the server does not read them from files.
    kube: Option<PathBuf>,
}

impl Folder {
    fn new(scratch: &Path, server: Server) -> anyhow::Result<Self> {
        let path = scratch.join("config");
        let kube = (server == Server::Istiod).then(|| scratch.join("kube"));
        for folder in std::iter::once(&path).chain(&kube) {
            std::fs::create_dir(folder)?;
        }
        Ok(Self { path, kube })
    }

    fn place(&self, name: &str, text: &str) -> PathBuf {
        let folder = self.kube.as_ref().filter(|_| !text.contains("istio.io/"));
        folder.unwrap_or(&self.path).join(format!("{name}.yaml"))
    }

    fn write(&self, names: &[String], files: &BTreeMap<String, String>) -> anyhow::Result<()> {
        for folder in std::iter::once(&self.path).chain(&self.kube) {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                let stem =
                    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
                if !stem.starts_with('.') && !files.contains_key(&stem) {
                    std::fs::remove_file(path)?;
                }
            }
        }
        for name in names {
            let text = &files[name];
            let path = self.place(name, text);
            if std::fs::read_to_string(&path).is_ok_and(|old| old == *text) {
                continue;
            }
            let temporary = path.with_file_name(format!(".{name}.tmp"));
            std::fs::write(&temporary, text)?;
            std::fs::rename(temporary, path)?;
        }
        Ok(())
    }
}

fn marker(step: usize, client: ClientKind) -> String {
    let meta = json!({"name": "behave-marker", "namespace": MARKER_NAMESPACE});
    let entry = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry", "metadata": meta,
        "spec": {
            "hosts": [MARKER], "resolution": "STATIC", "exportTo": ["*"],
            "ports": [{"number": marker_port(step), "name": "http", "protocol": "HTTP"}],
            "endpoints": [{"address": "127.0.1.250"}],
        },
    });
    let service = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": meta,
        "spec": {
            "hosts": [MARKER],
            "gateways": ["mesh", "behave/behave-marker"],
            "exportTo": ["*"],
            "http": [{"directResponse": {"status": 200, "body": {"string": step.to_string()}}}],
        },
    });
    let gateway = json!({
        "apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": meta,
        "spec": {
            "selector": BTreeMap::from(MARKER_LABEL),
            "servers": [{
                "port": {"number": marker_port(step), "name": "http", "protocol": "HTTP"},
                "hosts": [MARKER],
            }],
        },
    });
    match client {
        ClientKind::Sidecar => format!("{entry}\n---\n{service}\n"),
        ClientKind::Router => format!("{entry}\n---\n{service}\n---\n{gateway}\n"),
    }
}

/// Routes come after clusters and listeners; but a new listener is not served before its own routes have come too.
async fn arrived(envoy: &mut Process, admin: SocketAddr, step: usize) -> anyhow::Result<()> {
    let call: Call =
        serde_json::from_value(json!({"get": format!("http://{MARKER}:{}/", marker_port(step))}))?;
    let has_arrived = || async {
        // A policy of the scenario may deny this call too; but only one that has arrived can.
        let marked = http_call::make(&call, None)
            .await
            .is_ok_and(|seen| seen.body == step.to_string() || seen.status == 403);
        marked
            && http_call::get(admin, "/stats?filter=warming").await.is_ok_and(|(_, text)| none_warming(&text))
    };
    envoy.until(&format!("step {step} arrives"), has_arrived).await
}

fn none_warming(stats: &str) -> bool {
    stats.lines().all(|line| line.ends_with(": 0"))
}

struct Caller<'a> {
    backends: &'a Backends,
    certificates: &'a Certificates,
}

impl Caller<'_> {
    async fn call(&self, call: &Call) -> anyhow::Result<Vec<String>> {
        let backends = self.backends;
        let before: Vec<(&String, u32)> =
            call.expect.reached.keys().map(|name| (name, backends.requests(name))).collect();
        let mut seen: Vec<Seen> = Vec::new();
        for _ in 0..call.times {
            seen.push(http_call::make(call, Some(self.certificates)).await?);
        }
        let mut wrong = compare(&call.expect, &seen, Precision::Counted(call.times));
        for (name, before) in before {
            let expected = call.expect.reached[name];
            let reached = || backends.requests(name) - before;
            let wait = async {
                while reached() < expected {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let _late = tokio::time::timeout(MIRROR_PATIENCE, wait).await;
            if reached() != expected {
                wrong.push(format!("reached: expected {name} {expected} times, saw {}", reached()));
            }
        }
        Ok(wrong)
    }
}

async fn issues(http: SocketAddr) -> anyhow::Result<Vec<String>> {
    let (_, body) = http_call::get(http, "/debug/issues").await?;
    let list: Vec<serde_json::Value> = serde_json::from_str(&body).context("/debug/issues")?;
    let text = |issue: &serde_json::Value| {
        let field = |name: &str| issue[name].as_str().unwrap_or_default().to_owned();
        let names = format!("{} {}/{}", field("kind"), field("namespace"), field("name"));
        format!("{}: {names}: {}: {}", field("place"), field("path"), field("message"))
    };
    Ok(list.iter().map(text).collect())
}

/// What Envoy complained about.
fn warnings(output: &str) -> String {
    let is_complaint = |line: &&str| {
        line.contains("][warning]") || line.contains("][error]") || line.contains("][critical]")
    };
    let lines: Vec<&str> = output.lines().filter(is_complaint).collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

/// How often Envoy was told something else about a cluster or a listener that it had.
async fn modified(admin: SocketAddr) -> anyhow::Result<String> {
    let (_, stats) = http_call::get(admin, "/stats?filter=(cluster|listener)_modified").await?;
    Ok(stats.lines().collect::<Vec<_>>().join(", "))
}

/// A server of either make, in plain text.
pub struct ControlPlane {
    server: Server,
    scratch: PathBuf,
    grpc: SocketAddr,
    http: SocketAddr,
    monitoring: SocketAddr,
    env: BTreeMap<String, String>,
    processes: Vec<Process>,
}

impl ControlPlane {
    pub fn new(server: Server, scratch: &Path, env: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let (grpc, http, monitoring) = (free_address()?, free_address()?, free_address()?);
        std::fs::create_dir_all(scratch.join("server/var/lib/istio/inject"))?;
        let (scratch, env) = (scratch.to_owned(), env.clone());
        Ok(Self { server, scratch, grpc, http, monitoring, env, processes: Vec::new() })
    }

    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Starts the server; one that runs is ended first, not gently.
    /// It follows a folder with rules, if there is one.
    pub async fn start(&mut self, config: Option<&Path>, tools: &Tools) -> anyhow::Result<()> {
        for mut old in self.processes.drain(..) {
            old.kill().await?;
        }
        let (program, registries) = match self.server {
            Server::Pilot => (tools.own("pilot-discovery")?, vec!["--registries=File".to_owned()]),
            Server::PilotOnKube => {
                let kubeconfig = self.scratch.join("kubeconfig");
                let flags =
                    ["--registries=Kubernetes".to_owned(), format!("--kubeconfig={}", kubeconfig.display())];
                (tools.own("pilot-discovery")?, flags.to_vec())
            }
            Server::Istiod => {
                let kubeconfig = self.start_stub(tools).await?;
                (
                    tools.istiod()?.to_owned(),
                    vec!["--registries=Kubernetes".to_owned(), format!("--kubeconfig={kubeconfig}")],
                )
            }
        };
        let mut command = Command::new(program);
        command
            .current_dir(self.scratch.join("server"))
            .env("POD_NAME", "pilot")
            .env("POD_NAMESPACE", "istio-system")
            .env("REVISION", "default")
            .env("CLUSTER_ID", "Kubernetes")
            .env("PILOT_ENABLE_ALPN_FILTER", "false")
            .env("PILOT_ENABLE_METADATA_EXCHANGE", "false")
            .envs(&self.env)
            .arg("discovery")
            .args(registries)
            .args(config.iter().map(|folder| format!("--configDir={}", folder.display())))
            .arg(format!("--meshConfig={}", self.scratch.join("mesh.yaml").display()))
            .arg(format!("--grpcAddr={}", self.grpc))
            .arg(format!("--httpAddr={}", self.http))
            .arg(format!("--monitoringAddr={}", self.monitoring))
            .args(["--secureGRPCAddr=", "--httpsAddr=", "--ctrlz_address=127.0.0.1", "--ctrlz_port=0"]);
        let mut process = Process::start("server", &self.scratch, &mut command)?;
        process.until_ok(self.http, "/ready").await?;
        let grpc = self.grpc;
        process
            .until("xDS is served", || async { tokio::net::TcpStream::connect(grpc).await.is_ok() })
            .await?;
        self.processes.push(process);
        Ok(())
    }

    /// istiod tells what one change led to in several pushes, and the marker may come with the first of them.
    async fn settled(&self, admin: SocketAddr) -> anyhow::Result<()> {
        let updates = || async { Ok::<_, anyhow::Error>(http_call::get(admin, UPDATES).await?.1) };
        if self.server == Server::Istiod {
            let (mut before, mut now) = (String::new(), updates().await?);
            while before != now {
                tokio::time::sleep(ISTIOD_PAUSE).await;
                (before, now) = (now, updates().await?);
            }
        }
        Ok(())
    }

    /// What istiod takes for Kubernetes.
    async fn start_stub(&mut self, tools: &Tools) -> anyhow::Result<String> {
        let kubeconfig = self.scratch.join("kubeconfig");
        let _first = std::fs::remove_file(&kubeconfig);
        let mut command = Command::new(tools.stub()?);
        command.arg("stub").arg("--kubeconfig").arg(&kubeconfig).arg(self.scratch.join("kube"));
        let mut stub = Process::start("stub", &self.scratch, &mut command)?;
        let is_written = || async { std::fs::metadata(&kubeconfig).is_ok_and(|m| m.len() > 0) };
        stub.until("it writes its kubeconfig", is_written).await?;
        self.processes.push(stub);
        Ok(kubeconfig.display().to_string())
    }
}

struct Addresses {
    grpc: SocketAddr,
    admin: SocketAddr,
}

fn start_envoy(
    scenario: &Scenario,
    scratch: &Path,
    Addresses { grpc, admin }: Addresses,
    tools: &Tools,
) -> anyhow::Result<Process> {
    let client = &scenario.client;
    let proxy_config = json!({
        "binaryPath": tools.envoy()?,
        "configPath": scratch.join("proxy"),
        "discoveryAddress": grpc.to_string(),
        "proxyAdminPort": admin.port(),
        "statusPort": 0,
        "concurrency": 1,
        "terminationDrainDuration": "0s",
        "controlPlaneAuthPolicy": "NONE",
    });
    let mut labels = client.labels.clone();
    if !client.locality.is_empty() {
        labels.insert("istio-locality".to_owned(), client.locality.replace('/', "."));
    }
    let role = match client.kind {
        ClientKind::Sidecar => "sidecar",
        ClientKind::Router => "router",
    };
    if client.kind == ClientKind::Router {
        labels.extend(MARKER_LABEL.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
    let mut command = Command::new(tools.own("pilot-agent")?);
    command
        .current_dir(scratch)
        .env("PROXY_CONFIG", proxy_config.to_string())
        .env("POD_NAME", "client")
        .env("POD_NAMESPACE", &client.namespace)
        .env("INSTANCE_IP", "127.0.0.1")
        .env("ISTIO_META_INTERCEPTION_MODE", "NONE")
        .env("ISTIO_META_CLUSTER_ID", "Kubernetes")
        .env("ISTIO_METAJSON_LABELS", json!(labels).to_string())
        .env("ENVOY_STATUS_PORT", "0")
        .env("ENVOY_PROMETHEUS_PORT", "0")
        .args(["proxy", role, "--restartEnvoy=false"])
        .arg(format!("--domain={}.svc.cluster.local", client.namespace))
        .arg(format!("--meshConfig={}", scratch.join("mesh.yaml").display()));
    Process::start("envoy", scratch, &mut command)
}
