//! A real Nomad in development mode. Each instance is a job whose task only sleeps; what its service says need not be
//! true.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use pilot_source::Source;
use pilot_source::contract::{
    Condition, Registered, RegistryRig, Server, check_bad, check_registry, free_port, garbled, wanted,
};
use pilot_source_http::{Client, ClientOptions};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{at, source};

struct Nomad {
    server: Server,
    address: SocketAddr,
    client: Client,
    _scratch: TempDir,
}

/// It probes no clouds, and runs plain processes on the loopback.
fn config([http, rpc, serf]: [u16; 3]) -> String {
    let denied = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault,cni,plugins_cni,bridge";
    format!(
        r#"
bind_addr = "127.0.0.1"
disable_update_check = true
ports {{
  http = {http}
  rpc = {rpc}
  serf = {serf}
}}
client {{
  network_interface = "lo"
  options = {{
    "fingerprint.denylist" = "{denied}"
    "driver.allowlist" = "raw_exec"
  }}
}}
"#
    )
}

impl Nomad {
    async fn start() -> Option<Self> {
        let nomad = wanted("PILOT_NOMAD")?;
        let scratch = tempfile::tempdir().unwrap();
        let ports = [free_port(), free_port(), free_port()];
        let file = scratch.path().join("nomad.hcl");
        std::fs::write(&file, config(ports)).unwrap();
        let folder = scratch.path().to_owned();
        // In namespaces of its own: what it runs and mounts is gone with it, however it ends.
        let server = Server::start(move || {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]).arg(&nomad);
            command.args(["agent", "-dev", "-log-level=ERROR", "-config"]).arg(&file);
            command.env("TMPDIR", &folder);
            command
        });
        let address = SocketAddr::from(([127, 0, 0, 1], ports[0]));
        let patient = ClientOptions { patience: Duration::from_secs(30), ..at(address) };
        let mut nomad = Self { server, address, client: Client::new(patient).unwrap(), _scratch: scratch };
        nomad.until_ready().await;
        Some(nomad)
    }

    async fn until_ready(&mut self) {
        let client = self.client.clone();
        let is_ready = || async {
            let nodes = client.page("/v1/nodes", Duration::ZERO).await;
            nodes.is_ok_and(|answer| String::from_utf8_lossy(&answer.body).contains("\"ready\""))
        };
        self.server.until("Nomad has a node", is_ready).await;
    }

    /// Ends it, and removes the control groups that outlive it. Those that another Nomad uses cannot be removed.
    async fn end(mut self) {
        self.server.stop().await;
        for group in ["freezer", "memory", "cpu", "cpuset", "."] {
            for folder in folders(&Path::new("/sys/fs/cgroup").join(group).join("nomad")) {
                // Who was ended is there for a moment longer.
                for _ in 0..20 {
                    if std::fs::remove_dir(&folder).is_ok() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    async fn instances(&self, service: &str) -> Vec<Value> {
        let page = self.client.page(&format!("/v1/service/{service}"), Duration::ZERO).await;
        page.unwrap().json().unwrap()
    }
}

/// The folders of a control group, those inside first.
fn folders(of: &Path) -> Vec<PathBuf> {
    let inside = std::fs::read_dir(of).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> = inside.filter(|path| path.is_dir()).flat_map(|path| folders(&path)).collect();
    all.push(of.to_owned());
    all
}

fn tags(instance: &Registered) -> Vec<String> {
    instance.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect()
}

fn job(instance: &Registered) -> Value {
    let Registered { service, id, address, port, .. } = instance;
    let service = json!({"Name": service, "Provider": "nomad", "Address": address, "PortLabel": port.to_string(),
        "Tags": tags(instance)});
    let task = json!({"Name": "sleep", "Driver": "raw_exec", "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1}, "KillTimeout": 1_000_000_000,
        "Config": {"command": "/bin/sleep", "args": ["3600"]}, "Resources": {"CPU": 10, "MemoryMB": 10}});
    let group = json!({"Name": "g", "Count": 1, "Services": [service], "Tasks": [task],
        "Networks": [{"Mode": "host"}], "EphemeralDisk": {"SizeMB": 20}});
    json!({"Job": {"ID": id, "Name": id, "Type": "service", "Datacenters": ["dc1"], "TaskGroups": [group]}})
}

impl RegistryRig for Nomad {
    fn about(&self) -> &'static str {
        "Nomad 1.10.5"
    }

    fn source(&self, server: SocketAddr) -> Box<dyn Source> {
        // More than twice what it takes to say that it is alive.
        source(server, Duration::from_secs(25))
    }

    fn server(&self) -> SocketAddr {
        self.address
    }

    /// The old registration and the new one are two.
    fn most_rows_of_move(&self) -> usize {
        2
    }

    async fn try_register(&mut self, instance: &Registered) -> bool {
        let body = garbled(&job(instance).to_string()).into();
        let answer = self.client.ask(Method::POST, "/v1/jobs", body, Duration::ZERO).await.unwrap();
        if !answer.status.is_success() {
            return false;
        }
        // It is registered once its task runs, and then it can be taken away again.
        let shown = |tag: &String| String::from_utf8_lossy(&garbled(tag)).into_owned();
        let tags: Value = tags(instance).iter().map(shown).collect();
        let is_there =
            |all: &[Value]| all.iter().any(|one| one["JobID"] == instance.id && one["Tags"] == tags);
        while !is_there(&self.instances(&instance.service).await) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        true
    }

    async fn deregister(&mut self, instance: &Registered) {
        let path = format!("/v1/job/{}?purge=true", instance.id);
        let answer = self.client.ask(Method::DELETE, &path, "".into(), Duration::ZERO).await.unwrap();
        assert!(answer.status.is_success(), "{path}: {}", answer.status);
    }

    /// What its checks find is known to nobody but the machine that makes them; no event tells it.
    async fn set_condition(&mut self, _: &Registered, _: Condition) -> bool {
        false
    }

    fn stream(&self) -> Option<&'static str> {
        Some("/v1/event/stream")
    }

    async fn restart(&mut self) -> Option<bool> {
        self.server.stop().await;
        self.server.start_again();
        self.until_ready().await;
        Some(false)
    }

    fn nonsense(&self) -> Vec<Vec<u8>> {
        crate::nonsense()
    }

    async fn fill(&mut self, _: usize, _: usize) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nomad_keeps_the_contract() {
    let Some(mut nomad) = Nomad::start().await else { return };
    check_registry(&mut nomad).await;
    check_bad(&mut nomad).await;
    nomad.end().await;
}
