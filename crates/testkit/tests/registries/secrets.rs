//! What registries are told to prove who asks is told to nobody else.

use std::net::SocketAddr;
use std::path::Path;

use pilot_testkit::http_call;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinSet;

/// No other text has this in it.
const SECRET: &str = "hunter2-0d5a7c41";

/// Somebody who refuses whatever is asked, and says back what he was told.
async fn unfriendly() -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = vec![0; 16 << 10];
            let read = stream.read(&mut asked).await.unwrap_or_default();
            let body = String::from_utf8_lossy(&asked[..read]).into_owned();
            let head =
                format!("HTTP/1.1 403 No\r\nx-why: {SECRET}\r\ncontent-length: {}\r\n\r\n", body.len());
            // Who hangs up has heard enough.
            let _heard = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    });
    (address, serving)
}

fn written(scratch: &Path, name: &str, text: &str) -> String {
    let path = scratch.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_in_a_log_or_on_a_page() {
    let scratch = tempfile::tempdir().unwrap();
    let (server, _serving) = unfriendly().await;
    let token = written(scratch.path(), "token", SECRET);
    let user = written(scratch.path(), "user", &format!("pilot:{SECRET}"));
    let flags = [
        "--registries=Consul,Eureka,ZooKeeper,Nomad,Marathon,Memory".to_owned(),
        format!("--consulserverURL=http://{server}"),
        format!("--consulTokenFile={token}"),
        "--consulConfigPrefix=istio/config".to_owned(),
        format!("--eurekaserverURL=http://pilot:{SECRET}@{server}/eureka"),
        format!("--zookeeperserverURL={server}"),
        format!("--zookeeperAuthFile={user}"),
        "--zookeeperAuthScheme=sasl".to_owned(),
        format!("--nomadserverURL=http://{server}"),
        format!("--nomadTokenFile={token}"),
        format!("--marathonserverURL=http://{server}"),
        format!("--marathonTokenFile={token}"),
        format!("--etcdserverURL=http://{server}"),
        format!("--etcdAuthFile={user}"),
        format!("--configURL=http://pilot:{SECRET}@{server}/rules.yaml?signature={SECRET}"),
        "--memoryAddr=127.0.0.1:0".to_owned(),
        format!("--memoryTokenFile={token}"),
        "--log_output_level=all:debug".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut server = PilotServer::launch_in(scratch.path(), &flags, &[]).unwrap();
    let monitoring = server.monitoring;
    let page = |path: &'static str| async move {
        http_call::get(monitoring, path).await.map(|(_, body)| body).unwrap_or_default()
    };
    let sources = ["consul", "consul-kv", "eureka", "zookeeper", "nomad", "marathon", "etcd", "config-url"];
    let all_told = || async {
        let issues = page("/debug/issues").await;
        sources
            .iter()
            .all(|source| issues.contains(&format!("\"{source}\"")) || issues.contains(&format!("{source}:")))
    };
    server.process.until("every source has told that it is refused", all_told).await.unwrap();
    let mut seen = vec![("the log", server.process.output())];
    for path in ["/debug/issues", "/debug/registry/sources", "/debug/registry/services", "/metrics"] {
        let (status, body) = http_call::get(monitoring, path).await.unwrap();
        assert_eq!(status, 200, "{path}");
        seen.push((path, body));
    }
    let mut command = Command::new(Tools::of_environment().own("pilotctl").unwrap());
    let shown =
        command.args(["registry", "sources", "--address", &monitoring.to_string()]).output().await.unwrap();
    seen.push(("pilotctl", String::from_utf8_lossy(&shown.stdout).into_owned()));
    assert!(seen[0].1.contains("consul"), "the log says something: {}", seen[0].1);
    for (place, text) in seen {
        let line = text.lines().find(|line| line.contains(SECRET)).unwrap_or_default();
        assert!(line.is_empty(), "{place} tells the secret: {line}");
    }
}
