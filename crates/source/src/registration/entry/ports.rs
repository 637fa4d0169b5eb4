//! The ports of a service, as its instances have them.

use std::collections::{BTreeMap, BTreeSet};

use pilot_base::Name;
use pilot_model::{EntryPort, Protocol};

use super::Reading;
use super::instance::{is_port, path, shortened};
use crate::registration::metadata::Metadata;
use crate::registration::{Instance, InstancePort};

/// A service of which every instance listens at another port is meant to be called at one, which somebody has to say.
const MAX_PORTS: usize = 16;

/// A port of the service: its number, and the name of the port of instances behind it.
pub(super) type PortKey<'a> = (u16, &'a str);

impl Reading<'_> {
    /// Every instance serves each port of the service with its own port of that name; of several that are called the same,
    /// with the one that is called there.
    pub(super) fn ports<'a>(&mut self, instances: &'a [Instance]) -> BTreeMap<PortKey<'a>, EntryPort> {
        let mut out: BTreeMap<PortKey<'a>, EntryPort> = BTreeMap::new();
        for instance in instances {
            let metadata = Metadata::new(&instance.metadata);
            let set = self.set_port(instance, &metadata);
            for port in &instance.ports {
                let Ok(number) = u16::try_from(self.called_at(instance, port, set)) else { continue };
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

    /// What is said of all services is said of the first port of each instance; the others are called as they are.
    fn called_at(&self, instance: &Instance, port: &InstancePort, set: Option<u32>) -> u32 {
        let is_first = instance.ports.first().is_some_and(|first| first == port);
        let of_all = self.options.service_port.filter(|_| is_first);
        port.service_port.or(set).or(of_all).unwrap_or(port.number)
    }

    /// The port of an instance behind a port of the service.
    pub(super) fn behind<'b>(
        &self,
        instance: &'b Instance,
        (number, name): &PortKey<'_>,
    ) -> Option<&'b InstancePort> {
        let mut called_so = instance.ports.iter().filter(|port| port.name == *name);
        let first = called_so.clone().next();
        called_so.find(|port| self.called_at(instance, port, None) == u32::from(*number)).or(first)
    }

    /// The port by which an instance with one port wants to be called.
    fn set_port(&mut self, instance: &Instance, metadata: &Metadata<'_>) -> Option<u32> {
        let text = metadata.setting("service-port")?;
        let number = text.trim().parse::<u32>().ok().filter(|port| is_port(*port));
        if number.is_none() {
            let why = format!("istio-service-port: {:?} is not a port", shortened(text));
            self.issue(path(instance), why);
        }
        number.filter(|_| instance.ports.len() == 1)
    }
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
