//! The last configuration that Envoy took, kept in a file, so that an Envoy that starts while the control plane is away comes
//! up with it. Only who asks for it has it: what is on disk can be old.
//!
//! Certificates and keys that the control plane itself sends are not kept: they do not belong on a disk.

mod record;
mod replay;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use prost::Message as _;
use ring::digest::{SHA256, digest};

use crate::clock::unix_seconds;
use crate::metrics::Metrics;
pub(crate) use record::Recorder;

const FILE: &str = "xds-snapshot";
/// The first line. Another number is another form.
const MAGIC: &str = "pilot xds snapshot 1\n";
const SEAL: usize = 64;
/// The one resource of its type that is the agent's own, which is kept without an `Any` around it.
const TABLE: &str = "";
/// Changes that come together are written together.
const PAUSE: Duration = Duration::from_secs(1);

/// Why there is no snapshot to start with.
#[derive(thiserror::Error, Debug)]
pub(crate) enum SnapshotError {
    #[error("the snapshot {path} cannot be read")]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "the snapshot {path} is damaged ({reason}) and is not used; remove it, the next one takes its place"
    )]
    Damaged { path: PathBuf, reason: &'static str },
    #[error("the snapshot {path} is of the node {found} and not of {wanted}, and is not used")]
    OfAnother { path: PathBuf, found: String, wanted: String },
}

/// One resource as Envoy has it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Kept {
    version: String,
    /// An `Any`.
    any: Bytes,
}

/// By type and name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Configuration {
    types: BTreeMap<String, BTreeMap<String, Kept>>,
    /// When the control plane last said something of it, in seconds since 1970.
    confirmed: i64,
}

/// What is kept, and where.
pub(crate) struct Keeper {
    file: PathBuf,
    node: String,
    metrics: Arc<Metrics>,
    kept: Mutex<State>,
}

#[derive(Default)]
struct State {
    configuration: Configuration,
    is_saved: bool,
}

impl Keeper {
    /// With what an agent before this one has left. What cannot be used is told, and is as if it were not there.
    pub(crate) fn open(directory: &Path, node: &str, metrics: Arc<Metrics>) -> Self {
        let file = directory.join(FILE);
        let configuration = match read(&file, node) {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => {
                tracing::error!("{:#}", anyhow::Error::from(error));
                Configuration::default()
            }
        };
        metrics.snapshot_confirmed(configuration.confirmed);
        let kept = Mutex::new(State { configuration, is_saved: true });
        Self { file, node: node.to_owned(), metrics, kept }
    }

    pub(super) fn recorder(self: &Arc<Self>, protocol: crate::wire::Protocol) -> Recorder {
        Recorder::new(Arc::clone(self), protocol)
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // What could panic under this lock is a bug that has shown itself; the map is whole in any case.
        act(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes what is kept, if it is another.
    fn update(&self, act: impl FnOnce(&mut BTreeMap<String, BTreeMap<String, Kept>>)) {
        let confirmed = unix_seconds();
        self.with(|state| {
            act(&mut state.configuration.types);
            state.configuration.confirmed = confirmed;
            state.is_saved = false;
        });
        self.metrics.snapshot_confirmed(confirmed);
    }

    /// Writes what has changed, until it is dropped.
    pub(crate) async fn save_changes(self: Arc<Self>) {
        let mut told = false;
        loop {
            tokio::time::sleep(PAUSE).await;
            match self.save() {
                Ok(()) => told = false,
                Err(error) => {
                    if !told {
                        tracing::error!(%error, file = %self.file.display(), "the snapshot cannot be written");
                    }
                    told = true;
                }
            }
        }
    }

    fn save(&self) -> io::Result<()> {
        let changed = self.with(|state| {
            (!std::mem::replace(&mut state.is_saved, true)).then(|| state.configuration.clone())
        });
        let Some(configuration) = changed else { return Ok(()) };
        let written = write(&self.file, &sealed(&configuration, &self.node));
        if written.is_err() {
            self.with(|state| state.is_saved = false);
        }
        written
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct File {
    #[prost(string, tag = "1")]
    node: String,
    #[prost(int64, tag = "2")]
    confirmed: i64,
    #[prost(message, repeated, tag = "3")]
    resources: Vec<FileResource>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FileResource {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    version: String,
    #[prost(bytes = "bytes", tag = "4")]
    any: Bytes,
}

/// The first line, the seal over the rest, and the rest.
fn sealed(configuration: &Configuration, node: &str) -> Vec<u8> {
    let mut resources = Vec::new();
    for (type_url, all) in &configuration.types {
        for (name, Kept { version, any }) in all {
            resources.push(FileResource {
                type_url: type_url.clone(),
                name: name.clone(),
                version: version.clone(),
                any: any.clone(),
            });
        }
    }
    let body = File { node: node.to_owned(), confirmed: configuration.confirmed, resources }.encode_to_vec();
    let mut out = MAGIC.as_bytes().to_vec();
    out.extend(seal(&body).as_bytes());
    out.extend(body);
    out
}

fn seal(body: &[u8]) -> String {
    HEXLOWER.encode(digest(&SHA256, body).as_ref())
}

fn read(path: &Path, node: &str) -> Result<Option<Configuration>, SnapshotError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SnapshotError::Unreadable { path: path.to_owned(), source }),
    };
    let damaged = |reason| SnapshotError::Damaged { path: path.to_owned(), reason };
    let rest = bytes.strip_prefix(MAGIC.as_bytes()).ok_or_else(|| damaged("it does not begin as one"))?;
    let (found, body) = rest.split_at_checked(SEAL).ok_or_else(|| damaged("it ends early"))?;
    if found != seal(body).as_bytes() {
        return Err(damaged("its checksum is another"));
    }
    let file = File::decode(body).map_err(|_| damaged("it is not protobuf"))?;
    if file.node != node {
        let (found, wanted) = (file.node, node.to_owned());
        return Err(SnapshotError::OfAnother { path: path.to_owned(), found, wanted });
    }
    let mut configuration = Configuration { confirmed: file.confirmed, ..Configuration::default() };
    for FileResource { type_url, name, version, any } in file.resources {
        configuration.types.entry(type_url).or_default().insert(name, Kept { version, any });
    }
    Ok(Some(configuration))
}

/// Nobody else may read it, and nobody ever sees half of it.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("tmp");
    // One that was left over could have another mode.
    let _none = std::fs::remove_file(&draft);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    let moved = written.and_then(|()| std::fs::rename(&draft, path));
    if moved.is_err() {
        let _gone = std::fs::remove_file(&draft);
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::{Configuration, Kept, read, sealed, write};
    use bytes::Bytes;
    use std::os::unix::fs::PermissionsExt as _;

    fn configuration() -> Configuration {
        let mut configuration = Configuration { confirmed: 7, ..Configuration::default() };
        let kept = Kept { version: "1".to_owned(), any: Bytes::from_static(b"any") };
        configuration.types.entry("clusters".to_owned()).or_default().insert("a".to_owned(), kept);
        configuration
    }

    #[test]
    fn what_is_written_is_read_by_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        assert_eq!(read(&path, "me").unwrap(), None);
        write(&path, &sealed(&configuration(), "me")).unwrap();
        assert_eq!(read(&path, "me").unwrap(), Some(configuration()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = read(&path, "you").unwrap_err().to_string();
        assert!(error.contains("of the node me and not of you"), "{error}");
    }

    #[test]
    fn a_damaged_one_is_refused_wherever_it_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        let whole = sealed(&configuration(), "me");
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let error = read(&path, "me").unwrap_err().to_string();
            assert!(error.contains("is damaged") && error.contains("remove it"), "{at}: {error}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(read(&path, "me").is_err(), "{at}");
        }
    }
}
