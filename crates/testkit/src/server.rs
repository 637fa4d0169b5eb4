//! `pilot-discovery` as a process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::process::{Process, free_address};
use crate::tools::Tools;

/// A running server and where it listens.
pub struct PilotServer {
    pub process: Process,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub monitoring: SocketAddr,
    pub config: PathBuf,
}

impl PilotServer {
    /// Starts a server that follows `scratch/config`, and waits until it is ready.
    pub async fn start(scratch: &Path, more: &[&str]) -> anyhow::Result<Self> {
        Self::start_in(scratch, more, &[]).await
    }

    /// The same with variables in its environment.
    pub async fn start_in(scratch: &Path, more: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Self> {
        let mut server = Self::launch_in(scratch, more, env)?;
        server.process.until_ok(server.http, "/ready").await?;
        Ok(server)
    }

    /// The same without waiting for anything.
    pub fn launch_in(scratch: &Path, more: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Self> {
        let config = scratch.join("config");
        std::fs::create_dir_all(&config)?;
        let (grpc, http, monitoring) = (free_address()?, free_address()?, free_address()?);
        let mut command = Command::new(Tools::of_environment().own("pilot-discovery")?);
        command
            .current_dir(scratch)
            .args(["discovery", "--registries=File", "--httpsAddr=", "--secureGRPCAddr="])
            .arg(format!("--configDir={}", config.display()))
            .arg(format!("--grpcAddr={grpc}"))
            .arg(format!("--httpAddr={http}"))
            .arg(format!("--monitoringAddr={monitoring}"))
            .args(more)
            .envs(env.iter().copied());
        let process = Process::start(&format!("pilot-{}", grpc.port()), scratch, &mut command)?;
        Ok(Self { process, grpc, http, monitoring, config })
    }
}
