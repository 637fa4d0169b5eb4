//! A real gRPC client, which is its own proxy, goes where Pilot tells it to.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use pilot_testkit::agent::{PilotAgent, Place};
use pilot_testkit::process::free_address;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

type Counts = BTreeMap<String, u32>;

struct Client {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Client {
    /// `bootstrap` is JSON.
    fn start(library: &Path, bootstrap: &str, backends: &[(&str, SocketAddr)]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/grpc/balance.py");
        let mut command = Command::new("python3");
        command.arg(script).arg("xds:///echo.example:80");
        command.args(backends.iter().map(|(name, address)| format!("{name}={address}")));
        command.env("PYTHONPATH", library).env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { input, output, _process: process }
    }

    /// How often which server answered.
    async fn calls(&mut self, times: u32) -> Counts {
        self.input.write_all(format!("{times}\n").as_bytes()).await.unwrap();
        let line = tokio::time::timeout(Duration::from_secs(60), self.output.next_line()).await.unwrap();
        serde_json::from_str(&line.unwrap().unwrap()).unwrap()
    }

    /// The counts once they are as expected, or the last ones.
    async fn calls_until(&mut self, times: u32, is_expected: impl Fn(&Counts) -> bool) -> Counts {
        for _ in 0..50 {
            let counts = self.calls(times).await;
            if is_expected(&counts) {
                return counts;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.calls(times).await
    }
}

/// Straight to a server.
fn bootstrap(server: SocketAddr) -> String {
    let bootstrap = json!({
        "xds_servers": [{
            "server_uri": server.to_string(),
            "channel_creds": [{"type": "insecure"}],
            "server_features": ["xds_v3"],
        }],
        "node": {
            "id": "sidecar~127.0.0.1~client.default~default.svc.cluster.local",
            "metadata": {"GENERATOR": "grpc", "NAMESPACE": "default", "CLUSTER_ID": "Kubernetes"},
        },
    });
    bootstrap.to_string()
}

fn entry(endpoints: &[(&str, SocketAddr)]) -> String {
    let endpoint = |(name, address): &(&str, SocketAddr)| {
        format!(
            "{{address: {}, ports: {{grpc: {}}}, labels: {{version: {name}}}}}",
            address.ip(),
            address.port()
        )
    };
    let endpoints: Vec<String> = endpoints.iter().map(endpoint).collect();
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: echo, namespace: default}}\n\
         spec:\n  hosts: [echo.example]\n  resolution: STATIC\n  location: MESH_INTERNAL\n  \
         ports: [{{number: 80, name: grpc, protocol: GRPC}}]\n  endpoints: [{}]\n",
        endpoints.join(", ")
    )
}

const SUBSETS: &str = "apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: echo, namespace: default}
spec:
  host: echo.example
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
";

fn weights(v1: u32, v2: u32) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: echo, namespace: default}}\n\
         spec:\n  hosts: [echo.example]\n  http:\n  - route:\n    \
         - {{destination: {{host: echo.example, subset: v1}}, weight: {v1}}}\n    \
         - {{destination: {{host: echo.example, subset: v2}}, weight: {v2}}}\n"
    )
}

#[tokio::test]
async fn a_grpc_client_balances_and_splits_as_it_is_told() {
    let tools = Tools::of_environment();
    if let Some(why) = tools.why_skip_grpc() {
        eprintln!("skipped: {why}");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let server = PilotServer::start(scratch.path(), &[]).await.unwrap();
    let write = |name: &str, text: &str| std::fs::write(server.config.join(name), text).unwrap();
    let backends = [("v1", free_address().unwrap()), ("v2", free_address().unwrap())];
    write("echo.yaml", &entry(&backends));
    let mut client = Client::start(tools.grpc().unwrap(), &bootstrap(server.grpc), &backends);

    let of = |counts: &Counts, name: &str| counts.get(name).copied().unwrap_or(0);
    let balanced = client.calls_until(40, |counts| of(counts, "v1") == 20 && of(counts, "v2") == 20).await;
    assert_eq!((of(&balanced, "v1"), of(&balanced, "v2")), (20, 20), "endpoints take turns: {balanced:?}");

    write("subsets.yaml", SUBSETS);
    write("weights.yaml", &weights(0, 100));
    let all = client.calls_until(20, |counts| of(counts, "v2") == 20).await;
    assert_eq!(of(&all, "v2"), 20, "{all:?}");

    write("weights.yaml", &weights(75, 25));
    let split = client.calls_until(400, |counts| (250..350).contains(&of(counts, "v1"))).await;
    assert!((250..350).contains(&of(&split, "v1")), "three of four go to v1: {split:?}");
    assert_eq!(of(&split, "v1") + of(&split, "v2"), 400, "and nothing is lost: {split:?}");

    std::fs::remove_file(server.config.join("weights.yaml")).unwrap();
    write("echo.yaml", &entry(&backends[..1]));
    let one = client.calls_until(20, |counts| of(counts, "v1") == 20).await;
    assert_eq!(of(&one, "v1"), 20, "an endpoint that is gone is not called: {one:?}");
}

#[tokio::test]
async fn a_grpc_client_and_an_envoy_share_an_agent() {
    let tools = Tools::of_environment();
    if let Some(why) = tools.why_skip_grpc().or_else(|| tools.why_skip_envoy()) {
        eprintln!("skipped: {why}");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let filters = [("PILOT_ENABLE_ALPN_FILTER", "false"), ("PILOT_ENABLE_METADATA_EXCHANGE", "false")];
    // Envoy would wait for a certificate otherwise, and this is not about those.
    let mesh = scratch.path().join("mesh.yaml");
    std::fs::write(&mesh, "enableAutoMtls: false\n").unwrap();
    let flag = format!("--meshConfig={}", mesh.display());
    let server = PilotServer::start_in(scratch.path(), &[&flag], &filters).await.unwrap();
    let backends = [("v1", free_address().unwrap()), ("v2", free_address().unwrap())];
    std::fs::write(server.config.join("echo.yaml"), entry(&backends)).unwrap();
    let mut agent = PilotAgent::start(&Place::new("client", server.grpc).plain(), &tools).unwrap();
    agent.ready().await.unwrap();

    // The file that the agent writes for such clients, with its socket.
    let file = agent.file("etc/istio/proxy/grpc-bootstrap.json");
    let bootstrap = std::fs::read_to_string(&file).unwrap();
    let mut client = Client::start(tools.grpc().unwrap(), &bootstrap, &backends);
    let both = |counts: &Counts| counts.get("v1") == Some(&20) && counts.get("v2") == Some(&20);
    let counts = client.calls_until(40, both).await;
    assert!(both(&counts), "endpoints take turns: {counts:?}\n{bootstrap}\n{}", agent.process.output());
}
