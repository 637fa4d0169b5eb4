//! A service as a registry knows it, before it is one of the mesh.

mod entry;
mod metadata;

use std::collections::BTreeMap;

use pilot_base::Name;

/// A service of a registry with all its instances.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Registration {
    /// What the registry calls it.
    pub name: String,
    /// The names by which it is called; where there are none, its own name in the registry's domain.
    pub hosts: Vec<String>,
    /// Virtual addresses by which it is called.
    pub addresses: Vec<String>,
    pub instances: Vec<Instance>,
    /// Instances whose form cannot be read, and why.
    pub unreadable: Vec<(String, String)>,
}

/// One running copy of a service.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Instance {
    /// Unique within the service.
    pub id: String,
    /// An IP, or a name that proxies look up.
    pub address: String,
    pub ports: Vec<InstancePort>,
    /// What becomes labels, and settings whose keys begin with `istio-`.
    pub metadata: BTreeMap<String, String>,
    /// `region/zone/subzone`
    pub locality: String,
    pub network: String,
    /// Zero where nobody said it.
    pub weight: u32,
    /// Instances that are not healthy say which ports the service has, and are not called.
    pub is_unhealthy: bool,
}

/// Where an instance listens.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct InstancePort {
    /// Tells the ports of one instance from each other; empty for the only one.
    pub name: String,
    pub number: u32,
    /// Empty where the registry does not know it.
    pub protocol: String,
    /// The port by which the service is called, where that is another.
    pub service_port: Option<u32>,
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
    /// The port of services whose instances listen at ports that the platform made up; none if those count.
    pub service_port: Option<u32>,
}

impl RegistryOptions {
    /// With the names that the platform itself would use.
    pub fn new(name: &str, domain: &str) -> Self {
        let (name, domain) = (Name::new(name), Name::new(domain));
        Self { name, rank: 1, namespace: Name::new("default"), domain, service_port: None }
    }
}
