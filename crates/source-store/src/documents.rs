mod held;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pilot_base::{Hash64, Issue, Name, ObjectRef};
use pilot_config::{ReadOptions, Reading};
use pilot_model::{ConfigId, Kind, Object, ObjectKey};
use pilot_source::{Batch, Contact, Event, Keeps, Suspicion};
use tokio::time::Instant;

use self::held::Held;

/// A store, and how its documents are read.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How people call it.
    pub name: Name,
    pub read: ReadOptions,
    /// How long documents are kept that are missing from the first answer after a loss, if that is hardly true.
    pub grace: Duration,
    /// Where the adapter notes that it heard of its store.
    pub contact: Contact,
}

/// As for registries.
const GRACE: Duration = Duration::from_secs(90);

impl StoreOptions {
    pub fn new(name: &str, read: ReadOptions) -> Self {
        Self { name: Name::new(name), read, grace: GRACE, contact: Contact::default() }
    }
}

/// All documents of one store, and what they say.
pub struct Documents {
    options: StoreOptions,
    documents: BTreeMap<String, Document>,
    /// The documents that say an object; of several, the first by its key counts.
    sayers: BTreeMap<ObjectKey, BTreeSet<String>>,
    begun: bool,
    /// Why the store cannot be asked, if it cannot.
    lost: Option<String>,
    held: Held,
    /// What people should know of the store, though it can be asked.
    warning: Option<String>,
    /// What is wrong with the store itself, as it was told.
    told: Vec<String>,
}

#[derive(Default)]
struct Document {
    content: Hash64,
    objects: BTreeMap<ObjectKey, (Kind, ConfigId, Object)>,
    /// What is wrong with it, whatever others say.
    issues: Vec<Issue>,
    /// What was told to be wrong with it.
    told: Vec<Issue>,
}

/// A document of this size is not one that people or tools write for a mesh.
const MAX_BYTES: usize = 16 << 20;

impl Documents {
    pub fn new(options: StoreOptions) -> Self {
        let (documents, sayers, held, told) = Default::default();
        Self { options, documents, sayers, begun: false, lost: None, held, warning: None, told }
    }

    /// These are all documents there are, told in one batch.
    pub fn replace(&mut self, all: impl IntoIterator<Item = (String, Vec<u8>)>) -> Batch {
        self.lost = None;
        let (mut batch, mut seen) = (Batch::default(), BTreeSet::new());
        for (key, bytes) in all {
            self.put_into(&key, &bytes, &mut batch);
            seen.insert(key);
        }
        let missing: BTreeSet<String> =
            self.documents.keys().filter(|key| !seen.contains(*key)).cloned().collect();
        for key in self.held.gone(&missing, (self.documents.len(), self.options.grace)) {
            self.remove_into(&key, &mut batch);
        }
        self.tell_own(&mut batch);
        if !std::mem::replace(&mut self.begun, true) {
            // Of what one document said and another says better, the last word counts.
            let mut last: BTreeMap<ObjectKey, Object> = BTreeMap::new();
            for event in std::mem::take(&mut batch.events) {
                match event {
                    Event::Apply(object) => _ = last.insert(object.key(), object),
                    Event::Delete(key) => _ = last.remove(&key),
                    _ => {}
                }
            }
            batch.events.push(Event::Init);
            batch.events.extend(last.into_values().map(Event::InitApply));
            batch.events.push(Event::InitDone);
        }
        batch
    }

    /// The store can be asked, and has what it had.
    pub fn found(&mut self) -> Batch {
        self.lost = None;
        self.held.is_the_same(self.options.grace);
        let mut batch = Batch::default();
        self.tell_own(&mut batch);
        batch
    }

    /// One document is like this now.
    pub fn put(&mut self, key: &str, bytes: &[u8]) -> Batch {
        let mut batch = Batch::default();
        self.put_into(key, bytes, &mut batch);
        self.tell_own(&mut batch);
        batch
    }

    pub fn remove(&mut self, key: &str) -> Batch {
        let mut batch = Batch::default();
        self.remove_into(key, &mut batch);
        self.tell_own(&mut batch);
        batch
    }

    /// The store may have forgotten what it knew.
    pub fn doubt(&mut self, doubt: Suspicion) {
        self.held.doubt(doubt);
    }

    /// What people should know of the store, though it can be asked; told with what is told next.
    pub fn warn(&mut self, what: Option<String>) {
        self.warning = what;
    }

    fn place(&self, key: &str) -> Name {
        Name::from(format!("{}/{key}", self.options.name))
    }

    /// Tells what is wrong with the store itself, if that is something else than before.
    fn tell_own(&mut self, batch: &mut Batch) {
        let name = &self.options.name;
        let object = ObjectRef::new("ConfigStore", Name::empty(), name.clone());
        let lost = self.lost.iter().map(|why| Issue::error(object.clone(), "", why.as_str()));
        let doubts = self.held.why().into_iter().chain(self.warning.as_deref());
        let doubts = doubts.map(|why| Issue::warning(object.clone(), "", why));
        let issues: Vec<Issue> = lost.chain(doubts).map(|issue| issue.at(name.as_str())).collect();
        let told: Vec<String> = issues.iter().map(ToString::to_string).collect();
        if self.told != told {
            self.told = told;
            batch.issues.push((name.clone(), issues));
        }
    }

    fn put_into(&mut self, key: &str, bytes: &[u8], batch: &mut Batch) {
        self.held.back(key);
        let content = Hash64::of(bytes);
        if self.documents.get(key).is_some_and(|document| document.content == content) {
            return;
        }
        let place = self.place(key);
        let text = match std::str::from_utf8(bytes) {
            Ok(text) if bytes.len() <= MAX_BYTES => Ok(text),
            Ok(_) => Err(format!("is larger than {} MiB", MAX_BYTES >> 20)),
            Err(error) => Err(format!("is not UTF-8: {error}")),
        };
        let read = text.map_err(|message| {
            let object = ObjectRef::new("Document", Name::empty(), key);
            Issue::error(object, "", message).at(place.as_str())
        });
        let read = read.and_then(|text| pilot_config::read(text, &place, &self.options.read));
        match read {
            Err(issue) => {
                // It keeps what it said.
                let document = self.documents.entry(key.to_owned()).or_default();
                (document.content, document.issues) = (content, vec![issue]);
                self.tell_issues(key, batch);
            }
            Ok(reading) => self.say(key, content, reading, batch),
        }
    }

    fn say(&mut self, key: &str, content: Hash64, reading: Reading, batch: &mut Batch) {
        let Reading { objects, broken, mut issues } = reading;
        let Document { objects: before, told, .. } = self.documents.remove(key).unwrap_or_default();
        let mut now: BTreeMap<ObjectKey, (Kind, ConfigId, Object)> = BTreeMap::new();
        for (object_key, (kind, id, object)) in &before {
            if broken.iter().any(|(broken_kind, broken_id)| broken_kind == kind && broken_id == id) {
                now.insert(object_key.clone(), (*kind, id.clone(), object.clone()));
            }
        }
        let mut seen = BTreeSet::new();
        for (kind, id, object) in objects {
            if !seen.insert(object.key()) {
                let message = "this object is twice in this document; the last one counts";
                let place = self.place(key);
                issues.push(Issue::warning(id.object(kind), "metadata.name", message).at(place.as_str()));
            }
            now.insert(object.key(), (kind, id, object));
        }
        for object_key in now.keys() {
            self.sayers.entry(object_key.clone()).or_default().insert(key.to_owned());
        }
        let gone: Vec<ObjectKey> = before.keys().filter(|key| !now.contains_key(*key)).cloned().collect();
        let changed: Vec<ObjectKey> = now
            .iter()
            .filter(|(object_key, (_, _, object))| {
                before.get(*object_key).is_none_or(|(_, _, old)| old != object)
            })
            .map(|(object_key, _)| object_key.clone())
            .collect();
        self.documents.insert(key.to_owned(), Document { content, objects: now, issues, told });
        for object_key in &changed {
            if self.counts(object_key, key) {
                self.tell(object_key, batch);
            }
        }
        for object_key in &gone {
            self.unsay(key, object_key, batch);
        }
        self.tell_issues(key, batch);
        self.tell_others(key, changed.iter().chain(&gone), batch);
    }

    fn remove_into(&mut self, key: &str, batch: &mut Batch) {
        self.held.back(key);
        let Some(document) = self.documents.remove(key) else { return };
        for object_key in document.objects.keys() {
            self.unsay(key, object_key, batch);
        }
        if !document.told.is_empty() {
            batch.issues.push((self.place(key), Vec::new()));
        }
        self.tell_others(key, document.objects.keys(), batch);
    }

    /// A document says something else of these objects: those that say them too may be right now, or wrong.
    fn tell_others<'a>(
        &mut self,
        key: &str,
        objects: impl Iterator<Item = &'a ObjectKey>,
        batch: &mut Batch,
    ) {
        let sayers = objects.filter_map(|object| self.sayers.get(object)).flatten();
        let others: BTreeSet<String> = sayers.filter(|other| *other != key).cloned().collect();
        for other in others {
            self.tell_issues(&other, batch);
        }
    }

    /// Tells what is wrong with a document, if that is something else than before.
    fn tell_issues(&mut self, key: &str, batch: &mut Batch) {
        let place = self.place(key);
        let Some(document) = self.documents.get(key) else { return };
        let mut issues = document.issues.clone();
        for (object, (kind, id, _)) in &document.objects {
            let first = self.sayers.get(object).and_then(BTreeSet::first);
            if let Some(first) = first.filter(|first| *first != key) {
                let message = format!("this object is also in {first}, which comes first and counts");
                issues.push(Issue::error(id.object(*kind), "metadata.name", message).at(place.as_str()));
            }
        }
        if let Some(document) = self.documents.get_mut(key).filter(|document| document.told != issues) {
            document.told.clone_from(&issues);
            batch.issues.push((place, issues));
        }
    }

    fn counts(&self, object: &ObjectKey, key: &str) -> bool {
        self.sayers.get(object).and_then(BTreeSet::first).is_some_and(|first| first == key)
    }

    /// A document no longer says an object: another one's word counts, or the object is gone.
    fn unsay(&mut self, key: &str, object: &ObjectKey, batch: &mut Batch) {
        let counted = self.counts(object, key);
        let Some(sayers) = self.sayers.get_mut(object) else { return };
        sayers.remove(key);
        if sayers.is_empty() {
            self.sayers.remove(object);
            batch.events.push(Event::Delete(object.clone()));
        } else if counted {
            self.tell(object, batch);
        }
    }

    fn tell(&self, object: &ObjectKey, batch: &mut Batch) {
        let first = self.sayers.get(object).and_then(BTreeSet::first);
        let said = first.and_then(|key| self.documents.get(key)?.objects.get(object));
        if let Some((_, _, object)) = said {
            batch.events.push(Event::Apply(object.clone()));
        }
    }
}

impl Keeps for Documents {
    fn lose(&mut self, why: &str) -> Batch {
        self.lost = Some(format!("{why}; what it said before still counts"));
        self.doubt(Suspicion::Lost);
        let mut batch = Batch::default();
        self.tell_own(&mut batch);
        batch
    }

    fn due(&self) -> Option<Instant> {
        self.held.due()
    }

    fn give_up(&mut self) -> Batch {
        let mut batch = Batch::default();
        for key in self.held.give_up() {
            self.remove_into(&key, &mut batch);
        }
        self.tell_own(&mut batch);
        batch
    }

    fn contact(&self) -> &Contact {
        &self.options.contact
    }
}

#[cfg(test)]
mod tests;
