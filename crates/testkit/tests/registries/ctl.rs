//! What `pilotctl registry` shows, also while a server comes and goes.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use http::Method;
use pilot_source_http::{Client, ClientOptions, ServerAddress};
use pilot_testkit::process::free_address;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStdout, Command};

fn command(monitoring: SocketAddr, words: &[&str]) -> Command {
    let mut command = Command::new(Tools::of_environment().own("pilotctl").unwrap());
    command.arg("registry").args(words).args(["--address", &monitoring.to_string()]);
    command
}

async fn shown(monitoring: SocketAddr, words: &[&str]) -> Vec<String> {
    let output = command(monitoring, words).output().await.unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Reads on until something has been shown since the last time.
async fn reads(out: &mut ChildStdout, what: &str) {
    let mut seen = String::new();
    let reading = async {
        let mut bytes = [0; 4096];
        while !seen.contains(what) {
            let read = out.read(&mut bytes).await.unwrap();
            assert!(read > 0, "it has ended after {seen}");
            seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), reading).await.is_ok(), "{what} is not in {seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_registries_have_is_shown_again_and_again_whatever_becomes_of_the_server() {
    let scratch = tempfile::tempdir().unwrap();
    let (memory, monitoring) = (free_address().unwrap(), free_address().unwrap());
    let flags = [
        "--registries=Memory".to_owned(),
        format!("--memoryAddr={memory}"),
        format!("--memoryFile={}", scratch.path().join("memory.json").display()),
        format!("--monitoringAddr={monitoring}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut server = PilotServer::start_in(scratch.path(), &flags, &[]).await.unwrap();
    let client = Client::new(ClientOptions::new(vec![ServerAddress::parse(&memory.to_string()).unwrap()]));
    let body = json!({"address": "10.0.0.1", "ports": [{"number": 8080, "protocol": "http"}], "metadata": {"version": "v1"}}).to_string();
    let path = "/v1/services/shop/instances/1";
    client.unwrap().ask(Method::PUT, path, body.into(), Duration::ZERO).await.unwrap().ok().unwrap();
    let is_known = || async { shown(monitoring, &["services"]).await.len() == 2 };
    server.process.until("the service is known", is_known).await.unwrap();
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        words(&shown(monitoring, &["services"]).await[1]),
        ["memory", "shop.service.mesh", "8080/HTTP", "1"]
    );
    let endpoint = words(&shown(monitoring, &["endpoints", "--host", "shop.service.mesh"]).await[1]);
    assert_eq!(endpoint, ["memory", "shop.service.mesh", "10.0.0.1", "port-8080:8080", "version=v1"]);
    let source = words(&shown(monitoring, &["sources", "--source", "memory"]).await[1]);
    assert_eq!(source[..4], ["memory", "ok", "1", "1"]);
    assert!(shown(monitoring, &["sources"]).await.len() > 2, "files are a source too");
    for what in ["sources", "services", "endpoints"] {
        assert_eq!(shown(monitoring, &[what, "--source", "nobody"]).await.len(), 1, "{what}: the title");
    }

    let mut watching = command(monitoring, &["services", "--watch"]);
    let mut watching = watching.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut out = watching.stdout.take().unwrap();
    reads(&mut out, "shop.service.mesh").await;
    let is_kept = || async {
        let kept = std::fs::read_to_string(scratch.path().join("memory.json"));
        kept.is_ok_and(|text| text.contains("10.0.0.1"))
    };
    server.process.until("the service is kept", is_kept).await.unwrap();
    server.process.kill().await.unwrap();
    reads(&mut out, &monitoring.to_string()).await;
    let _server = PilotServer::start_in(scratch.path(), &flags, &[]).await.unwrap();
    // Without that file it would be gone.
    reads(&mut out, "shop.service.mesh").await;
}
