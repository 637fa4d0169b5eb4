//! A real gRPC client, which is its own proxy, goes where Pilot tells it to.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

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
    fn start(library: &Path, server: SocketAddr, backends: &[(&str, SocketAddr)]) -> Self {
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
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/grpc/balance.py");
        let mut command = Command::new("python3");
        command.arg(script).arg("xds:///echo.example:80");
        command.args(backends.iter().map(|(name, address)| format!("{name}={address}")));
        command.env("PYTHONPATH", library).env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap.to_string());
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
    let mut client = Client::start(tools.grpc().unwrap(), server.grpc, &backends);

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
