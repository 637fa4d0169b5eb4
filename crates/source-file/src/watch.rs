use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use crate::walk::{is_hidden, is_ours};

/// What may have changed since the last look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Touched {
    Files(BTreeSet<PathBuf>),
    /// A folder, a link, or more than the kernel could remember.
    Anything,
}

impl Touched {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Files(mut files), Self::Files(others)) => {
                files.extend(others);
                Self::Files(files)
            }
            _ => Self::Anything,
        }
    }
}

/// Follows folders, each by itself: the kernel tells what happens, nobody asks.
pub(crate) struct Watch {
    watcher: RecommendedWatcher,
    watched: BTreeSet<PathBuf>,
    touched: mpsc::UnboundedReceiver<Touched>,
}

impl Watch {
    pub(crate) fn new() -> notify::Result<Self> {
        let (sender, touched) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let touched = event.map_or(Some(Touched::Anything), |event| meaning(&event));
            if let Some(touched) = touched {
                // Nobody listens any more only while the watch is being dropped.
                let _closed = sender.send(touched);
            }
        })?;
        Ok(Self { watcher, watched: BTreeSet::new(), touched })
    }

    /// Follows exactly these folders. Answers with those that could not be followed, and whether any was added: what
    /// happened in it before is unknown.
    pub(crate) fn follow(&mut self, folders: &BTreeSet<PathBuf>) -> (Vec<(PathBuf, String)>, bool) {
        let old: Vec<PathBuf> = self.watched.difference(folders).cloned().collect();
        for folder in old {
            // A folder that is gone is no longer watched anyway.
            let _gone = self.watcher.unwatch(&folder);
            self.watched.remove(&folder);
        }
        let new: Vec<PathBuf> = folders.difference(&self.watched).cloned().collect();
        let mut errors = Vec::new();
        let mut added = false;
        for folder in new {
            match self.watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    added = true;
                    self.watched.insert(folder);
                }
                Err(error) => errors.push((folder, explain(&error))),
            }
        }
        (errors, added)
    }

    /// Forgets a folder that went away, so that it is followed anew should it come back under its old name.
    pub(crate) fn forget_all(&mut self) {
        self.follow(&BTreeSet::new());
    }

    /// Waits for something to happen, then takes all that has happened by then.
    pub(crate) async fn next(&mut self) -> Touched {
        let Some(mut touched) = self.touched.recv().await else { return std::future::pending().await };
        while let Ok(more) = self.touched.try_recv() {
            touched = touched.and(more);
        }
        touched
    }
}

fn explain(error: &notify::Error) -> String {
    match error.kind {
        notify::ErrorKind::MaxFilesWatch => "changes here go unnoticed: the kernel's limit of watches is reached; raise fs.inotify.max_user_watches".to_owned(),
        _ => format!("changes here go unnoticed: {error}"),
    }
}

/// A file counts as changed when its writer closes it: before, it may be half written.
fn meaning(event: &notify::Event) -> Option<Touched> {
    if event.need_rescan() {
        return Some(Touched::Anything);
    }
    let paths = event.paths.iter().map(PathBuf::as_path);
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write))
        | EventKind::Modify(ModifyKind::Metadata(_)) => files(paths.filter(|path| is_file(path))),
        EventKind::Create(CreateKind::File) => all(paths.filter(|path| is_complete(path))),
        EventKind::Create(_) | EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => all(paths),
        EventKind::Any | EventKind::Other => Some(Touched::Anything),
        EventKind::Modify(_) if cfg!(target_os = "linux") => None,
        EventKind::Modify(_) => files(paths.filter(|path| is_file(path))),
        EventKind::Access(_) => None,
    }
}

/// Names that came or went: of files, or of something that leads to files.
fn all<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<Touched> {
    let (ours, others): (Vec<_>, Vec<_>) = paths.partition(|path| is_file(path));
    let leads_on =
        |path: &&Path| if is_hidden(path) { is_swap(path) } else { path.is_dir() || !path.exists() };
    if others.iter().any(leads_on) { Some(Touched::Anything) } else { files(ours.into_iter()) }
}

/// Kubernetes changes all files of a mounted ConfigMap at once by swapping a link with such a name.
fn is_swap(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."))
}

fn is_file(path: &Path) -> bool {
    is_ours(path) && !is_hidden(path)
}

/// Was it there as a whole the moment it was there at all? Links are; what is created to be written is told again when it
/// is closed.
fn is_complete(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_symlink() || m.nlink() > 1)
}

fn files<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<Touched> {
    let paths: BTreeSet<PathBuf> = paths.map(Path::to_owned).collect();
    if paths.is_empty() { None } else { Some(Touched::Files(paths)) }
}
