use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const FILE: &str = "envoy-rev.json";

#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The directory cannot be made.
    #[error("cannot create directory {path}")]
    Directory { path: PathBuf, source: io::Error },
    /// The file cannot be written or moved into its place.
    #[error("cannot write {path}; its directory must be writable and its disk not full")]
    File { path: PathBuf, source: io::Error },
}

/// Where the bootstrap lies.
pub(crate) fn file(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Nobody ever sees half of a file: it is moved into its place when it is whole.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<(), WriteError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|source| WriteError::Directory { path: directory.to_owned(), source })?;
    put(path, text).map_err(|source| WriteError::File { path: path.to_owned(), source })
}

fn put(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = File::create(&draft).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&draft, path)
    });
    if written.is_err() {
        // Half of it would fill a disk that is full for good.
        let _ = std::fs::remove_file(&draft);
    }
    written
}
