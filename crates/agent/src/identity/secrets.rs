//! All secrets that Envoy may ask for, by name, and the news that one of them has changed.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pilot_ca::MaterialError;
use tokio::sync::watch;

use super::{CertificateFiles, Output, Settings};
use crate::control_plane::{CHAIN_FILE, KEY_FILE, ROOT_FILE};
use crate::metrics::Metrics;

/// Istio's names.
const WORKLOAD: &str = "default";
const ROOTS: &str = "ROOTCA";
const FILE_PAIR: &str = "file-cert:";
const FILE_ROOT: &str = "file-root:";
const SYSTEM: &str = "system";
const BETWEEN_FILES: char = '~';
/// Where systems keep whom they trust.
const SYSTEM_FILES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Files are looked at so often: they are few, and links to folders that are exchanged as a whole need no care.
const LOOK: Duration = Duration::from_secs(1);
/// Larger ones are no certificates.
const LARGEST_FILE: u64 = 16 << 20;
/// Envoy asks for a handful.
const MOST_FILES: usize = 1024;

/// Why there is no such secret now.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub(crate) enum SecretError {
    #[error("there is no certificate yet")]
    NotYet,
    #[error("there is no secret of this name")]
    Unknown,
    #[error("{path}: {reason}")]
    File { path: PathBuf, reason: String },
}

/// In PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Secret {
    Pair { chain: String, key: String },
    Roots(String),
}

/// What the authority certified.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Issued {
    pub(crate) chain: String,
    pub(crate) key: String,
    pub(crate) root: String,
    /// In seconds since 1970.
    pub(crate) expires: i64,
}

pub(crate) struct Secrets {
    files: CertificateFiles,
    output: Option<Output>,
    metrics: Arc<Metrics>,
    known: Mutex<Known>,
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Known {
    issued: Option<Issued>,
    /// More roots of the mesh.
    more: Vec<String>,
    /// What files held when they were last looked at.
    seen: BTreeMap<PathBuf, Option<Vec<u8>>>,
}

impl Secrets {
    pub(crate) fn new(settings: &Settings, metrics: Arc<Metrics>) -> Self {
        Self {
            files: settings.files.clone(),
            output: settings.output.clone(),
            metrics,
            known: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn set_issued(&self, issued: Issued) {
        self.with(|known| known.issued = Some(issued));
        self.changed();
    }

    pub(super) fn set_more_roots(&self, more: Vec<String>) {
        self.with(|known| known.more = more);
        self.changed();
    }

    fn with<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        // Nothing that could panic happens under this lock.
        act(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn changed(&self) {
        self.write_output();
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// What Envoy gets for a name.
    pub(crate) fn get(&self, name: &str) -> Result<Secret, SecretError> {
        let found = self.find(name);
        if let Err(SecretError::File { .. }) = &found {
            self.metrics.identity.file_failures.inc();
        }
        found
    }

    fn find(&self, name: &str) -> Result<Secret, SecretError> {
        if name == WORKLOAD {
            return self.workload();
        }
        if name == ROOTS {
            return self.roots();
        }
        if let Some(files) = name.strip_prefix(FILE_PAIR) {
            let (chain, key) = files.split_once(BETWEEN_FILES).ok_or(SecretError::Unknown)?;
            if key.contains(BETWEEN_FILES) {
                return Err(SecretError::Unknown);
            }
            return self.pair(Path::new(chain), Path::new(key));
        }
        let root = name.strip_prefix(FILE_ROOT).ok_or(SecretError::Unknown)?;
        if root == SYSTEM {
            let found = SYSTEM_FILES.into_iter().map(Path::new).find(|path| path.exists());
            return self.root_file(found.ok_or(SecretError::Unknown)?);
        }
        self.root_file(Path::new(root))
    }

    fn workload(&self) -> Result<Secret, SecretError> {
        let CertificateFiles { chain, key, .. } = &self.files;
        if !self.is_output(chain) && self.is_there(chain) && self.is_there(key) {
            return self.pair(chain, key);
        }
        self.with(|known| known.issued.clone())
            .map(|Issued { chain, key, .. }| Secret::Pair { chain, key })
            .ok_or(SecretError::NotYet)
    }

    fn roots(&self) -> Result<Secret, SecretError> {
        let file = &self.files.root;
        let first = if !self.is_output(file) && self.is_there(file) {
            match self.root_file(file)? {
                Secret::Roots(text) => text,
                Secret::Pair { .. } => return Err(SecretError::Unknown),
            }
        } else {
            self.with(|known| known.issued.as_ref().map(|issued| issued.root.clone()))
                .ok_or(SecretError::NotYet)?
        };
        let more = self.with(|known| known.more.clone());
        let texts: Vec<&str> = std::iter::once(&first).chain(&more).map(String::as_str).collect();
        Ok(Secret::Roots(pilot_ca::readable_roots(&texts).concat()))
    }

    /// Files that are half exchanged do not fit together, and are looked at again.
    fn pair(&self, chain: &Path, key: &Path) -> Result<Secret, SecretError> {
        let (chain_text, key_text) = (self.text(chain)?, self.text(key)?);
        let wrong =
            |error: MaterialError| SecretError::File { path: chain.to_owned(), reason: error.to_string() };
        pilot_ca::check_pair(&chain_text, &key_text).map_err(wrong)?;
        Ok(Secret::Pair { chain: chain_text, key: key_text })
    }

    fn root_file(&self, path: &Path) -> Result<Secret, SecretError> {
        let roots = pilot_ca::readable_roots(&[&self.text(path)?]);
        if roots.is_empty() {
            let reason = "it has no certificate in PEM that can be read".to_owned();
            return Err(SecretError::File { path: path.to_owned(), reason });
        }
        Ok(Secret::Roots(roots.concat()))
    }

    fn text(&self, path: &Path) -> Result<String, SecretError> {
        let wrong = |reason: String| SecretError::File { path: path.to_owned(), reason };
        let bytes = self.look(path).ok_or_else(|| wrong("it cannot be read, or is too large".to_owned()))?;
        String::from_utf8(bytes).map_err(|_| wrong("it is not PEM".to_owned()))
    }

    fn is_there(&self, path: &Path) -> bool {
        self.look(path).is_some_and(|bytes| !bytes.is_empty())
    }

    /// From now on it is known when this file changes.
    fn look(&self, path: &Path) -> Option<Vec<u8>> {
        let found = read(path);
        self.with(|known| {
            if known.seen.len() < MOST_FILES || known.seen.contains_key(path) {
                known.seen.insert(path.to_owned(), found.clone());
            }
        });
        found
    }

    /// What the agent writes itself is not what it reads, or nothing would ever be renewed.
    fn is_output(&self, path: &Path) -> bool {
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let Some(Output { folder, .. }) = &self.output else { return false };
        path.parent().is_some_and(|parent| {
            parent == folder || (real(parent).is_some() && real(parent) == real(folder))
        })
    }

    /// Tells of files that have changed, until it is dropped.
    pub(super) async fn follow_files(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let seen = self.with(|known| known.seen.clone());
            let mut changed = false;
            for (path, before) in seen {
                let now = read(&path);
                if now != before {
                    tracing::info!(path = %path.display(), "file of a certificate has changed");
                    self.with(|known| known.seen.insert(path, now));
                    changed = true;
                }
            }
            if changed {
                self.changed();
            }
        }
    }

    fn write_output(&self) {
        let Some(Output { folder, mode }) = &self.output else { return };
        let pair = match self.workload() {
            Ok(Secret::Pair { chain, key }) => [(KEY_FILE, key), (CHAIN_FILE, chain)].into_iter().collect(),
            _ => Vec::new(),
        };
        let roots = match self.roots() {
            Ok(Secret::Roots(roots)) => Some((ROOT_FILE, roots)),
            _ => None,
        };
        for (name, text) in pair.into_iter().chain(roots) {
            let path = folder.join(name);
            if std::fs::read(&path).is_ok_and(|before| before == text.as_bytes()) {
                continue;
            }
            if let Err(error) = write(&path, &text, *mode) {
                tracing::error!(%error, path = %path.display(), "OUTPUT_CERTS: cannot write; check that the folder can be written to");
            }
        }
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let length = std::fs::metadata(path).ok()?.len();
    if length > LARGEST_FILE { None } else { std::fs::read(path).ok() }
}

/// Nobody ever sees half of it.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    let draft = path.with_extension("tmp");
    // One that was left over could have another mode.
    let _none = std::fs::remove_file(&draft);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
    io::Write::write_all(&mut file, text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&draft, path)
}
