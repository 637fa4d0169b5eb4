use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Enough to tell that a file is not the one it was. A symbolic link has the stamp of what it leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What a folder holds.
#[derive(Default, Debug)]
pub(crate) struct Walk {
    pub(crate) files: BTreeMap<PathBuf, Stamp>,
    /// Every folder in which a change may matter, by its real path: those of the tree, with the path that leads there, and
    /// those that links lead into.
    pub(crate) folders: BTreeMap<PathBuf, Option<PathBuf>>,
    /// What could not be looked at. What is below may be there or not.
    pub(crate) errors: Vec<(PathBuf, String)>,
}

impl Walk {
    /// Is a file that was not found surely not there?
    pub(crate) fn surely_lacks(&self, path: &Path) -> bool {
        !self.files.contains_key(path) && !self.errors.iter().any(|(unseen, _)| path.starts_with(unseen))
    }
}

/// Deeper trees are a mistake, or a loop of links.
const MAX_DEPTH: usize = 32;

/// Finds all YAML and JSON files. Names that begin with a dot are left out: editors, version control and Kubernetes keep
/// theirs there. Fails only if the folder itself cannot be read.
pub(crate) fn walk(root: &Path) -> io::Result<Walk> {
    std::fs::read_dir(root)?;
    let mut walk = Walk::default();
    let mut seen = BTreeSet::new();
    enter(root, 0, &mut seen, &mut walk);
    Ok(walk)
}

fn enter(folder: &Path, depth: usize, seen: &mut BTreeSet<PathBuf>, walk: &mut Walk) {
    let real = match folder.canonicalize() {
        Ok(real) => real,
        Err(error) => return walk.errors.push((folder.to_owned(), error.to_string())),
    };
    // The same folder by two ways, or a link to a folder above.
    if depth > MAX_DEPTH || !seen.insert(real.clone()) {
        return;
    }
    walk.folders.insert(real, Some(folder.to_owned()));
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return walk.errors.push((folder.to_owned(), error.to_string())),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if is_hidden(&path) {
            continue;
        }
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => enter(&path, depth + 1, seen, walk),
            Ok(metadata) if metadata.is_file() && is_ours(&path) => {
                if is_link && let Some(parent) = real_parent(&path) {
                    walk.folders.entry(parent).or_default();
                }
                walk.files.insert(path, Stamp::of(&metadata));
            }
            // Gone between listing and looking, or a link that leads nowhere: what leads there tells when it changes.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                walk.errors.push((path, error.to_string()));
            }
            Ok(_) | Err(_) => {}
        }
    }
}

pub(crate) fn real_parent(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()?.parent().map(Path::to_owned)
}

/// The folder that holds the name of a path, or the closest one above that exists, with the name in it that leads on.
pub(crate) fn above(path: &Path) -> Option<(PathBuf, OsString)> {
    let absolute = std::path::absolute(path).ok()?;
    let mut at = absolute.as_path();
    loop {
        let parent = at.parent()?;
        if let Ok(real) = parent.canonicalize() {
            return Some((real, at.file_name()?.to_owned()));
        }
        at = parent;
    }
}

pub(crate) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

pub(crate) fn is_ours(path: &Path) -> bool {
    path.extension().and_then(|e| e.to_str()).is_some_and(|e| matches!(e, "yaml" | "yml" | "json"))
}
