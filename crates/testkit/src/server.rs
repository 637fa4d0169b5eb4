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

    /// The same after a word to the shell, which may set limits.
    pub async fn start_after(scratch: &Path, word: &str) -> anyhow::Result<Self> {
        let config = scratch.join("config");
        std::fs::create_dir_all(&config)?;
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("{word} && exec \"$0\" \"$@\""));
        shell.arg(Tools::of_environment().own("pilot-discovery")?);
        let mut server = Self::spawn(shell, scratch, &config, &[])?;
        server.process.until_ok(server.http, "/ready").await?;
        Ok(server)
    }

    /// Starts a server that an API server tells everything, rules too.
    pub async fn start_on(scratch: &Path, kubeconfig: &Path) -> anyhow::Result<Self> {
        let flags = ["--registries=Kubernetes".to_owned(), format!("--kubeconfig={}", kubeconfig.display())];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut server = Self::launch(scratch, Path::new(""), &flags, &[])?;
        server.process.until_ok(server.http, "/ready").await?;
        Ok(server)
    }

    /// The same without waiting for anything.
    pub fn launch_in(scratch: &Path, more: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Self> {
        let config = scratch.join("config");
        std::fs::create_dir_all(&config)?;
        Self::launch(scratch, &config, more, env)
    }

    /// An empty folder is none.
    fn launch(scratch: &Path, config: &Path, more: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Self> {
        let mut command = Command::new(Tools::of_environment().own("pilot-discovery")?);
        command.envs(env.iter().copied());
        Self::spawn(command, scratch, config, more)
    }

    fn spawn(mut command: Command, scratch: &Path, config: &Path, more: &[&str]) -> anyhow::Result<Self> {
        let rules = Some(config.display().to_string()).filter(|folder| !folder.is_empty());
        let (grpc, http, monitoring) = (free_address()?, free_address()?, free_address()?);
        // Whoever says that there is no folder has rules from elsewhere.
        let rules = rules.filter(|_| !more.contains(&"--configDir=")).into_iter();
        let folder =
            rules.flat_map(|folder| [format!("--configDir={folder}"), "--registries=File".to_owned()]);
        command
            .current_dir(scratch)
            .args(["discovery", "--httpsAddr=", "--secureGRPCAddr="])
            .arg(format!("--grpcAddr={grpc}"))
            .arg(format!("--httpAddr={http}"))
            .arg(format!("--monitoringAddr={monitoring}"))
            .args(more)
            .args(folder);
        let process = Process::start(&format!("pilot-{}", grpc.port()), scratch, &mut command)?;
        Ok(Self { process, grpc, http, monitoring, config: config.to_owned() })
    }
}
