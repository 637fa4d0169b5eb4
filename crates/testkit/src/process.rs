//! Real programs, which end with the test.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};

use crate::http_call;

/// Longer than any start takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a program; what it prints goes to a file in `folder`.
    pub fn start(name: &str, folder: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let out = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
        Ok(Self { name: name.to_owned(), child, log })
    }

    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Asks it to end, and tells with which status it did.
    pub async fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        let id = self.id().context("it has ended already")?;
        Command::new("kill").arg("-TERM").arg(id.to_string()).status().await?;
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        Ok(ended.with_context(|| format!("{} does not end", self.name))??)
    }

    /// Ends it at once.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until something holds, or the program ends, or patience does.
    pub async fn until<F: Future<Output = bool>>(
        &mut self,
        what: &str,
        mut holds: impl FnMut() -> F,
    ) -> anyhow::Result<()> {
        let waiting = async {
            loop {
                if holds().await {
                    return Ok(());
                }
                if let Some(status) = self.child.try_wait()? {
                    bail!("it ended with {status}");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let waited =
            tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| bail!("that never came true"));
        waited.with_context(|| format!("{}: {what}; it printed:\n{}", self.name, self.last_lines()))
    }

    /// Waits until a page answers with 200.
    pub async fn until_ok(&mut self, address: SocketAddr, path: &str) -> anyhow::Result<()> {
        let is_ok = || async { http_call::get(address, path).await.is_ok_and(|(status, _)| status == 200) };
        self.until(path, is_ok).await
    }

    fn last_lines(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

/// An address that nobody uses at the moment. Its port is not one of those that the kernel gives to clients, which could
/// take it away before it is listened at; and each is given only once.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    // Processes that run side by side begin at different places.
    let start = std::process::id().wrapping_mul(97) % u32::from(COUNT);
    for _ in 0..COUNT {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + u16::try_from((start + step) % u32::from(COUNT))?;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return Ok(listener.local_addr()?);
        }
    }
    bail!("no port between {FIRST} and {} is free", FIRST + COUNT)
}
