//! A service as a registry knows it, before it is one of the mesh.

mod entry;
mod metadata;
mod packed;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use pilot_base::Name;
use serde::{Deserialize, Serialize};

use crate::Contact;

pub(crate) use entry::hash_of;
pub use entry::{Entries, Made};
pub(crate) use packed::Packed;

/// A service of a registry with all its instances.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Registration {
    /// What the registry calls it.
    pub name: String,
    /// The names by which it is called; where there are none, its own name in the registry's domain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Virtual addresses by which it is called.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    pub instances: Vec<Instance>,
    /// Instances whose form cannot be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<(String, String)>,
    /// What else is wrong with it, though it counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<String>,
    /// Why nothing newer is known of it, where that is so of one service alone. What was known of it counts, unless
    /// it is said again here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// One running copy of a service.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Instance {
    /// Unique within the service.
    pub id: String,
    /// The names by which it is called instead of those of the service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// An IP, or a name that proxies look up.
    pub address: String,
    pub ports: Vec<InstancePort>,
    /// What becomes labels, and settings whose keys begin with `istio-`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// `region/zone/subzone`
    #[serde(skip_serializing_if = "String::is_empty")]
    pub locality: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// Zero where nobody said it.
    #[serde(skip_serializing_if = "is_default")]
    pub weight: u32,
    /// Instances that are not healthy say which ports the service has, and are not called.
    #[serde(skip_serializing_if = "is_default")]
    pub is_unhealthy: bool,
}

/// Where an instance listens.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct InstancePort {
    /// Tells the ports of one instance from each other; empty for the only one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub number: u32,
    /// Empty where the registry does not know it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// The port by which the service is called, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_port: Option<u32>,
}

impl Registration {
    /// A service of which the registry cannot say anything at the moment.
    pub fn unknown(name: String, why: impl fmt::Display) -> Self {
        Self { name, trouble: Some(why.to_string()), ..Self::default() }
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.trouble.is_some() && self.instances.is_empty() && self.unreadable.is_empty()
    }

    /// Takes in another service that the registry calls the same.
    pub(crate) fn join(&mut self, other: Self) {
        let Self { name, hosts, addresses, instances, unreadable, wrong, trouble } = other;
        let why = format!("{name:?} is the name of several services; what they have is taken together");
        let lists =
            [(&mut self.hosts, hosts), (&mut self.addresses, addresses), (&mut self.wrong, vec![why])];
        for (own, more) in lists {
            let more: Vec<String> = more.into_iter().filter(|text| !own.contains(text)).collect();
            own.extend(more);
        }
        self.wrong.extend(wrong);
        self.instances.extend(instances);
        self.unreadable.extend(unreadable);
        self.trouble = self.trouble.take().or(trouble);
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Who a registry is, and where its services belong.
#[derive(Clone, Debug)]
pub struct RegistryOptions {
    /// How people call it, such as `consul`: in the names of objects, in issues and on pages.
    pub name: Name,
    /// Its place among all registries, from one on.
    pub rank: u16,
    /// The namespace of its services.
    pub namespace: Name,
    /// What stands behind the name of a service in its host; empty if the name is the host.
    pub domain: Name,
    /// The port by which services are called, whatever the ports are at which their instances listen: those may be made up
    /// by the platform, or be others in other registries. None if they count.
    pub service_port: Option<u32>,
    /// How long instances are kept that are missing from an answer which is hardly true, such as that of a server that
    /// has just begun anew; zero if every answer is believed at once.
    pub grace: Duration,
    /// Where the adapter notes that it heard of its registry.
    pub contact: Contact,
}

/// Whoever registers by heartbeats has said so again by then: Eureka's clients do every thirty seconds, and are given
/// up after ninety.
const GRACE: Duration = Duration::from_secs(90);

impl RegistryOptions {
    /// With the names that the platform itself would use.
    pub fn new(name: &str, domain: &str) -> Self {
        let (name, domain) = (Name::new(name), Name::new(domain));
        let namespace = Name::new("default");
        Self {
            name,
            rank: 1,
            namespace,
            domain,
            service_port: None,
            grace: GRACE,
            contact: Contact::default(),
        }
    }
}
