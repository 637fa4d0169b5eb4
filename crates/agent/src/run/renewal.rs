//! What the next Envoy would be started with, tried before anything is done to the one that runs.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use tokio::process::Command;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::bootstrap;
use crate::process;
use crate::setup::Envoy;

/// Makes everything that Envoy is started with out of what there is now.
pub(crate) type Plan = Arc<dyn Fn() -> anyhow::Result<Envoy> + Send + Sync>;

/// Envoy reads a large bootstrap in less than a second.
const VALIDATION: Duration = Duration::from_secs(30);
/// The end of what Envoy says has the reason.
const SHOWN: usize = 2_000;
/// Nobody waits for a changed file by the second, and a file is looked at twice.
const LOOK: Duration = Duration::from_secs(1);

/// Who wants a new Envoy?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// A signal: also if nothing has changed, since the binary may have.
    Signal,
    /// A file was touched.
    Files,
}

/// What was found good.
pub(super) struct Proposal {
    pub(super) envoy: Envoy,
    /// Where the bootstrap lies until it is in use; none if it is the user's own file.
    draft: Option<PathBuf>,
}

impl Proposal {
    pub(super) fn file(&self) -> &Path {
        self.draft.as_deref().unwrap_or(&self.envoy.file)
    }

    /// It is in use: its bootstrap takes the place of the last one.
    pub(super) fn adopt(mut self) -> Envoy {
        if let Some(draft) = self.draft.take()
            && let Err(error) = std::fs::rename(&draft, &self.envoy.file)
        {
            tracing::warn!(%error, draft = %draft.display(), "cannot move the bootstrap into its place");
        }
        self.envoy.clone()
    }
}

impl Drop for Proposal {
    fn drop(&mut self) {
        if let Some(draft) = &self.draft {
            // It may never have been written.
            let _ = std::fs::remove_file(draft);
        }
    }
}

/// Nothing if nothing is new.
pub(super) async fn propose(plan: Plan, running: Envoy, wish: Wish) -> anyhow::Result<Option<Proposal>> {
    let envoy = plan()?;
    if wish == Wish::Files && envoy.starts_like(&running) {
        return Ok(None);
    }
    // Envoy goes by the ending of the name.
    let ending = envoy.file.extension().and_then(|ending| ending.to_str()).unwrap_or("json");
    let draft = envoy.bootstrap.is_some().then(|| envoy.file.with_extension(format!("next.{ending}")));
    let proposal = Proposal { envoy, draft };
    if let (Some(draft), Some(text)) = (&proposal.draft, &proposal.envoy.bootstrap) {
        bootstrap::write_text(draft, text)?;
    }
    validate(&proposal).await?;
    Ok(Some(proposal))
}

async fn validate(proposal: &Proposal) -> anyhow::Result<()> {
    let mut command = Command::new(&proposal.envoy.binary);
    command
        .args(proposal.envoy.command_line(proposal.file()))
        .args(["--mode", "validate", "--disable-hot-restart"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .process_group(0);
    process::die_with_parent(&mut command);
    let ended = timeout(VALIDATION, command.output()).await;
    let Output { status, stderr, .. } = ended
        .with_context(|| format!("Envoy did not say within {}s whether it accepts it", VALIDATION.as_secs()))?
        .with_context(|| format!("cannot start {}", proposal.envoy.binary.display()))?;
    if status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&stderr);
    let from = said.len().saturating_sub(SHOWN);
    let from = (from..said.len()).find(|at| said.is_char_boundary(*at)).unwrap_or(0);
    bail!("Envoy does not accept it ({status}): {}", said[from..].trim_end())
}

/// Files whose change asks for a new Envoy. A second without a change is waited for, so that half of one does not count.
pub(super) struct Watched {
    files: Vec<PathBuf>,
    seen: Vec<Stamp>,
    unsettled: Option<Vec<Stamp>>,
    pace: Interval,
}

type Stamp = Option<(SystemTime, u64)>;

impl Watched {
    pub(super) fn new(files: Vec<PathBuf>) -> Self {
        let mut pace = interval(LOOK);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { seen: stamps(&files), files, unsettled: None, pace }
    }

    pub(super) async fn changed(&mut self) {
        loop {
            self.pace.tick().await;
            if self.settled(stamps(&self.files)) {
                return;
            }
        }
    }

    fn settled(&mut self, now: Vec<Stamp>) -> bool {
        if now == self.seen {
            self.unsettled = None;
            return false;
        }
        if self.unsettled.as_ref() == Some(&now) {
            self.unsettled = None;
            self.seen = now;
            return true;
        }
        self.unsettled = Some(now);
        false
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let metadata = std::fs::metadata(file).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::Watched;

    #[tokio::test]
    async fn a_change_counts_when_it_is_over() {
        let mut watched = Watched::new(Vec::new());
        let stamp = |size: u64| vec![Some((SystemTime::UNIX_EPOCH, size))];
        assert!(!watched.settled(stamp(1)));
        assert!(!watched.settled(stamp(2)));
        assert!(watched.settled(stamp(2)));
        assert!(!watched.settled(stamp(2)));
        assert!(!watched.settled(vec![None]));
        assert!(!watched.settled(stamp(2)));
        assert!(!watched.settled(vec![None]));
        assert!(watched.settled(vec![None]));
    }
}
