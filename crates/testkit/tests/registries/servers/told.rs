//! Stand-ins of the adapters' own tests, as processes that are told on their standard input what there is.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use pilot_testkit::process::free_address;
use pilot_testkit::tools::Tools;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

pub(crate) struct Told {
    copilot: (Child, ChildStdin),
    marathon: (Child, ChildStdin),
    nameserver: (Child, ChildStdin),
    pub(crate) marathon_at: SocketAddr,
    pub(crate) nameserver_at: SocketAddr,
}

impl Told {
    /// The one for Copilot writes `cf.yaml`.
    pub(super) async fn start(scratch: &Path, tools: &Tools) -> anyhow::Result<Self> {
        let (marathon_at, nameserver_at) = (free_address()?, free_address()?);
        let port = |at: SocketAddr| at.port().to_string();
        let folder = scratch.display().to_string();
        let copilot = [folder, port(free_address()?), super::SERVICE_PORT.to_string()];
        let copilot = spawn(tools, "copilot", &copilot)?;
        let marathon = spawn(tools, "marathon", &[port(marathon_at)])?;
        let nameserver = spawn(tools, "nameserver", &[port(nameserver_at)])?;
        let written = async {
            while !scratch.join("cf.yaml").exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), written).await?;
        Ok(Self { copilot, marathon, nameserver, marathon_at, nameserver_at })
    }

    pub(super) async fn copilot(&mut self, line: &str) -> anyhow::Result<()> {
        tell(&mut self.copilot, line).await
    }

    pub(super) async fn marathon(&mut self, line: &str) -> anyhow::Result<()> {
        tell(&mut self.marathon, line).await
    }

    pub(super) async fn nameserver(&mut self, line: &str) -> anyhow::Result<()> {
        tell(&mut self.nameserver, line).await
    }
}

fn spawn(tools: &Tools, name: &str, arguments: &[String]) -> anyhow::Result<(Child, ChildStdin)> {
    let mut command = Command::new(tools.own(&format!("examples/{name}"))?);
    let mut child = command.args(arguments).stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
    let stdin = child.stdin.take().context("a pipe")?;
    Ok((child, stdin))
}

async fn tell((_, stdin): &mut (Child, ChildStdin), line: &str) -> anyhow::Result<()> {
    Ok(stdin.write_all(format!("{line}\n").as_bytes()).await?)
}
