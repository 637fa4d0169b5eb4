//! What is kept in a file, so that it is there when Pilot starts again.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::state::{Description, State};

/// Everything that was written, as it stands in the file.
#[derive(Serialize, Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Kept {
    pub(crate) services: BTreeMap<String, BTreeMap<String, Description>>,
    pub(crate) rules: BTreeMap<String, String>,
}

/// What changes at once is written at once; of very many changes all is written so often.
const GATHER: Duration = Duration::from_millis(200);

/// What is in the file; nothing if there is none yet.
pub(crate) fn read(path: &Path) -> io::Result<Kept> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Kept::default()),
        Err(error) => Err(error),
    }
}

/// Puts a new file in the place of the old one, so that there is always one that is whole.
fn write(path: &Path, kept: &Kept) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = std::fs::File::create(&draft)?;
    file.write_all(&serde_json::to_vec(kept)?)?;
    file.sync_all()?;
    std::fs::rename(draft, path)
}

/// Writes whatever changes. Why that cannot be done is told there.
pub(crate) async fn keep(
    path: PathBuf,
    state: Arc<Mutex<State>>,
    mut changed: watch::Receiver<u64>,
    trouble: watch::Sender<Option<String>>,
) {
    while changed.changed().await.is_ok() {
        let (path, state) = (path.clone(), Arc::clone(&state));
        let written = tokio::task::spawn_blocking(move || {
            let kept = state.lock().kept();
            write(&path, &kept).map_err(|error| format!("{} cannot be written: {error}", path.display()))
        });
        let why = written.await.unwrap_or_else(|_| Err("writing the file broke off".to_owned())).err();
        trouble.send_if_modified(|told| std::mem::replace(told, why.clone()) != why);
        tokio::time::sleep(GATHER).await;
    }
}
