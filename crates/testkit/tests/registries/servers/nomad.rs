//! A real Nomad, which wants to be root. Each instance is a job whose task only sleeps; what its service says need not be true.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use http::Method;
use pilot_source_http::{Client, ClientOptions, ServerAddress};
use pilot_testkit::process::{Process, free_address};
use serde_json::{Value, json};
use tokio::process::Command;

use super::Reviews;

pub(crate) struct Nomad {
    pub(crate) address: SocketAddr,
    client: Client,
    _process: Process,
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

/// What this process has is its user's.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

impl Nomad {
    /// Nothing where it is not there, or may not run.
    #[allow(clippy::disallowed_methods, reason = "tests are told by the environment where programs are")]
    pub(super) async fn start(scratch: &Path) -> anyhow::Result<Option<Self>> {
        let program = std::env::var("PILOT_NOMAD").ok().filter(|path| Path::new(path).exists());
        let Some(program) = program.filter(|_| is_root()) else {
            println!("without Nomad, which has to be there and root's");
            return Ok(None);
        };
        let ports = [free_address()?.port(), free_address()?.port(), free_address()?.port()];
        let file = scratch.join("nomad.hcl");
        std::fs::write(&file, config(ports))?;
        // In namespaces of its own: what it runs and mounts is gone with it, however it ends.
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]).arg(program);
        command.args(["agent", "-dev", "-log-level=ERROR", "-config"]).arg(&file).env("TMPDIR", scratch);
        let mut process = Process::start("nomad", scratch, &mut command)?;
        let address = SocketAddr::from(([127, 0, 0, 1], ports[0]));
        let client = Client::new(ClientOptions::new(vec![ServerAddress::parse(&address.to_string())?]))?;
        let is_ready = || async {
            let nodes = client.page("/v1/nodes", Duration::ZERO).await;
            nodes.is_ok_and(|answer| String::from_utf8_lossy(&answer.body).contains("\"ready\""))
        };
        process.until("Nomad has a node", is_ready).await?;
        Ok(Some(Self { address, client, _process: process }))
    }

    /// It is registered once its task runs.
    pub(super) async fn register(&self, Reviews { id, at, version, .. }: &Reviews) -> anyhow::Result<()> {
        let tags = [format!("version={version}"), "protocol=http".to_owned()];
        let service = json!({"Name": "reviews", "Provider": "nomad", "Address": at.ip(), "PortLabel": at.port().to_string(),
            "Tags": tags});
        let task = json!({"Name": "sleep", "Driver": "raw_exec", "LogConfig": {"MaxFiles": 1, "MaxFileSizeMB": 1},
            "KillTimeout": 1_000_000_000, "Config": {"command": "/bin/sleep", "args": ["3600"]},
            "Resources": {"CPU": 10, "MemoryMB": 10}});
        let group = json!({"Name": "g", "Count": 1, "Services": [service], "Tasks": [task],
            "Networks": [{"Mode": "host"}], "EphemeralDisk": {"SizeMB": 20}});
        let job = json!({"Job": {"ID": id, "Name": id, "Type": "service", "Datacenters": ["dc1"], "TaskGroups": [group]}});
        self.client.ask(Method::POST, "/v1/jobs", job.to_string().into(), Duration::ZERO).await?.ok()?;
        loop {
            let page = self.client.page("/v1/service/reviews", Duration::ZERO).await?;
            if page.json::<Vec<Value>>()?.iter().any(|one| one["JobID"] == *id) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(super) async fn deregister(&self, id: &str) -> anyhow::Result<()> {
        let path = format!("/v1/job/{id}?purge=true");
        self.client.ask(Method::DELETE, &path, "".into(), Duration::ZERO).await?.ok()?;
        Ok(())
    }
}
