//! At which socket secrets are served: by this agent, or by somebody else who was there before.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::Env;

/// Relative, as in Istio: containers start in `/`.
const FOLDER: &str = "./var/run/secrets/workload-spiffe-uds";
const FILES_SOCKET: &str = "./var/run/secrets/credential-uds/files-socket";
const USUAL: &str = "socket";
const VARIABLE: &str = "WORKLOAD_IDENTITY_SOCKET_FILE";
/// Who serves secrets answers at once.
const PATIENCE: Duration = Duration::from_secs(1);
/// What a client of HTTP/2 begins with, and an empty frame of settings; a server answers with its own.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const FRAME_HEADER: usize = 9;
const SETTINGS: u8 = 4;

/// What would have to be another.
#[derive(thiserror::Error, Debug)]
pub(crate) enum PlaceError {
    #[error("{VARIABLE} must be the name of a file, not a path: {0}")]
    Path(String),
    #[error(
        "{VARIABLE} says that somebody serves secrets at {0}, and nobody does; start it first, or leave the variable out"
    )]
    Missing(PathBuf),
    #[error("a socket at {path} is dead and cannot be removed; remove it")]
    Stuck { path: PathBuf, source: std::io::Error },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// This agent serves everything.
    Own(PathBuf),
    /// Another serves who the workload is, and this agent only files.
    Files(PathBuf),
}

impl Place {
    /// Relative to `root`, which is where the agent was started.
    pub(crate) async fn find(env: &Env, root: &Path) -> Result<Self, PlaceError> {
        let name = env.get(VARIABLE).unwrap_or(USUAL);
        if name.contains('/') || name == ".." || name == "." {
            return Err(PlaceError::Path(name.to_owned()));
        }
        let path = root.join(FOLDER).join(name);
        if answers(&path).await? {
            tracing::info!(path = %path.display(), "somebody else serves secrets; this agent serves files only");
            return Ok(Self::Files(root.join(FILES_SOCKET)));
        }
        if name == USUAL { Ok(Self::Own(path)) } else { Err(PlaceError::Missing(path)) }
    }

    pub(crate) fn path(&self) -> &Path {
        let (Self::Own(path) | Self::Files(path)) = self;
        path
    }
}

/// Is somebody there? The socket of somebody who has gone is removed.
async fn answers(path: &Path) -> Result<bool, PlaceError> {
    if !std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        return Ok(false);
    }
    if tokio::time::timeout(PATIENCE, greet(path)).await.is_ok_and(|greeted| greeted.is_ok_and(|said| said)) {
        return Ok(true);
    }
    std::fs::remove_file(path).map_err(|source| PlaceError::Stuck { path: path.to_owned(), source })?;
    Ok(false)
}

async fn greet(path: &Path) -> std::io::Result<bool> {
    let mut stream = UnixStream::connect(path).await?;
    stream.write_all(GREETING).await?;
    let mut header = [0; FRAME_HEADER];
    stream.read_exact(&mut header).await?;
    Ok(header[3] == SETTINGS)
}
