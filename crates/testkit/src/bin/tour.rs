//! `tour [--once]`: the first thing a newcomer sees. Starts Pilot on the sample, three tiny services and a real Envoy through
//! our agent, makes requests, and tells who answered. Without `--once` it stays and shows what an edit changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use pilot_testkit::backend::Backends;
use pilot_testkit::http_call;
use pilot_testkit::process::{Process, free_address};
use pilot_testkit::scenario::{Backend, Call};
use pilot_testkit::tools::Tools;
use serde_json::json;
use tokio::process::Command;

const SAMPLE: &str = "samples/bookinfo";
const URL: &str = "http://reviews.bookinfo.example:9080/reviews/7";
const REQUESTS: u32 = 20;

#[tokio::main]
async fn main() -> ExitCode {
    match tour(std::env::args().any(|arg| arg == "--once")).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::fn_params_excessive_bools, reason = "the one switch of the command line")]
async fn tour(once: bool) -> anyhow::Result<ExitCode> {
    let tools = Tools::of_environment();
    let scratch = tempfile::tempdir()?;
    let _backends =
        Backends::start(&backends()?, None).await.context("the sample's services cannot be started")?;
    println!("started  three services: reviews v1, v2, v3 on 127.0.2.1, 127.0.2.2, 127.0.2.3, port 9080");
    let addresses = Addresses::free()?;
    let mut pilot = start_pilot(scratch.path(), &addresses, &tools)?;
    pilot.until_ok(addresses.http, "/ready").await?;
    println!(
        "started  pilot-discovery on {SAMPLE}/config: xDS on {}, metrics on http://{}/metrics",
        addresses.grpc, addresses.monitoring
    );
    let mut agent = start_agent(scratch.path(), &addresses, &tools)?;
    let is_served =
        || async { http_call::make(&call(None), None).await.is_ok_and(|seen| seen.from.is_some()) };
    agent.until("Envoy serves the sample", is_served).await?;
    println!(
        "started  pilot-agent and Envoy: it listens on 127.0.0.1:9080, its administration is on http://{}",
        addresses.admin
    );
    println!();

    let jason = answers(Some("jason")).await?;
    let others = answers(None).await?;
    println!("{REQUESTS} requests with the header  end-user: jason  were answered by  {}", told(&jason));
    println!("{REQUESTS} requests without it                       were answered by  {}", told(&others));
    let only = |version: &str| BTreeMap::from([(version.to_owned(), REQUESTS)]);
    if once {
        let right = jason == only("v2") && others == only("v3");
        println!(
            "{}",
            if right {
                "as the sample's rules say: v2 and v3"
            } else {
                "NOT as the sample's rules say: v2 and v3"
            }
        );
        return Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    println!();
    println!("Now change the weights in {SAMPLE}/config/rules.yaml and save: the answers change at once.");
    println!(
        "Or try: curl -H 'Host: reviews.bookinfo.example:9080' -H 'end-user: jason' http://127.0.0.1:9080/"
    );
    println!("Ctrl-C ends everything.");
    tokio::select! {
        changed = show_changes(others) => changed?,
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    Ok(ExitCode::SUCCESS)
}

fn backends() -> anyhow::Result<BTreeMap<String, Backend>> {
    let one = |number: u8| {
        let backend = serde_json::from_value(json!({"at": format!("127.0.2.{number}:9080")}))?;
        Ok((format!("v{number}"), backend))
    };
    (1..=3).map(one).collect()
}

struct Addresses {
    grpc: SocketAddr,
    http: SocketAddr,
    monitoring: SocketAddr,
    admin: SocketAddr,
}

impl Addresses {
    fn free() -> anyhow::Result<Self> {
        if std::net::TcpListener::bind("127.0.0.1:9080").is_err() {
            bail!(
                "something already listens on 127.0.0.1:9080, which the sample's Envoy needs; stop it and try again"
            );
        }
        Ok(Self {
            grpc: free_address()?,
            http: free_address()?,
            monitoring: free_address()?,
            admin: free_address()?,
        })
    }
}

fn start_pilot(scratch: &Path, addresses: &Addresses, tools: &Tools) -> anyhow::Result<Process> {
    let mut command = Command::new(tools.own("pilot-discovery")?);
    command
        .env("PILOT_ENABLE_ALPN_FILTER", "false")
        .env("PILOT_ENABLE_METADATA_EXCHANGE", "false")
        .args(["discovery", "--registries=File", "--httpsAddr=", "--secureGRPCAddr="])
        .arg(format!("--configDir={SAMPLE}/config"))
        .arg(format!("--meshConfig={SAMPLE}/mesh.yaml"))
        .arg(format!("--grpcAddr={}", addresses.grpc))
        .arg(format!("--httpAddr={}", addresses.http))
        .arg(format!("--monitoringAddr={}", addresses.monitoring));
    Process::start("pilot-discovery", scratch, &mut command)
}

fn start_agent(scratch: &Path, addresses: &Addresses, tools: &Tools) -> anyhow::Result<Process> {
    let proxy_config = json!({
        "binaryPath": tools.envoy()?,
        "configPath": scratch.join("proxy"),
        "discoveryAddress": addresses.grpc.to_string(),
        "proxyAdminPort": addresses.admin.port(),
        "statusPort": 0,
        "concurrency": 1,
        "terminationDrainDuration": "0s",
        "controlPlaneAuthPolicy": "NONE",
    });
    let mut command = Command::new(tools.own("pilot-agent")?);
    command
        .current_dir(scratch)
        .env("PROXY_CONFIG", proxy_config.to_string())
        .env("POD_NAME", "productpage")
        .env("POD_NAMESPACE", "default")
        .env("INSTANCE_IP", "127.0.0.1")
        // Nothing redirects traffic to Envoy here: it listens where the services would.
        .env("ISTIO_META_INTERCEPTION_MODE", "NONE")
        .env("ENVOY_STATUS_PORT", "0")
        .env("ENVOY_PROMETHEUS_PORT", "0")
        .args(["proxy", "sidecar", "--domain=default.svc.cluster.local"]);
    Process::start("pilot-agent", scratch, &mut command)
}

fn call(user: Option<&str>) -> Call {
    let headers: BTreeMap<&str, &str> = user.map(|user| ("end-user", user)).into_iter().collect();
    serde_json::from_value(json!({"get": URL, "headers": headers})).expect("the call is well formed")
}

/// Who answered how many of some requests.
async fn answers(user: Option<&str>) -> anyhow::Result<BTreeMap<String, u32>> {
    let mut counts = BTreeMap::new();
    for _ in 0..REQUESTS {
        let seen = http_call::make(&call(user), None).await?;
        let who = seen.from.unwrap_or_else(|| format!("nobody (status {})", seen.status));
        *counts.entry(who).or_insert(0) += 1;
    }
    Ok(counts)
}

fn told(counts: &BTreeMap<String, u32>) -> String {
    counts.iter().map(|(who, times)| format!("{who} ({times}×)")).collect::<Vec<_>>().join(", ")
}

/// Goes on asking, and tells when the mix of answers is another one.
async fn show_changes(mut known: BTreeMap<String, u32>) -> anyhow::Result<()> {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = answers(None).await?;
        let differs = |who: &String| {
            let count = |counts: &BTreeMap<String, u32>| counts.get(who).copied().unwrap_or(0);
            count(&now).abs_diff(count(&known)) > REQUESTS / 3
        };
        if !now.keys().eq(known.keys()) || now.keys().any(differs) {
            println!("without the header: {}", told(&now));
            known = now;
        }
    }
}
