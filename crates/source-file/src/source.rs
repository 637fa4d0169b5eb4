use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use pilot_base::{Issue, Name, ObjectRef};
use pilot_config::ReadOptions;
use pilot_source::{Batch, Event, Running, Sink, Source};
use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};

use crate::contents::{Contents, Look, Outcome};
use crate::walk::{Stamp, Walk, above, walk};
use crate::watch::{Touched, Watch};

/// A folder that is followed.
pub struct FileSource {
    folder: Folder,
    watch: Watch,
}

/// Why a folder cannot be followed.
#[derive(thiserror::Error, Debug)]
pub enum OpenError {
    /// The folder does not exist or may not be read.
    #[error("cannot read the folder {}: {error}", path.display())]
    Folder { path: PathBuf, error: io::Error },
    /// The kernel lets nobody follow anything.
    #[error("cannot watch files: {0}; raise fs.inotify.max_user_instances if it is reached")]
    Watch(#[from] notify::Error),
}

/// A file of this size is not one that people or tools write for a mesh.
const MAX_FILE: u64 = 64 << 20;

impl FileSource {
    /// Looks whether the folder is there; it is read when the source runs.
    pub fn open(root: impl Into<PathBuf>, options: ReadOptions) -> Result<Self, OpenError> {
        let root = root.into();
        match std::fs::read_dir(&root) {
            Ok(_) => Ok(Self { folder: Folder::new(root, options), watch: Watch::new()? }),
            Err(error) => Err(OpenError::Folder { path: root, error }),
        }
    }
}

impl Source for FileSource {
    fn name(&self) -> Name {
        Name::from(self.folder.root.display().to_string())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        let Self { mut folder, mut watch } = *self;
        Box::pin(async move {
            let mut touched = Touched::Anything;
            let mut is_first = true;
            loop {
                // Reading files blocks, so it is done where that is allowed.
                let work = tokio::task::spawn_blocking(move || {
                    let mut batch = folder.look(&mut watch, touched);
                    if is_first {
                        batch.events = begin(batch.events);
                    }
                    (folder, watch, batch)
                });
                let batch;
                (folder, watch, batch) = work.await.expect("reading a folder does not panic");
                if !batch.is_empty() && sink.send(batch).await.is_err() {
                    return;
                }
                is_first = false;
                touched = tokio::select! {
                    touched = watch.next() => touched,
                    () = sink.closed() => return,
                };
            }
        })
    }
}

/// The first look tells everything there is.
fn begin(events: Vec<Event>) -> Vec<Event> {
    let all = events.into_iter().map(|event| match event {
        Event::Apply(object) => Event::InitApply(object),
        other => other,
    });
    [Event::Init].into_iter().chain(all).chain([Event::InitDone]).collect()
}

struct Folder {
    root: PathBuf,
    options: ReadOptions,
    stamps: BTreeMap<PathBuf, Stamp>,
    /// The path that leads to each real folder of the tree.
    folders: BTreeMap<PathBuf, Option<PathBuf>>,
    contents: Contents,
    lost: bool,
}

impl Folder {
    fn new(root: PathBuf, options: ReadOptions) -> Self {
        let (stamps, folders, contents) = Default::default();
        Self { root, options, stamps, folders, contents, lost: false }
    }

    /// What changed since the last look, as far as `touched` says where to look.
    fn look(&mut self, watch: &mut Watch, touched: Touched) -> Batch {
        match touched {
            Touched::Files(paths) if !self.lost => match self.led_to(&paths) {
                Some(paths) => self.look_at(paths),
                None => self.look_everywhere(watch),
            },
            _ => self.look_everywhere(watch),
        }
    }

    /// The paths in the tree that are meant by real ones; nothing if a link leads there.
    fn led_to(&self, paths: &BTreeSet<PathBuf>) -> Option<BTreeSet<PathBuf>> {
        let lead = |path: &PathBuf| {
            let folder = self.folders.get(path.parent()?)?.as_ref()?;
            Some(folder.join(path.file_name()?))
        };
        paths.iter().map(lead).collect()
    }

    fn look_at(&mut self, paths: BTreeSet<PathBuf>) -> Batch {
        let mut changed = BTreeMap::new();
        for path in paths {
            let stamp = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file);
            let stamp = stamp.map(|metadata| Stamp::of(&metadata));
            if stamp.as_ref() != self.stamps.get(&path) {
                changed.insert(path, stamp);
            }
        }
        self.take_in(changed)
    }

    fn look_everywhere(&mut self, watch: &mut Watch) -> Batch {
        let mut found = match walk(&self.root) {
            Ok(found) => found,
            Err(error) => return self.lose(watch, &error),
        };
        // What happens in a folder before it is followed is found by looking once more.
        let mut unwatched = Vec::new();
        for _ in 0..MAX_LOOKS {
            let (errors, added) = watch.follow(&self.followed(&found));
            unwatched = errors;
            match walk(&self.root) {
                Ok(again) => found = again,
                Err(error) => return self.lose(watch, &error),
            }
            if !added {
                break;
            }
        }
        let mut changed: BTreeMap<PathBuf, Option<Stamp>> = BTreeMap::new();
        let gone = self.stamps.keys().filter(|path| !found.files.contains_key(*path));
        changed.extend(gone.map(|path| (path.clone(), None)));
        let new = found.files.iter().filter(|(path, stamp)| self.stamps.get(*path) != Some(stamp));
        changed.extend(new.map(|(path, stamp)| (path.clone(), Some(*stamp))));
        self.folders = found.folders;
        let mut batch = self.take_in(changed);
        self.note_folder(found.errors.into_iter().chain(unwatched), &mut batch);
        batch
    }

    /// The folders of the tree, and the one above, which tells when the tree itself is moved or swapped.
    fn followed(&self, found: &Walk) -> BTreeSet<PathBuf> {
        found.folders.keys().cloned().chain(above(&self.root)).collect()
    }

    /// The folder cannot be read at the moment: all it said still counts.
    fn lose(&mut self, watch: &mut Watch, error: &io::Error) -> Batch {
        self.lost = true;
        watch.forget_all();
        watch.follow(&above(&self.root).into_iter().collect());
        let message = format!("cannot be read: {error}; what it said before still counts");
        Batch { events: Vec::new(), issues: vec![(self.place(), vec![self.issue(&self.root, message)])] }
    }

    fn note_folder(&mut self, errors: impl Iterator<Item = (PathBuf, String)>, batch: &mut Batch) {
        let issues: Vec<Issue> = errors.map(|(path, message)| self.issue(&path, message)).collect();
        if self.lost || !issues.is_empty() {
            batch.issues.push((self.place(), issues));
        }
        self.lost = false;
    }

    fn place(&self) -> Name {
        Name::from(self.root.display().to_string())
    }

    fn issue(&self, path: &Path, message: String) -> Issue {
        let object = ObjectRef::new("Folder", Name::empty(), path.display().to_string());
        Issue::error(object, "", message)
    }

    /// Reads what changed, and what has to be read again because of that.
    fn take_in(&mut self, changed: BTreeMap<PathBuf, Option<Stamp>>) -> Batch {
        let mut outcome = Outcome::default();
        let mut reading = BTreeSet::new();
        for (path, stamp) in changed {
            match stamp {
                Some(stamp) => {
                    self.stamps.insert(path.clone(), stamp);
                    reading.insert(path);
                }
                None => {
                    self.stamps.remove(&path);
                    self.contents.apply(&path, Look::Gone, &mut outcome);
                }
            }
        }
        reading.extend(std::mem::take(&mut outcome.again));
        // Reading an unchanged file again silences nothing, so this ends.
        while !reading.is_empty() {
            let options = &self.options;
            let looks: Vec<(PathBuf, Look)> =
                reading.into_par_iter().map(|path| (path.clone(), read(&path, options))).collect();
            for (path, look) in looks {
                self.contents.apply(&path, look, &mut outcome);
            }
            reading = std::mem::take(&mut outcome.again);
        }
        outcome.batch
    }
}

/// Folders that keep changing while they are looked at are looked at again when the watch tells.
const MAX_LOOKS: usize = 3;

fn read(path: &Path, options: &ReadOptions) -> Look {
    let name = path.display().to_string();
    let unreadable = |message: String| {
        let object = ObjectRef::new("File", Name::empty(), name.as_str());
        Look::Unreadable(Issue::error(object, "", message).at(name.as_str()))
    };
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_FILE => {
            return unreadable(format!("is larger than {} MiB", MAX_FILE >> 20));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Look::Gone,
        Err(error) => return unreadable(error.to_string()),
    }
    match std::fs::read(path).map(String::from_utf8) {
        Ok(Ok(text)) => match pilot_config::read(&text, &name, options) {
            Ok(reading) => Look::Read(reading),
            Err(issue) => Look::Unreadable(issue),
        },
        Ok(Err(error)) => unreadable(format!("is not UTF-8: {error}")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Look::Gone,
        Err(error) => unreadable(error.to_string()),
    }
}
