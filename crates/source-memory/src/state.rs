//! Who is registered, and until when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pilot_source::{Instance, InstancePort, Registration};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::keep::Kept;
use crate::rules::{Expected, Rules};

/// An instance as its owner describes it.
#[derive(Clone, Deserialize, Serialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct Description {
    pub(crate) address: String,
    /// The only port; several stand in `ports`.
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u32>,
    ports: Vec<Port>,
    metadata: BTreeMap<String, String>,
    locality: String,
    network: String,
    weight: u32,
    /// Names by which it is called, instead of that of its service.
    hosts: Vec<String>,
    /// Without a heartbeat for so long the instance is gone; zero for never.
    pub(crate) ttl_seconds: u64,
    pub(crate) healthy: Option<bool>,
}

#[derive(Clone, Deserialize, Serialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Port {
    name: String,
    number: u32,
    protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_port: Option<u32>,
}

struct Held {
    description: Description,
    until: Option<Instant>,
}

/// Everything that was written, and what the source has not told of it yet.
#[derive(Default)]
pub(crate) struct State {
    services: BTreeMap<String, BTreeMap<String, Held>>,
    pub(crate) rules: Rules,
    version: u64,
    pub(crate) changed_services: BTreeSet<String>,
    pub(crate) changed_rules: BTreeSet<String>,
}

impl State {
    /// With what was kept. Whoever has to send heartbeats has as much time for the first one as when it registered.
    pub(crate) fn of(kept: Kept) -> Self {
        let mut state = Self::default();
        for (service, instances) in kept.services {
            for (id, description) in instances {
                state.put(&service, &id, description);
            }
        }
        for (key, text) in kept.rules {
            if state.rules.put(&key, text, Expected::Whatever).is_ok() {
                state.note_rule(&key);
            }
        }
        state
    }

    pub(crate) fn kept(&self) -> Kept {
        let described = |instances: &BTreeMap<String, Held>| {
            instances.iter().map(|(id, held)| (id.clone(), held.description.clone())).collect()
        };
        let services = self.services.iter().map(|(name, instances)| (name.clone(), described(instances)));
        let rules = self.rules.texts().map(|(key, text)| (key.clone(), text.to_owned()));
        Kept { services: services.collect(), rules: rules.collect() }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn put(&mut self, service: &str, id: &str, description: Description) {
        let until = deadline(description.ttl_seconds);
        let held = Held { description, until };
        self.services.entry(service.to_owned()).or_default().insert(id.to_owned(), held);
        self.note_service(service);
    }

    /// The instance lives on; nothing if there is none.
    pub(crate) fn heartbeat(&mut self, service: &str, id: &str) -> Option<()> {
        let held = self.services.get_mut(service)?.get_mut(id)?;
        held.until = deadline(held.description.ttl_seconds);
        Some(())
    }

    /// Changes what is said of an instance; nothing if there is none.
    pub(crate) fn describe(
        &mut self,
        service: &str,
        id: &str,
        change: impl FnOnce(&mut Description),
    ) -> Option<()> {
        change(&mut self.services.get_mut(service)?.get_mut(id)?.description);
        self.note_service(service);
        Some(())
    }

    pub(crate) fn remove(&mut self, service: &str, id: &str) -> Option<()> {
        let instances = self.services.get_mut(service)?;
        instances.remove(id)?;
        if instances.is_empty() {
            self.services.remove(service);
        }
        self.note_service(service);
        Some(())
    }

    /// Takes away what has had no heartbeat for too long.
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_over = |held: &Held| held.until.is_some_and(|until| until <= now);
        let all = self
            .services
            .iter()
            .flat_map(|(service, all)| all.iter().map(move |(id, held)| (service, id, held)));
        let over: Vec<(String, String)> = all
            .filter(|(_, _, held)| is_over(held))
            .map(|(service, id, _)| (service.clone(), id.clone()))
            .collect();
        for (service, id) in over {
            self.remove(&service, &id);
        }
    }

    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.services.values().flat_map(BTreeMap::values).filter_map(|held| held.until).min()
    }

    pub(crate) fn note_rule(&mut self, key: &str) {
        self.version += 1;
        self.changed_rules.insert(key.to_owned());
    }

    fn note_service(&mut self, service: &str) {
        self.version += 1;
        self.changed_services.insert(service.to_owned());
    }

    pub(crate) fn services(&self) -> impl Iterator<Item = &String> {
        self.services.keys()
    }

    pub(crate) fn instances(&self, service: &str) -> BTreeMap<&String, &Description> {
        let instances = self.services.get(service).into_iter().flatten();
        instances.map(|(id, held)| (id, &held.description)).collect()
    }

    pub(crate) fn registration(&self, service: &str) -> Option<Registration> {
        let instances = self.services.get(service)?;
        Some(Registration {
            name: service.to_owned(),
            instances: instances.iter().map(|(id, held)| instance(id, &held.description)).collect(),
            ..Registration::default()
        })
    }
}

fn deadline(ttl_seconds: u64) -> Option<Instant> {
    // Longer than a year is for ever.
    (1..31_536_000).contains(&ttl_seconds).then(|| Instant::now() + Duration::from_secs(ttl_seconds))
}

fn instance(id: &str, from: &Description) -> Instance {
    let only = from.port.map(|number| InstancePort { number, ..InstancePort::default() });
    let named = from.ports.iter().map(|port| InstancePort {
        name: port.name.clone(),
        number: port.number,
        protocol: port.protocol.clone(),
        service_port: port.service_port,
    });
    Instance {
        id: id.to_owned(),
        hosts: from.hosts.clone(),
        address: from.address.clone(),
        ports: only.into_iter().chain(named).collect(),
        metadata: from.metadata.clone(),
        locality: from.locality.clone(),
        network: from.network.clone(),
        weight: from.weight,
        is_unhealthy: from.healthy == Some(false),
    }
}
