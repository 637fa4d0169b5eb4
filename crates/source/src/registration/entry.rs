//! A registration becomes ServiceEntries, and what is wrong with it becomes issues.
//!
//! What one instance says counts for that instance: those that are called by hosts of their own have an entry of their
//! own, and what is wrong with one takes no sibling along.

mod instance;
mod ports;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use pilot_base::{Hash64, Hasher64, Host, Issue, Labels, Name};
use pilot_model::{
    Config, ConfigId, Created, ExportTo, Kind, Location, Object, RegistryOrigin, ServiceEntry,
};

use self::instance::{is_host_name, path, shortened};
use super::metadata::Metadata;
use super::{Instance, Registration, RegistryOptions};

/// So many issues of one object are told; more do not help who has to mend it.
const MAX_ISSUES: usize = 10;
/// What a registration becomes.
pub struct Entries {
    /// One for each set of hosts by which instances are called.
    pub made: Vec<Made>,
    pub issues: Vec<Issue>,
    /// Are there instances of which nobody can tell by which hosts they are called?
    pub is_partial: bool,
}

/// The instances that are called by the same hosts.
pub struct Made {
    pub id: ConfigId,
    /// Equal for what becomes the same object.
    pub content: Hash64,
    /// Nothing if not one of its instances can be used.
    pub object: Option<Object>,
}

impl RegistryOptions {
    /// The object that stands for a service of this registry.
    pub fn id(&self, service: &str) -> ConfigId {
        ConfigId::new(self.namespace.clone(), format!("{service}.{}", self.name))
    }

    /// A name in the domain of the registry, if it has one.
    pub fn host(&self, name: &str) -> String {
        match self.domain.as_str() {
            "" => name.to_owned(),
            domain => format!("{name}.{domain}"),
        }
    }

    /// What a registration is in the mesh, as far as it can be called, and what is wrong with it.
    pub fn entries(&self, registration: &Registration) -> Entries {
        let mut reading = Reading { options: self, registration, issues: Vec::new() };
        let made = reading.made();
        let (mut issues, object) = (reading.issues, self.id(&registration.name).object(Kind::ServiceEntry));
        if issues.len() > MAX_ISSUES {
            let more = issues.split_off(MAX_ISSUES).len();
            issues.push(Issue::warning(object, "", format!("and {more} more")).at(self.name.as_str()));
        }
        Entries { made, issues, is_partial: !registration.unreadable.is_empty() }
    }
}

struct Reading<'a> {
    options: &'a RegistryOptions,
    registration: &'a Registration,
    issues: Vec<Issue>,
}

/// Names in lower case, in order.
type Hosts = BTreeSet<String>;

impl<'a> Reading<'a> {
    fn made(&mut self) -> Vec<Made> {
        self.tell_what_is_known();
        let own = self.service_hosts();
        let mut groups: BTreeMap<Hosts, Vec<Instance>> = BTreeMap::new();
        for instance in self.instances() {
            let hosts = self.hosts_of(instance).unwrap_or_else(|| own.clone());
            let usable = self.usable(instance);
            groups.entry(hosts).or_default().extend(usable);
        }
        let addresses = self.addresses();
        let each = groups.into_iter().map(|(hosts, instances)| {
            let id = if hosts == own { self.id() } else { self.id_at(&hosts) };
            let content = hash_of(&(&hosts, &addresses, &instances));
            let object = self.entry(id.clone(), (&hosts, &addresses), &instances);
            Made { id, content, object: object.map(Object::ServiceEntry) }
        });
        each.collect()
    }

    fn id(&self) -> ConfigId {
        self.options.id(&self.registration.name)
    }

    /// Instances with hosts of their own are an object beside that of their service.
    fn id_at(&self, hosts: &Hosts) -> ConfigId {
        let (id, hosts) = (self.id(), hosts.iter().map(String::as_str).collect::<Vec<_>>().join(","));
        ConfigId::new(id.namespace, format!("{}~{hosts}", id.name))
    }

    fn entry(
        &mut self,
        id: ConfigId,
        (hosts, addresses): (&Hosts, &[Name]),
        instances: &[Instance],
    ) -> Option<Config<ServiceEntry>> {
        let ports = self.ports(instances);
        if hosts.is_empty() || ports.is_empty() {
            return None;
        }
        let (called, resolution) = self.called(instances);
        let endpoints = called.into_iter().map(|instance| self.endpoint(instance, &ports)).collect();
        let spec = ServiceEntry {
            hosts: hosts.iter().map(|host| Host::new(host)).collect(),
            addresses: addresses.to_vec(),
            ports: ports.values().cloned().collect(),
            location: Location::Internal,
            resolution,
            endpoints,
            workload_selector: None,
            export_to: ExportTo::default(),
            subject_alt_names: Vec::new(),
            auto_addresses: Vec::new(),
            registry: Some(RegistryOrigin { name: self.options.name.clone(), rank: self.options.rank }),
        };
        let (labels, annotations) = (Labels::default(), Labels::default());
        Some(Config { id, created: Created::default(), labels, annotations, spec })
    }

    fn issue(&mut self, path: impl Into<String>, message: impl Into<String>) {
        let object = self.id().object(Kind::ServiceEntry);
        self.issues.push(Issue::error(object, path, message).at(self.options.name.as_str()));
    }

    /// What the adapter has found to be wrong.
    fn tell_what_is_known(&mut self) {
        let registration = self.registration;
        for (id, why) in &registration.unreadable {
            let why = format!("cannot be read and is left out: {}", shortened(why));
            self.issue(format!("instances[{}]", shortened(id)), why);
        }
        for why in &registration.wrong {
            self.issue("", shortened(why));
        }
        if let Some(why) = &registration.trouble {
            self.issue("", format!("{}; what was said before still counts", shortened(why)));
        }
    }

    /// Every instance once, in the order of their ids.
    fn instances(&mut self) -> impl Iterator<Item = &'a Instance> + use<'a> {
        let registration = self.registration;
        let mut by_id: BTreeMap<&str, &Instance> = BTreeMap::new();
        for instance in &registration.instances {
            if by_id.insert(&instance.id, instance).is_some() {
                self.issue(path(instance), "this id is registered twice; the last one counts");
            }
        }
        by_id.into_values()
    }

    /// The hosts of instances that do not say otherwise: those of the service, or its name in the registry's domain.
    fn service_hosts(&mut self) -> Hosts {
        let registration = self.registration;
        let named = self.valid(&registration.hosts, "host");
        if !named.is_empty() {
            return named;
        }
        let own = self.options.host(&registration.name);
        self.valid([&own], "host")
    }

    /// The hosts that an instance says it is called by, if one of them can be meant.
    fn hosts_of(&mut self, instance: &Instance) -> Option<Hosts> {
        let metadata = Metadata::new(&instance.metadata);
        let said = metadata.setting("host").map(str::to_owned);
        if said.is_none() && instance.hosts.is_empty() {
            return None;
        }
        let hosts = self.valid(instance.hosts.iter().chain(&said), &format!("{}.host", path(instance)));
        Some(hosts).filter(|hosts| !hosts.is_empty())
    }

    fn valid<'b>(&mut self, hosts: impl IntoIterator<Item = &'b String>, path: &str) -> Hosts {
        let mut valid = Hosts::new();
        for host in hosts {
            if is_host_name(host) {
                valid.insert(host.to_ascii_lowercase());
            } else {
                self.issue(path, format!("{:?} is not a host name", shortened(host)));
            }
        }
        valid
    }

    fn addresses(&mut self) -> Vec<Name> {
        let mut out = Vec::new();
        for address in &self.registration.addresses {
            match address.parse::<IpAddr>() {
                Ok(_) => out.push(Name::new(address)),
                Err(_) => self.issue("address", format!("{:?} is not an IP address", shortened(address))),
            }
        }
        out
    }
}

/// Equal for equal values, and for no others that will ever be met.
pub(crate) fn hash_of(value: &impl Hash) -> Hash64 {
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
    value.hash(&mut hasher);
    hasher.0.finish()
}

#[cfg(test)]
mod tests;
