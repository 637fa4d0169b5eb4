use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pilot_base::{Issue, Name, ObjectRef};
use pilot_config::ReadOptions;
use pilot_source::{Batch, Event, Running, Sink, Source};
use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};
use tokio::time::Instant;

use crate::contents::{Contents, Look, Outcome};
use crate::walk::{Stamp, Walk, above, is_hidden, is_ours, walk};
use crate::watch::{Interest, Touched, Watch, may_lead_on};

/// A folder that is followed.
pub struct FileSource {
    folder: Folder,
    watch: Watch,
    /// How often it is looked at without a word of the kernel.
    every: Option<Duration>,
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
        if let Err(error) = std::fs::read_dir(&root) {
            return Err(OpenError::Folder { path: root, error });
        }
        let watch = Watch::new(interest(&root))?;
        Ok(Self { folder: Folder::new(root, options), watch, every: None })
    }

    /// Looks at the whole folder so often too, for file systems of which the kernel tells nothing.
    #[must_use]
    pub fn polled(self, every: Duration) -> Self {
        Self { every: Some(every), ..self }
    }
}

/// In the folder above, only what leads to the root matters.
fn interest(root: &Path) -> Interest {
    let above = above(root);
    let leads_on = move |path: &Path| match &above {
        Some((folder, name)) if path.parent() == Some(folder) => path.file_name() == Some(name),
        _ => may_lead_on(path),
    };
    Interest { is_read: Box::new(|path| is_ours(path) && !is_hidden(path)), leads_on: Box::new(leads_on) }
}

impl Source for FileSource {
    fn name(&self) -> Name {
        Name::from(self.folder.root.display().to_string())
    }

    fn run(self: Box<Self>, sink: Sink) -> Running {
        let Self { mut folder, mut watch, every } = *self;
        Box::pin(async move {
            let mut touched = Touched::anything();
            loop {
                // Reading files blocks, so it is done where that is allowed.
                let work = tokio::task::spawn_blocking(move || {
                    let batch = folder.look(&mut watch, touched);
                    (folder, watch, batch)
                });
                let batch;
                (folder, watch, batch) = work.await.expect("reading a folder does not panic");
                if !batch.is_empty() && sink.send(batch).await.is_err() {
                    return;
                }
                touched = tokio::select! {
                    touched = watch.next() => touched,
                    () = sink.closed() => return,
                    () = second_look(&folder.doubted) => Touched::default(),
                    () = time_passed(every) => Touched::anything(),
                };
            }
        })
    }
}

async fn time_passed(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}

async fn second_look(doubted: &BTreeMap<PathBuf, Instant>) {
    match doubted.values().min() {
        Some(first) => tokio::time::sleep_until(*first + SECOND_LOOK).await,
        None => std::future::pending().await,
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
    /// Files that somebody is writing; they are read when they are closed.
    writing: BTreeSet<PathBuf>,
    /// Files that are not there or do not say any more what they said; they are believed when nothing was told of them for
    /// a moment.
    doubted: BTreeMap<PathBuf, Instant>,
    /// Has everything been told once?
    begun: bool,
    /// Is there an issue about the folder itself?
    troubled: bool,
}

impl Folder {
    fn new(root: PathBuf, options: ReadOptions) -> Self {
        let (stamps, folders, contents, writing, doubted) = Default::default();
        Self { root, options, stamps, folders, contents, writing, doubted, begun: false, troubled: false }
    }

    /// What changed since the last look, as far as `touched` says where to look.
    fn look(&mut self, watch: &mut Watch, touched: Touched) -> Batch {
        let Touched { files, begun, vanished, anything } = touched;
        let anything = anything || vanished.iter().any(|path| self.was_folder(path));
        let (files, begun) = (self.led_to(files), self.led_to(begun));
        match (files, begun) {
            (Some(files), Some(begun)) if !anything && self.begun => {
                self.writing.retain(|path| !files.contains(path));
                self.writing.extend(begun);
                self.look_at(&files)
            }
            // What is told of folders that links lead into is told by the stamps of the links.
            (files, begun) => {
                self.writing = begun.unwrap_or_default();
                self.look_everywhere(watch, &files.unwrap_or_default())
            }
        }
    }

    /// The paths in the tree that are meant by real ones; nothing if a link leads there.
    fn led_to(&self, paths: BTreeSet<PathBuf>) -> Option<BTreeSet<PathBuf>> {
        paths.into_iter().map(|path| self.lead(&path)).collect()
    }

    fn lead(&self, real: &Path) -> Option<PathBuf> {
        let folder = self.folders.get(real.parent()?)?.as_ref()?;
        Some(folder.join(real.file_name()?))
    }

    /// Was there a folder, or a link to one, under a name that is gone?
    fn was_folder(&self, real: &Path) -> bool {
        let path = self.lead(real);
        self.folders.contains_key(real)
            || self.folders.values().any(|folder| folder.is_some() && *folder == path)
    }

    /// Looks at files of which something was told, and again at those that were missing. They are read even if their
    /// stamps are the same: two saves may happen within one tick of the kernel's clock.
    fn look_at(&mut self, files: &BTreeSet<PathBuf>) -> Batch {
        let again = self.looked_at_again(files);
        let mut changed = BTreeMap::new();
        for path in files.iter().chain(&again) {
            let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
            match found.map(|metadata| Stamp::of(&metadata)) {
                Some(stamp) if !self.writing.contains(path) => _ = changed.insert(path.clone(), Some(stamp)),
                Some(_) => {}
                None => self.miss(path, &again, &mut changed),
            }
        }
        self.take_in(changed, &again)
    }

    /// The files that were doubted for long enough. Of what was told anew it is too early to believe anything.
    fn looked_at_again(&mut self, told: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
        self.doubted.retain(|path, _| !told.contains(path));
        let now = Instant::now();
        let ripe = self.doubted.extract_if(.., |_, since| now >= *since + SECOND_LOOK);
        ripe.map(|(path, _)| path).collect()
    }

    fn doubt(&mut self, path: PathBuf) {
        self.doubted.entry(path).or_insert_with(Instant::now);
    }

    /// Editors and version control replace a file by removing it first, so one that is missing is looked for once more.
    fn miss(
        &mut self,
        path: &Path,
        doubted_before: &BTreeSet<PathBuf>,
        changed: &mut BTreeMap<PathBuf, Option<Stamp>>,
    ) {
        if doubted_before.contains(path) {
            changed.insert(path.to_owned(), None);
        } else if self.stamps.contains_key(path) {
            self.doubt(path.to_owned());
        }
    }

    fn look_everywhere(&mut self, watch: &mut Watch, told: &BTreeSet<PathBuf>) -> Batch {
        let mut found = match self.walk(watch) {
            Ok(found) => found,
            Err(error) => return self.lose(&error),
        };
        let again = self.looked_at_again(told);
        let mut changed: BTreeMap<PathBuf, Option<Stamp>> = BTreeMap::new();
        let gone: Vec<PathBuf> =
            self.stamps.keys().filter(|path| found.surely_lacks(path)).cloned().collect();
        for path in &gone {
            self.miss(path, &again, &mut changed);
        }
        for (path, stamp) in &found.files {
            let differs = told.contains(path) || again.contains(path) || self.stamps.get(path) != Some(stamp);
            if differs && !self.writing.contains(path) {
                changed.insert(path.clone(), Some(*stamp));
            }
        }
        self.folders = std::mem::take(&mut found.folders);
        let mut batch = self.take_in(changed, &again);
        self.note_folder(found.errors, &mut batch);
        if !std::mem::replace(&mut self.begun, true) {
            batch.events = begin(batch.events);
        }
        batch
    }

    /// Finds everything, with every folder followed before it is looked at.
    fn walk(&self, watch: &mut Watch) -> io::Result<Walk> {
        let mut unwatched = Vec::new();
        let mut followed: Option<BTreeSet<PathBuf>> = None;
        for _ in 0..MAX_LOOKS {
            let found = walk(&self.root);
            let folders = found.as_ref().ok().into_iter().flat_map(|found| found.folders.keys().cloned());
            let folders: BTreeSet<PathBuf> =
                folders.chain(above(&self.root).map(|(folder, _)| folder)).collect();
            if followed.as_ref() == Some(&folders) {
                return found.map(|mut found| {
                    found.errors.append(&mut unwatched);
                    found
                });
            }
            unwatched = watch.follow(&folders);
            followed = Some(folders);
        }
        // Folders that keep changing while they are looked at tell of it.
        walk(&self.root)
    }

    /// The folder cannot be read at the moment: all it said still counts.
    fn lose(&mut self, error: &io::Error) -> Batch {
        self.troubled = true;
        let message = format!("cannot be read: {error}; what it said before still counts");
        Batch { events: Vec::new(), issues: vec![(self.place(), vec![issue(&self.root, message)])] }
    }

    fn note_folder(&mut self, errors: Vec<(PathBuf, String)>, batch: &mut Batch) {
        let issues: Vec<Issue> = errors.into_iter().map(|(path, message)| issue(&path, message)).collect();
        let was_troubled = std::mem::replace(&mut self.troubled, !issues.is_empty());
        if was_troubled || self.troubled {
            batch.issues.push((self.place(), issues));
        }
    }

    fn place(&self) -> Name {
        Name::from(self.root.display().to_string())
    }

    /// Reads what changed, and what has to be read again because of that. Who writes a file empties it first, and may do so
    /// again while it is read: so a file that lacks what it said is read once more before that is believed.
    fn take_in(
        &mut self,
        changed: BTreeMap<PathBuf, Option<Stamp>>,
        doubted_before: &BTreeSet<PathBuf>,
    ) -> Batch {
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
                reading.into_par_iter().map(|path| (path.clone(), guarded(&path, options))).collect();
            for (path, look) in looks {
                if self.contents.would_lose(&path, &look) && !doubted_before.contains(&path) {
                    self.doubt(path);
                } else {
                    self.contents.apply(&path, look, &mut outcome);
                }
            }
            reading = std::mem::take(&mut outcome.again);
        }
        outcome.batch
    }
}

fn issue(path: &Path, message: String) -> Issue {
    Issue::error(ObjectRef::new("Folder", Name::empty(), path.display().to_string()), "", message)
}

const MAX_LOOKS: usize = 4;

/// Longer than it takes to put a file in the place of another, and short enough that nobody is called who has gone. Half of
/// it is too short where others compile: then a file that is written again and again is seen empty.
const SECOND_LOOK: Duration = Duration::from_millis(10);

/// A text that makes the reader panic is an issue like any other.
fn guarded(path: &Path, options: &ReadOptions) -> Look {
    std::panic::catch_unwind(|| read(path, options)).unwrap_or_else(|_| {
        let object = ObjectRef::new("File", Name::empty(), path.display().to_string());
        let message =
            "reading it failed, so what it said before still counts (a bug in Pilot, please report it)";
        Look::Unreadable(Issue::error(object, "", message))
    })
}

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
