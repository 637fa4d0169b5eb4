//! The servers that are measured, as processes that end with the run.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::proc::{Cpu, Process};
use crate::stopwatch::Stopwatch;

/// Who is measured.
#[derive(Clone, Debug)]
pub enum Candidate {
    /// A program with istiod's command line; several words may lead to it.
    Program { name: String, command: Vec<String> },
    /// This program, sending what was recorded.
    Floor { bench: PathBuf, recording: PathBuf },
}

impl Candidate {
    pub fn name(&self) -> &str {
        match self {
            Self::Program { name, .. } => name,
            Self::Floor { .. } => "floor",
        }
    }
}

/// A running server.
pub struct Server {
    child: Child,
    /// It and whatever it started, unless they have been ended.
    group: Option<u32>,
    pub process: Process,
    pub grpc: SocketAddr,
    /// Where a program of istiod's kind tells its metrics.
    monitoring: Option<SocketAddr>,
    /// From its start until it could be used.
    pub ready_after: Duration,
    /// What that cost.
    pub start_cpu: Duration,
    log: PathBuf,
}

/// A real istiod with ten thousand services in files takes half a minute.
const PATIENCE: Duration = Duration::from_secs(180);

impl Server {
    /// Starts a server that follows a folder, in a folder of its own, and waits until it is ready.
    pub async fn start(candidate: &Candidate, config: &Path, home: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(home).with_context(|| format!("{} cannot be made", home.display()))?;
        let addresses = free_addresses()?;
        let [grpc, http, monitoring, ..] = addresses;
        let mut command = match candidate {
            Candidate::Program { command, .. } => program(command, config, home, addresses)?,
            Candidate::Floor { bench, recording } => {
                let mut command = Command::new(bench);
                command.arg("floor").arg(format!("--address={grpc}"));
                command.arg("--recording").arg(recording).arg("--follow").arg(config);
                command
            }
        };
        let name = candidate.name();
        let log = home.join(format!("{name}.log"));
        let out = File::create(&log)?;
        command.current_dir(home).stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        // A group of its own, so that a wrapper and what it started can be ended together.
        command.process_group(0).kill_on_drop(true);
        let watch = Stopwatch::start();
        let child = command.spawn().with_context(|| {
            format!("{name} cannot be started; `make build` builds ours, --pilot and --istiod name others")
        })?;
        let is_program = matches!(candidate, Candidate::Program { .. });
        let http = is_program.then_some(http);
        let id = child.id().context("it has ended already")?;
        let mut server = Self {
            process: Process::new(id),
            child,
            group: Some(id),
            grpc,
            monitoring: is_program.then_some(monitoring),
            ready_after: Duration::ZERO,
            start_cpu: Duration::ZERO,
            log,
        };
        server.until_ready(http, watch).await?;
        // A wrapper is not the server.
        server.process = Process::listening_at(grpc)?;
        server.start_cpu = server.process.cpu()?.since(Cpu::default());
        Ok(server)
    }

    async fn until_ready(&mut self, http: Option<SocketAddr>, watch: Stopwatch) -> anyhow::Result<()> {
        loop {
            let is_up = std::net::TcpStream::connect(self.grpc).is_ok();
            let is_ready = |http: SocketAddr| {
                pilot_cli::request(&http.to_string(), "GET", "/ready", "").is_ok_and(|(code, _)| code == 200)
            };
            if is_up && http.is_none_or(is_ready) {
                self.ready_after = watch.elapsed();
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended with {status}; it printed:\n{}", self.last_lines());
            }
            ensure!(
                watch.elapsed() < PATIENCE,
                "the server is not ready; it printed:\n{}",
                self.last_lines()
            );
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// What the server has allocated and not let go of, in bytes, if it tells.
    pub fn live(&self) -> Option<f64> {
        let (_, text) = pilot_cli::request(&self.monitoring?.to_string(), "GET", "/metrics", "").ok()?;
        text.lines().find_map(|line| line.strip_prefix("go_memstats_alloc_bytes ")?.trim().parse().ok())
    }

    fn last_lines(&self) -> String {
        let output = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Ends it, and whatever it started.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.signal("-TERM");
        // Whoever does not listen is ended when this is dropped.
        if tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await.is_ok() {
            self.group = None;
        }
        Ok(())
    }

    fn signal(&self, name: &str) {
        let Some(group) = self.group else { return };
        let mut kill = std::process::Command::new("kill");
        // A group that is gone already needs no signal.
        let _gone = kill.args([name, "--", &format!("-{group}")]).stderr(Stdio::null()).status();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("-KILL");
    }
}

/// istiod's command line.
fn program(
    words: &[String],
    config: &Path,
    home: &Path,
    [grpc, http, monitoring, control]: [SocketAddr; 4],
) -> anyhow::Result<Command> {
    let [program, first @ ..] = words else { bail!("the command of a server is empty") };
    let (mesh, networks) = (home.join("mesh.yaml"), home.join("networks.yaml"));
    std::fs::write(&mesh, "rootNamespace: istio-system\ntrustDomain: cluster.local\n")?;
    std::fs::write(&networks, "networks: {}\n")?;
    let mut command = Command::new(program);
    command
        .args(first)
        .args(["discovery", "--registries=", "--secureGRPCAddr=", "--httpsAddr="])
        .arg(format!("--configDir={}", config.display()))
        .arg(format!("--meshConfig={}", mesh.display()))
        .arg(format!("--networksConfig={}", networks.display()))
        .arg(format!("--grpcAddr={grpc}"))
        .arg(format!("--httpAddr={http}"))
        .arg(format!("--monitoringAddr={monitoring}"))
        .args(["--ctrlz_address=127.0.0.1".to_owned(), format!("--ctrlz_port={}", control.port())])
        .envs([
            ("POD_NAME", "bench"),
            ("POD_NAMESPACE", "istio-system"),
            ("REVISION", "default"),
            ("CLUSTER_ID", "Kubernetes"),
        ]);
    Ok(command)
}

/// Addresses that nobody uses at the moment, chosen by the kernel. All are taken before the first is let go, so that no
/// two are the same.
fn free_addresses() -> anyhow::Result<[SocketAddr; 4]> {
    let listeners: Vec<TcpListener> =
        (0..4).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    let addresses: Vec<SocketAddr> =
        listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    addresses.try_into().map_err(|_| anyhow::anyhow!("four listeners have four addresses"))
}
