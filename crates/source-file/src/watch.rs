use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind, RemoveKind};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use crate::walk::is_hidden;

/// What may have changed since the last look.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Touched {
    /// Files that are complete and may say something new, or are gone.
    pub(crate) files: BTreeSet<PathBuf>,
    /// Those of them that were removed, and not put elsewhere: mostly this is meant.
    pub(crate) removed: BTreeSet<PathBuf>,
    /// Files that somebody has begun to write and not closed yet.
    pub(crate) begun: BTreeSet<PathBuf>,
    /// Names that went and were no files that are read: perhaps folders.
    pub(crate) vanished: BTreeSet<PathBuf>,
    /// A folder, a link, or more than the kernel could remember.
    pub(crate) anything: bool,
}

impl Touched {
    pub(crate) fn anything() -> Self {
        Self { anything: true, ..Self::default() }
    }

    fn file(path: &Path) -> Self {
        Self { files: BTreeSet::from([path.to_owned()]), ..Self::default() }
    }

    fn removed(path: &Path) -> Self {
        Self { removed: BTreeSet::from([path.to_owned()]), ..Self::file(path) }
    }

    fn begun(path: &Path) -> Self {
        Self { begun: BTreeSet::from([path.to_owned()]), ..Self::default() }
    }

    fn vanished(path: &Path) -> Self {
        Self { vanished: BTreeSet::from([path.to_owned()]), ..Self::default() }
    }

    /// What happened later counts: a file that was closed and is being written again is not complete.
    fn then(&mut self, later: Self) {
        self.begun.retain(|path| !later.files.contains(path));
        self.files.retain(|path| !later.begun.contains(path));
        self.removed.retain(|path| !later.begun.contains(path) && !later.files.contains(path));
        self.files.extend(later.files);
        self.removed.extend(later.removed);
        self.begun.extend(later.begun);
        self.vanished.extend(later.vanished);
        self.anything |= later.anything;
    }
}

/// Which names matter.
pub(crate) struct Interest {
    /// Is it a file that is read?
    pub(crate) is_read: Box<dyn Fn(&Path) -> bool + Send>,
    /// Can a name that came or went lead to files that are read?
    pub(crate) leads_on: Box<dyn Fn(&Path) -> bool + Send>,
}

/// Follows folders, each by itself: the kernel tells what happens, nobody asks.
pub(crate) struct Watch {
    watcher: RecommendedWatcher,
    watched: BTreeSet<PathBuf>,
    touched: mpsc::UnboundedReceiver<Touched>,
}

impl Watch {
    pub(crate) fn new(interest: Interest) -> notify::Result<Self> {
        let (sender, touched) = mpsc::unbounded_channel();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let found = event.map_or_else(|_| vec![Touched::anything()], |event| interest.meaning(&event));
            for touched in found {
                // Nobody listens any more only while the watch is being dropped.
                let _closed = sender.send(touched);
            }
        })?;
        Ok(Self { watcher, watched: BTreeSet::new(), touched })
    }

    /// Follows exactly these folders. Answers with those that could not be followed. What happened in one before it was
    /// followed is unknown, so look at them afterwards.
    pub(crate) fn follow(&mut self, folders: &BTreeSet<PathBuf>) -> Vec<(PathBuf, String)> {
        for folder in self.watched.difference(folders) {
            // A folder that is gone is no longer watched anyway.
            let _gone = self.watcher.unwatch(folder);
        }
        self.watched.clear();
        let mut errors = Vec::new();
        for folder in folders {
            // Also those that were followed before: a folder may be another one under an old name, and the kernel follows
            // the folder, not the name. Following twice is following once.
            match self.watcher.watch(folder, RecursiveMode::NonRecursive) {
                Ok(()) => _ = self.watched.insert(folder.clone()),
                Err(error) => errors.push((folder.clone(), explain(&error))),
            }
        }
        errors
    }

    /// Waits for something to happen, then takes all that has happened by then.
    pub(crate) async fn next(&mut self) -> Touched {
        let Some(mut touched) = self.touched.recv().await else { return std::future::pending().await };
        while let Ok(more) = self.touched.try_recv() {
            touched.then(more);
        }
        touched
    }
}

fn explain(error: &notify::Error) -> String {
    match error.kind {
        notify::ErrorKind::MaxFilesWatch => {
            "changes here go unnoticed: the kernel's limit of watches is reached; raise fs.inotify.max_user_watches"
                .to_owned()
        }
        _ => format!("changes here go unnoticed: {error}"),
    }
}

impl Interest {
    /// A file counts as changed when its writer closes it: before, it may be half written.
    fn meaning(&self, event: &notify::Event) -> Vec<Touched> {
        if event.need_rescan() {
            return vec![Touched::anything()];
        }
        let read = || event.paths.iter().filter(|path| (self.is_read)(path));
        match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                read().map(|path| Touched::file(path)).collect()
            }
            EventKind::Create(CreateKind::File) => {
                event.paths.iter().filter_map(|path| self.created(path)).collect()
            }
            EventKind::Remove(RemoveKind::File) => {
                event.paths.iter().filter_map(|path| self.removed(path)).collect()
            }
            EventKind::Create(_) | EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => {
                event.paths.iter().filter_map(|path| self.came_or_went(path)).collect()
            }
            EventKind::Modify(ModifyKind::Metadata(_)) => {
                event.paths.iter().filter_map(|path| self.came_or_went(path)).collect()
            }
            EventKind::Any | EventKind::Other => vec![Touched::anything()],
            EventKind::Modify(_) if cfg!(target_os = "linux") => {
                read().map(|path| Touched::begun(path)).collect()
            }
            EventKind::Modify(_) => read().map(|path| Touched::file(path)).collect(),
            EventKind::Access(_) => Vec::new(),
        }
    }

    /// A link is there as a whole the moment it is there at all, and may lead into folders that nobody follows yet. What
    /// is created to be written is told again when it is closed.
    fn created(&self, path: &Path) -> Option<Touched> {
        let metadata = std::fs::symlink_metadata(path).ok()?;
        if metadata.file_type().is_symlink() {
            return ((self.is_read)(path) || (self.leads_on)(path)).then(Touched::anything);
        }
        let is_read = (self.is_read)(path);
        is_read.then(|| if metadata.nlink() > 1 { Touched::file(path) } else { Touched::begun(path) })
    }

    fn removed(&self, path: &Path) -> Option<Touched> {
        let told = self.came_or_went(path)?;
        // A link may be in its place by now.
        Some(if told.files.contains(path) { Touched::removed(path) } else { told })
    }

    fn came_or_went(&self, path: &Path) -> Option<Touched> {
        let is_link = || std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_symlink());
        match (self.is_read)(path) {
            true if is_link() => Some(Touched::anything()),
            true => Some(Touched::file(path)),
            false if (self.leads_on)(path) => Some(Touched::anything()),
            false => (!is_hidden(path) && !path.exists()).then(|| Touched::vanished(path)),
        }
    }
}

/// Kubernetes changes all files of a mounted ConfigMap at once by swapping a link with such a name. Other hidden names do
/// not matter; other folders do.
pub(crate) fn may_lead_on(path: &Path) -> bool {
    if is_hidden(path) {
        return path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".."));
    }
    path.is_dir()
}

#[cfg(test)]
mod tests {
    use super::Touched;
    use std::path::Path;

    #[test]
    fn what_happens_later_counts() {
        let path = Path::new("a.yaml");
        let mut touched = Touched::begun(path);
        touched.then(Touched::file(path));
        assert_eq!(touched, Touched::file(path));
        touched.then(Touched::begun(path));
        assert_eq!(touched, Touched::begun(path));
        touched.then(Touched::removed(path));
        assert_eq!(touched, Touched::removed(path));
        for back in [Touched::begun(path), Touched::file(path)] {
            touched.then(back.clone());
            assert_eq!(touched, back);
        }
    }
}
