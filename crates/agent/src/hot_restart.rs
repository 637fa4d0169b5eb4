//! What Envoys that take over from each other share on the machine: a number by which they find each other, and a small
//! piece of memory that Envoy makes and nobody removes.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::supervise::Epoch;

const FILE: &str = "envoy-base-id";
const SHARED_MEMORY: &str = "/dev/shm";
/// As Envoy lays it out: two numbers, two locks, and flags, the first of which says that somebody is starting.
const SHARED_SIZE: u64 = 104;
const FLAGS_AT: u64 = 96;
const STARTING: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub(crate) enum BaseError {
    /// Envoy did not say by which number it can be found.
    #[error("cannot read {path}, in which Envoy writes its base id")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} holds no base id but \"{text}\"")]
    Number { path: PathBuf, text: String },
}

/// The number is Envoy's choice, so that several agents on one machine do not get in each other's way.
#[derive(Clone, Debug)]
pub(crate) struct BaseId {
    file: PathBuf,
    shared_memory: PathBuf,
}

impl BaseId {
    pub(crate) fn in_directory(directory: &Path) -> Self {
        Self { file: directory.join(FILE), shared_memory: SHARED_MEMORY.into() }
    }

    /// What an Envoy of this epoch is told.
    pub(crate) fn args(&self, epoch: Epoch) -> Result<Vec<String>, BaseError> {
        if epoch == 0 {
            let file = self.file.to_string_lossy().into_owned();
            return Ok(vec!["--use-dynamic-base-id".to_owned(), "--base-id-path".to_owned(), file]);
        }
        let id = self.read()?.to_string();
        Ok(vec!["--base-id".to_owned(), id, "--restart-epoch".to_owned(), epoch.to_string()])
    }

    fn read(&self) -> Result<u32, BaseError> {
        let path = || self.file.clone();
        let text =
            std::fs::read_to_string(&self.file).map_err(|source| BaseError::Read { path: path(), source })?;
        text.trim()
            .parse()
            .map_err(|_| BaseError::Number { path: path(), text: text.chars().take(40).collect() })
    }

    fn shared(&self) -> Option<PathBuf> {
        let id = u64::from(self.read().ok()?);
        Some(self.shared_memory.join(format!("envoy_shared_memory_{}", id * 10)))
    }

    /// Removes what is left when no Envoy runs, also of an agent that was killed: its Envoys died with it.
    pub(crate) fn clear(&self) {
        let leftovers = [self.shared(), Some(self.file.clone())];
        for path in leftovers.into_iter().flatten() {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(%error, path = %path.display(), "cannot remove what Envoy left behind");
                }
                _ => (),
            }
        }
    }

    /// An Envoy that ended while it was starting left the mark that one is, and no other would start as long as it is there.
    pub(crate) fn unmark(&self) {
        let Some(path) = self.shared() else { return };
        let unmark = || -> io::Result<()> {
            let memory = OpenOptions::new().read(true).write(true).open(&path)?;
            let mut flags = [0];
            // A layout that is not known is left alone.
            if memory.metadata()?.len() != SHARED_SIZE {
                return Ok(());
            }
            memory.read_exact_at(&mut flags, FLAGS_AT)?;
            if flags[0] == STARTING { memory.write_all_at(&[0], FLAGS_AT) } else { Ok(()) }
        };
        if let Err(error) = unmark() {
            tracing::warn!(%error, path = %path.display(), "cannot mend Envoy's shared memory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::BaseId;

    #[test]
    fn who_takes_over_is_told_from_whom() {
        let directory = tempfile::tempdir().unwrap();
        let mut base = BaseId::in_directory(directory.path());
        base.shared_memory = directory.path().to_owned();
        let file = directory.path().join("envoy-base-id");
        assert_eq!(base.args(0).unwrap()[..2], ["--use-dynamic-base-id", "--base-id-path"]);
        assert!(base.args(1).unwrap_err().to_string().contains("envoy-base-id"));
        std::fs::write(&file, "soon").unwrap();
        assert!(base.args(1).unwrap_err().to_string().ends_with("holds no base id but \"soon\""));
        std::fs::write(&file, "4294967295").unwrap();
        assert_eq!(base.args(2).unwrap(), ["--base-id", "4294967295", "--restart-epoch", "2"]);

        let memory = directory.path().join("envoy_shared_memory_42949672950");
        for (size, flags, after) in [(104, 1, 0), (104, 0, 0), (104, 2, 2), (112, 1, 1)] {
            let mut bytes = vec![7; size];
            bytes[96] = flags;
            std::fs::write(&memory, &bytes).unwrap();
            base.unmark();
            bytes[96] = after;
            assert_eq!(std::fs::read(&memory).unwrap(), bytes);
        }
        base.clear();
        assert!(!memory.exists() && !file.exists());
        base.clear();
    }
}
