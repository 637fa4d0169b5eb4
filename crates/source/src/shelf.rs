//! What a registry has told so far, so that only what differs is told again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{Hash as _, Hasher};

use pilot_base::{Hash64, Hasher64, Issue, Name, ObjectRef};
use pilot_model::Kind;

use crate::registration::{Registration, RegistryOptions};
use crate::{Batch, Event};

/// All services of one registry, as far as they were told. It keeps a number for each, and not the service.
pub struct Shelf {
    options: RegistryOptions,
    services: BTreeMap<String, Kept>,
    begun: bool,
    /// What is wrong with the registry itself, as it was told.
    trouble: Option<String>,
}

struct Kept {
    content: Hash64,
    is_told: bool,
    is_troubled: bool,
}

impl Shelf {
    pub fn new(options: RegistryOptions) -> Self {
        Self { options, services: BTreeMap::new(), begun: false, trouble: None }
    }

    pub fn options(&self) -> &RegistryOptions {
        &self.options
    }

    /// These are all services that there are. It is told in one batch, so nobody sees half of it.
    pub fn replace(&mut self, all: impl IntoIterator<Item = Registration>) -> Batch {
        let (mut batch, mut seen) = (self.found(), BTreeSet::new());
        for registration in all {
            self.put_into(&registration, &mut batch);
            seen.insert(registration.name);
        }
        let gone: Vec<String> = self.services.keys().filter(|name| !seen.contains(*name)).cloned().collect();
        for name in gone {
            self.remove_into(&name, &mut batch);
        }
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
    pub fn put(&mut self, registration: &Registration) -> Batch {
        let mut batch = Batch::default();
        self.put_into(registration, &mut batch);
        batch
    }

    /// One service is gone.
    pub fn remove(&mut self, service: &str) -> Batch {
        let mut batch = Batch::default();
        self.remove_into(service, &mut batch);
        batch
    }

    /// The registry cannot be asked: what it said before still counts. Told once, until it is something else.
    pub fn lose(&mut self, why: &impl fmt::Display) -> Batch {
        let message = format!("{why}; what it said before still counts");
        if self.trouble.as_ref() == Some(&message) {
            return Batch::default();
        }
        let issue = Issue::error(self.object(), "", message.as_str()).at(self.options.name.as_str());
        self.trouble = Some(message);
        Batch { events: Vec::new(), issues: vec![(self.options.name.clone(), vec![issue])] }
    }

    /// The registry can be asked again.
    pub fn found(&mut self) -> Batch {
        let issues = self.trouble.take().map(|_| (self.options.name.clone(), Vec::new()));
        Batch { events: Vec::new(), issues: issues.into_iter().collect() }
    }

    fn object(&self) -> ObjectRef {
        ObjectRef::new("Registry", Name::empty(), self.options.name.clone())
    }

    fn put_into(&mut self, registration: &Registration, batch: &mut Batch) {
        let content = content(registration);
        let before = self.services.get(&registration.name);
        if before.is_some_and(|kept| kept.content == content) {
            return;
        }
        let (was_told, was_troubled) = before.map_or((false, false), |kept| (kept.is_told, kept.is_troubled));
        let (object, issues) = self.options.entry(registration);
        let kept = Kept { content, is_told: object.is_some(), is_troubled: !issues.is_empty() };
        match object {
            Some(object) => batch.events.push(Event::Apply(object)),
            None if was_told => batch.events.push(self.delete(&registration.name)),
            None => {}
        }
        if was_troubled || kept.is_troubled {
            batch.issues.push((self.place(&registration.name), issues));
        }
        self.services.insert(registration.name.clone(), kept);
    }

    fn remove_into(&mut self, service: &str, batch: &mut Batch) {
        let Some(kept) = self.services.remove(service) else { return };
        if kept.is_told {
            batch.events.push(self.delete(service));
        }
        if kept.is_troubled {
            batch.issues.push((self.place(service), Vec::new()));
        }
    }

    fn delete(&self, service: &str) -> Event {
        Event::Delete((Kind::ServiceEntry, self.options.id(service)))
    }

    fn place(&self, service: &str) -> Name {
        Name::from(format!("{}/{service}", self.options.name))
    }
}

/// Equal for equal registrations, and for no others that will ever be met.
fn content(registration: &Registration) -> Hash64 {
    struct Content(Hasher64);
    impl Hasher for Content {
        fn write(&mut self, bytes: &[u8]) {
            self.0.write(bytes);
        }

        fn finish(&self) -> u64 {
            self.0.finish().0
        }
    }
    let mut hasher = Content(Hasher64::default());
    registration.hash(&mut hasher);
    hasher.0.finish()
}

#[cfg(test)]
mod tests {
    use super::Shelf;
    use crate::contract::Mirror;
    use crate::registration::{Instance, InstancePort, Registration, RegistryOptions};

    fn service(name: &str, port: u32) -> Registration {
        let ports = vec![InstancePort { number: port, ..InstancePort::default() }];
        let instance = Instance { id: "1".into(), address: "10.0.0.1".into(), ports, ..Instance::default() };
        Registration { name: name.into(), instances: vec![instance], ..Registration::default() }
    }

    #[test]
    fn only_differences_are_told() {
        let mut shelf = Shelf::new(RegistryOptions::new("memory", "mesh"));
        let mut mirror = Mirror::default();
        mirror.apply(shelf.replace([service("a", 80), service("b", 80)]));
        assert_eq!((mirror.ready, mirror.objects().count()), (true, 2));
        assert!(shelf.replace([service("a", 80), service("b", 80)]).is_empty());
        assert_eq!(shelf.replace([service("a", 81), service("b", 80)]).events.len(), 1);
        let batch = shelf.put(&service("c", 0));
        assert_eq!((batch.events.len(), batch.issues.len()), (0, 1), "a service without a port is none");
        assert_eq!(shelf.put(&service("c", 0)), crate::Batch::default(), "and is told once");
        mirror.apply(shelf.replace([service("b", 80)]));
        assert_eq!(mirror.objects().count(), 1);
        assert!(mirror.issues.is_empty());
    }

    #[test]
    fn a_loss_is_told_once() {
        let mut shelf = Shelf::new(RegistryOptions::new("memory", "mesh"));
        assert!(!shelf.lose(&"no answer").is_empty());
        assert!(shelf.lose(&"no answer").is_empty());
        assert!(!shelf.lose(&"refused").is_empty());
        assert!(!shelf.found().is_empty() && shelf.found().is_empty());
    }
}
