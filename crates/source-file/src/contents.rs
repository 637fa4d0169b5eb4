use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pilot_base::{Issue, Name};
use pilot_config::Reading;
use pilot_model::{ConfigId, Kind, Object, ObjectKey};
use pilot_source::{Batch, Event};
use smallvec::SmallVec;

/// Which file says what. The objects themselves are kept by the engine, not here.
#[derive(Default)]
pub(crate) struct Contents {
    files: BTreeMap<Arc<Path>, Vec<Said>>,
    /// The files that say an object, in order; of several, the last one counts. Nearly always it is one.
    sayers: BTreeMap<ObjectKey, SmallVec<[Arc<Path>; 1]>>,
    /// Files with issues.
    troubled: BTreeSet<PathBuf>,
}

/// One object that a file says.
#[derive(Clone)]
struct Said {
    kind: Kind,
    id: ConfigId,
    key: ObjectKey,
}

/// What was found when a file was looked at.
pub(crate) enum Look {
    Gone,
    /// It cannot be read as a whole, so it keeps what it said.
    Unreadable(Issue),
    Read(Reading),
}

/// What changed, and which files must be looked at again because one that counted before them has gone silent.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) batch: Batch,
    pub(crate) again: BTreeSet<PathBuf>,
}

impl Contents {
    pub(crate) fn apply(&mut self, path: &Path, look: Look, outcome: &mut Outcome) {
        match look {
            Look::Unreadable(issue) => self.note(path, vec![issue], outcome),
            Look::Gone => {
                for said in self.files.remove(path).unwrap_or_default() {
                    self.unsay(path, &said.key, outcome);
                }
                self.note(path, Vec::new(), outcome);
            }
            Look::Read(reading) => self.read(path, reading, outcome),
        }
    }

    /// Does the file lack anything that it said before?
    pub(crate) fn would_lose(&self, path: &Path, look: &Look) -> bool {
        let Some(before) = self.files.get(path) else { return false };
        match look {
            Look::Gone => true,
            Look::Unreadable(_) => false,
            Look::Read(Reading { objects, broken, .. }) => {
                let now: BTreeSet<(Kind, &ConfigId)> = objects
                    .iter()
                    .map(|(kind, id, _)| (*kind, id))
                    .chain(broken.iter().map(|(kind, id)| (*kind, id)))
                    .collect();
                before.iter().any(|said| !now.contains(&(said.kind, &said.id)))
            }
        }
    }

    fn read(&mut self, path: &Path, reading: Reading, outcome: &mut Outcome) {
        let Reading { objects, broken, mut issues } = reading;
        let (path, before) = self.files.remove_entry(path).unwrap_or_else(|| (path.into(), Vec::new()));
        let is_broken = |said: &&Said| broken.iter().any(|(kind, id)| *kind == said.kind && *id == said.id);
        let mut now: BTreeMap<ObjectKey, Said> =
            before.iter().filter(is_broken).map(|said| (said.key.clone(), said.clone())).collect();
        let mut latest: BTreeMap<ObjectKey, Object> = BTreeMap::new();
        for (kind, id, object) in objects {
            let key = object.key();
            if latest.insert(key.clone(), object).is_some() {
                issues.push(twice(kind, &id, &path, "twice in this file"));
            }
            now.insert(key.clone(), Said { kind, id, key });
        }
        for said in before.iter().filter(|said| !now.contains_key(&said.key)) {
            self.unsay(&path, &said.key, outcome);
        }
        for (key, object) in latest {
            let sayers = self.sayers.entry(key.clone()).or_default();
            if let Err(at) = sayers.binary_search(&path) {
                sayers.insert(at, Arc::clone(&path));
            }
            let (said, last) = (&now[&key], sayers.last());
            match last {
                Some(last) if *last != path => {
                    let what = format!("also in {}, which comes later", last.display());
                    issues.push(twice(said.kind, &said.id, &path, &what));
                }
                _ => {
                    if let Some(other) = sayers.iter().rev().nth(1) {
                        let what = format!("also in {}, which comes earlier", other.display());
                        issues.push(twice(said.kind, &said.id, &path, &what));
                    }
                    outcome.batch.events.push(Event::Apply(object));
                }
            }
        }
        if !now.is_empty() {
            self.files.insert(Arc::clone(&path), now.into_values().collect());
        }
        self.note(&path, issues, outcome);
    }

    fn note(&mut self, path: &Path, issues: Vec<Issue>, outcome: &mut Outcome) {
        let was_troubled = self.troubled.remove(path);
        if !issues.is_empty() {
            self.troubled.insert(path.to_owned());
        }
        if was_troubled || !issues.is_empty() {
            outcome.batch.issues.push((Name::from(path.display().to_string()), issues));
        }
    }

    /// A file no longer says an object: another one's word counts, or the object is gone.
    fn unsay(&mut self, path: &Path, key: &ObjectKey, outcome: &mut Outcome) {
        let Some(sayers) = self.sayers.get_mut(key) else { return };
        sayers.retain(|sayer| **sayer != *path);
        match sayers.last() {
            None => {
                self.sayers.remove(key);
                outcome.batch.events.push(Event::Delete(key.clone()));
            }
            // The object of the one that counts now is not kept here, and one that was doubled may not be any more.
            Some(last) => {
                outcome.again.insert(last.to_path_buf());
            }
        }
    }
}

fn twice(kind: Kind, id: &ConfigId, path: &Path, what: &str) -> Issue {
    let message = format!("this object is {what}; the last one counts");
    Issue::warning(id.object(kind), "metadata.name", message).at(path.display().to_string())
}
