//! What a registry has told so far, so that only what differs is told again.

mod held;

use std::collections::BTreeMap;
use std::fmt;

use pilot_base::{Hash64, Issue, Name, ObjectRef};
use pilot_model::{ConfigId, Kind};

use self::held::Held;
use crate::registration::{Entries, Made, Packed, Registration, RegistryOptions, hash_of};
use crate::{Batch, Event};

/// How far the next whole answer is believed where something is missing from it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Suspicion {
    /// One service may go by itself, but not nearly everything.
    #[default]
    None,
    /// Nobody knows what happened since the last one: not everything may be gone, nor most of much.
    Lost,
    /// It is known to know less than before, or to say less: nothing may be gone.
    KnowsLess,
}

/// All services of one registry, as far as they were told.
pub struct Shelf {
    options: RegistryOptions,
    services: BTreeMap<String, Kept>,
    begun: bool,
    /// Why the registry cannot be asked, if it cannot.
    lost: Option<String>,
    /// Of the next whole answer.
    doubt: Suspicion,
    held: Held,
    /// What people should know of the registry, though it can be asked.
    warning: Option<String>,
    /// What is wrong with the registry itself, as it was told.
    told: Vec<String>,
}

struct Kept {
    content: Hash64,
    /// As it was told; after a loss it is looked at again.
    packed: Packed,
    instances: usize,
    /// The objects that stand for it, and what each of them was made of.
    objects: Vec<(ConfigId, Hash64)>,
    /// What is wrong with it, if anything is.
    trouble: Option<Hash64>,
}

impl Shelf {
    pub fn new(options: RegistryOptions) -> Self {
        let (services, held, told) = Default::default();
        Self {
            options,
            services,
            begun: false,
            lost: None,
            doubt: Suspicion::None,
            held,
            warning: None,
            told,
        }
    }

    pub fn options(&self) -> &RegistryOptions {
        &self.options
    }

    /// These are all services that there are. It is told in one batch, so nobody sees half of it. What can hardly be
    /// gone stays for a while.
    pub fn replace(&mut self, all: impl IntoIterator<Item = Registration>) -> Batch {
        self.lost = None;
        let mut batch = Batch::default();
        let all = by_name(all);
        self.hold_what_is_missing(&all);
        let kept = |name: &String| !all.contains_key(name);
        let gone: Vec<String> = self.services.keys().filter(|name| kept(name)).cloned().collect();
        for registration in all.into_values() {
            self.put_into(registration, &mut batch);
        }
        for name in gone {
            self.remove_into(&name, &mut batch);
        }
        self.tell_own(&mut batch);
        if !std::mem::replace(&mut self.begun, true) {
            let all = batch.events.into_iter().map(|event| match event {
                Event::Apply(object) => Event::InitApply(object),
                other => other,
            });
            batch.events = [Event::Init].into_iter().chain(all).chain([Event::InitDone]).collect();
        }
        batch
    }

    /// One service is like this now.
    pub fn put(&mut self, registration: Registration) -> Batch {
        let mut batch = Batch::default();
        self.put_into(registration, &mut batch);
        self.tell_own(&mut batch);
        batch
    }

    /// One service is gone.
    pub fn remove(&mut self, service: &str) -> Batch {
        let mut batch = Batch::default();
        self.remove_into(service, &mut batch);
        self.tell_own(&mut batch);
        batch
    }

    /// The registry cannot be asked: what it said before still counts. Told once, until it is something else.
    pub fn lose(&mut self, why: &impl fmt::Display) -> Batch {
        self.lost = Some(format!("{why}; what it said before still counts"));
        self.doubt(Suspicion::Lost);
        let mut batch = Batch::default();
        self.tell_own(&mut batch);
        batch
    }

    /// The registry may have forgotten what it knew. What is held is held anew.
    pub fn doubt(&mut self, doubt: Suspicion) {
        self.doubt = self.doubt.max(doubt);
        self.held.wait();
    }

    /// The registry can be asked again.
    pub fn found(&mut self) -> Batch {
        self.lost = None;
        let mut batch = Batch::default();
        self.tell_own(&mut batch);
        batch
    }

    /// What people should know of the registry, though it can be asked; told with what is told next.
    pub fn warn(&mut self, what: Option<String>) {
        self.warning = what;
    }

    /// Was a service told that the registry itself does not have at the moment?
    pub fn holds(&self, service: &str) -> bool {
        self.held.has(service)
    }

    /// Is this service known?
    pub fn has(&self, service: &str) -> bool {
        self.services.contains_key(service)
    }

    fn put_into(&mut self, mut registration: Registration, batch: &mut Batch) {
        let before = self.services.get(&registration.name);
        if let Some(before) = before {
            if registration.is_unknown() {
                let why = registration.trouble.take();
                // Those that are held are among what was told, and stay held.
                registration = Registration { trouble: why, ..before.packed.open() };
            } else {
                self.held.add_to(&mut registration, &before.packed);
            }
        }
        let content = hash_of(&registration);
        if before.is_some_and(|kept| kept.content == content) {
            return;
        }
        let before = self.services.remove(&registration.name);
        let (told, trouble) = before.map_or((Vec::new(), None), |kept| (kept.objects, kept.trouble));
        let mut entries = self.options.entries(&registration);
        let issues = std::mem::take(&mut entries.issues);
        let kept = Kept {
            content,
            packed: Packed::new(&registration),
            instances: registration.instances.len(),
            objects: differences(entries, told, batch),
            trouble: (!issues.is_empty()).then(|| hash_of(&issues)),
        };
        // What is still wrong in the same way has been told.
        if trouble != kept.trouble {
            batch.issues.push((self.place(&registration.name), issues));
        }
        self.services.insert(registration.name, kept);
    }

    fn remove_into(&mut self, service: &str, batch: &mut Batch) {
        let Some(kept) = self.services.get(service) else { return };
        if self.held.has(service) {
            // Its held instances are all that is left of it.
            let nobody = Registration { instances: Vec::new(), ..kept.packed.open() };
            return self.put_into(nobody, batch);
        }
        let Some(kept) = self.services.remove(service) else { return };
        batch.events.extend(kept.objects.into_iter().map(|(id, _)| delete(id)));
        if kept.trouble.is_some() {
            batch.issues.push((self.place(service), Vec::new()));
        }
    }

    /// Tells what is wrong with the registry itself, if that is something else than before.
    fn tell_own(&mut self, batch: &mut Batch) {
        let object = ObjectRef::new("Registry", Name::empty(), self.options.name.clone());
        let place = self.options.name.as_str();
        let lost = self.lost.iter().map(|why| Issue::error(object.clone(), "", why.as_str()).at(place));
        let doubts = self.held.why().into_iter().chain(self.warning.as_deref());
        let doubts = doubts.map(|why| Issue::warning(object.clone(), "", why).at(place));
        let issues: Vec<Issue> = lost.chain(doubts).collect();
        let told: Vec<String> = issues.iter().map(ToString::to_string).collect();
        if self.told != told {
            self.told = told;
            batch.issues.push((self.options.name.clone(), issues));
        }
    }

    fn place(&self, service: &str) -> Name {
        Name::from(format!("{}/{service}", self.options.name))
    }
}

/// What becomes of the objects of one service, and which of them there are afterwards.
fn differences(
    Entries { made, is_partial, .. }: Entries,
    told: Vec<(ConfigId, Hash64)>,
    batch: &mut Batch,
) -> Vec<(ConfigId, Hash64)> {
    let mut told: BTreeMap<ConfigId, Hash64> = told.into_iter().collect();
    let mut now = Vec::with_capacity(made.len());
    for Made { id, content, object } in made {
        match (object, told.remove(&id)) {
            (Some(_), Some(before)) if before == content => now.push((id, content)),
            (Some(object), _) => {
                batch.events.push(Event::Apply(object));
                now.push((id, content));
            }
            // Nothing of it can be used any more: better what was right before than nothing.
            (None, Some(before)) => now.push((id, before)),
            (None, None) => {}
        }
    }
    for (id, before) in told {
        // Those that cannot be read may be the ones that it was made of.
        if is_partial {
            now.push((id, before));
        } else {
            batch.events.push(delete(id));
        }
    }
    now
}

fn delete(id: ConfigId) -> Event {
    Event::Delete((Kind::ServiceEntry, id))
}

/// Services of one name are one, and that is told.
fn by_name(all: impl IntoIterator<Item = Registration>) -> BTreeMap<String, Registration> {
    let mut out: BTreeMap<String, Registration> = BTreeMap::new();
    for registration in all {
        match out.get_mut(&registration.name) {
            None => _ = out.insert(registration.name.clone(), registration),
            Some(first) => first.join(registration),
        }
    }
    out
}

#[cfg(test)]
mod tests;
