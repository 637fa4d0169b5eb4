//! A registration becomes a ServiceEntry, and what is wrong with it becomes issues.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use pilot_base::{Host, Issue, Labels, Name};
use pilot_model::{
    Config, ConfigId, Created, EntryPort, ExportTo, Kind, Location, Object, Protocol, RegistryOrigin,
    Resolution, ServiceEntry, WorkloadEntry,
};

use super::metadata::Metadata;
use super::{Instance, InstancePort, Registration, RegistryOptions};

/// A service of which every instance listens at another port is meant to be called at one, which somebody has to say.
const MAX_PORTS: usize = 16;
/// So many issues of one object are told; more do not help who has to mend it.
const MAX_ISSUES: usize = 10;

impl RegistryOptions {
    /// The object that stands for a service of this registry.
    pub fn id(&self, service: &str) -> ConfigId {
        ConfigId::new(self.namespace.clone(), format!("{service}.{}", self.name))
    }

    /// The ServiceEntry that a registration is, if it can be called, and what is wrong with it.
    pub fn entry(&self, registration: &Registration) -> (Option<Object>, Vec<Issue>) {
        let mut reading = Reading { options: self, registration, issues: Vec::new() };
        let entry = reading.entry();
        let (mut issues, object) = (reading.issues, self.id(&registration.name).object(Kind::ServiceEntry));
        if issues.len() > MAX_ISSUES {
            let more = issues.split_off(MAX_ISSUES).len();
            issues.push(Issue::warning(object, "", format!("and {more} more")).at(self.name.as_str()));
        }
        (entry.map(Object::ServiceEntry), issues)
    }
}

struct Reading<'a> {
    options: &'a RegistryOptions,
    registration: &'a Registration,
    issues: Vec<Issue>,
}

/// A port of the service: its number, and the name of the port of instances behind it.
type PortKey<'a> = (u16, &'a str);

impl Reading<'_> {
    fn entry(&mut self) -> Option<Config<ServiceEntry>> {
        let id = self.options.id(&self.registration.name);
        let hosts = self.hosts();
        let instances = self.usable();
        let ports = self.ports(&instances);
        if hosts.is_empty() || ports.is_empty() {
            return None;
        }
        let healthy = instances.iter().filter(|instance| !instance.is_unhealthy);
        let endpoints: Vec<WorkloadEntry> = healthy.map(|instance| self.endpoint(instance, &ports)).collect();
        let by_name = endpoints.iter().any(|endpoint| endpoint.address.parse::<IpAddr>().is_err());
        let spec = ServiceEntry {
            hosts,
            addresses: self.addresses(),
            ports: ports.values().cloned().collect(),
            location: Location::Internal,
            resolution: if by_name { Resolution::Dns } else { Resolution::Static },
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
        let object = self.options.id(&self.registration.name).object(Kind::ServiceEntry);
        self.issues.push(Issue::error(object, path, message).at(self.options.name.as_str()));
    }

    fn hosts(&mut self) -> Vec<Host> {
        let settings = self.registration.instances.iter().map(|instance| Metadata::new(&instance.metadata));
        let mut named: BTreeSet<String> =
            settings.filter_map(|m| m.setting("host").map(str::to_owned)).collect();
        named.extend(self.registration.hosts.iter().cloned());
        if named.is_empty() {
            named.insert(match self.options.domain.as_str() {
                "" => self.registration.name.clone(),
                domain => format!("{}.{domain}", self.registration.name),
            });
        }
        let mut hosts = Vec::new();
        for host in named {
            if is_host_name(&host) {
                hosts.push(Host::new(&host).lowercase());
            } else {
                self.issue("host", format!("{:?} is not a host name", shortened(&host)));
            }
        }
        hosts
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

    /// The instances that can be called if they are healthy, in the order of their ids.
    fn usable(&mut self) -> Vec<Instance> {
        let mut by_id: BTreeMap<&str, &Instance> = BTreeMap::new();
        for instance in &self.registration.instances {
            if by_id.insert(&instance.id, instance).is_some() {
                self.issue(path(instance), "this id is registered twice; the last one counts");
            }
        }
        for (id, why) in &self.registration.unreadable {
            let why = format!("cannot be read and is left out: {}", shortened(why));
            self.issue(format!("instances[{}]", shortened(id)), why);
        }
        let mut out = Vec::new();
        for instance in by_id.into_values() {
            if instance.address.parse::<IpAddr>().is_err() && !is_host_name(&instance.address) {
                let address = shortened(&instance.address);
                self.issue(path(instance), format!("{address:?} is neither an IP nor a host name"));
                continue;
            }
            let mut instance = instance.clone();
            let ports = std::mem::take(&mut instance.ports);
            for port in ports {
                if is_port(port.number) && port.service_port.is_none_or(is_port) {
                    instance.ports.push(port);
                } else {
                    let number = if is_port(port.number) { port.service_port } else { Some(port.number) };
                    let number = number.unwrap_or_default();
                    self.issue(
                        path(&instance),
                        format!("{number} is not a port; it would be from 1 to 65535"),
                    );
                }
            }
            if !instance.ports.is_empty() {
                out.push(instance);
            }
        }
        out
    }

    /// Every instance serves each port of the service with its own port of that name.
    fn ports<'a>(&mut self, instances: &'a [Instance]) -> BTreeMap<PortKey<'a>, EntryPort> {
        let mut out: BTreeMap<PortKey<'a>, EntryPort> = BTreeMap::new();
        for instance in instances {
            let metadata = Metadata::new(&instance.metadata);
            let set = metadata.setting("service-port").and_then(|text| text.parse::<u32>().ok());
            let set = set.filter(|port| is_port(*port) && instance.ports.len() == 1);
            for port in &instance.ports {
                let number = port.service_port.or(set).or(self.options.service_port).unwrap_or(port.number);
                let Ok(number) = u16::try_from(number) else { continue };
                let protocol = protocol(port, &metadata);
                let known = out.entry((number, &port.name)).or_insert_with(|| EntryPort {
                    number,
                    name: port_name(number),
                    protocol,
                    target_port: None,
                });
                if known.protocol != protocol && known.protocol == Protocol::Auto {
                    known.protocol = protocol;
                }
            }
        }
        let mut numbers = BTreeSet::new();
        let before = out.len();
        out.retain(|(number, _), _| numbers.insert(*number));
        if out.len() < before {
            self.issue("ports", "two ports of different names have one number; the first by name counts");
        }
        if out.len() > MAX_PORTS {
            let message = format!("instances listen at {} ports, of which {MAX_PORTS} are used", out.len());
            self.issue("ports", format!("{message}; set istio-service-port in their metadata"));
            out = out.into_iter().take(MAX_PORTS).collect();
        }
        out
    }

    fn endpoint(&mut self, instance: &Instance, ports: &BTreeMap<PortKey<'_>, EntryPort>) -> WorkloadEntry {
        let metadata = Metadata::new(&instance.metadata);
        let own = |name: &str| instance.ports.iter().find(|port| port.name == name);
        let listens = ports
            .iter()
            .filter_map(|((_, of), port)| Some((port.name.clone(), u16::try_from(own(of)?.number).ok()?)));
        let listens = listens.collect();
        let (labels, left_out) = metadata.labels();
        if left_out > 0 {
            self.issue(path(instance), format!("{left_out} metadata are no labels: too long or too many"));
        }
        let or = |setting: &str, own: &str| Name::new(metadata.setting(setting).unwrap_or(own));
        let weight = metadata.setting("weight").and_then(|text| text.parse().ok());
        WorkloadEntry {
            address: Name::new(&instance.address),
            ports: listens,
            labels,
            network: or("network", &instance.network),
            locality: or("locality", &instance.locality),
            weight: weight.unwrap_or(instance.weight),
            service_account: or("service-account", ""),
            is_healthy: None,
        }
    }
}

fn path(instance: &Instance) -> String {
    format!("instances[{}]", shortened(&instance.id))
}

/// Numbers that mean any other port are none either.
fn is_port(number: u32) -> bool {
    number != 0 && u16::try_from(number).is_ok()
}

/// What is said for the whole instance counts for ports that say nothing themselves.
fn protocol(port: &InstancePort, metadata: &Metadata<'_>) -> Protocol {
    let said =
        if port.protocol.is_empty() { metadata.protocol().unwrap_or_default() } else { &port.protocol };
    Protocol::parse(said)
}

/// The same in every registry, so that what they say of one port goes together.
fn port_name(number: u16) -> Name {
    Name::from(format!("port-{number}"))
}

/// As much of something that may be a megabyte as helps to find it.
fn shortened(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// A whole name, as DNS allows it; underscores are common in registries and harmless in Envoy.
fn is_host_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let inner = part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_');
        (1..=63).contains(&part.len()) && inner && !part.starts_with('-') && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

#[cfg(test)]
mod tests;
