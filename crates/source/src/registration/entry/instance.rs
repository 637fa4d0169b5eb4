//! One instance: what of it can be used, and the endpoint that it is.

use std::collections::BTreeMap;
use std::net::IpAddr;

use pilot_base::Name;
use pilot_model::{EntryPort, Resolution, WorkloadEntry};

use super::Reading;
use super::ports::PortKey;
use crate::registration::Instance;
use crate::registration::metadata::Metadata;

/// Envoy adds weights up in 32 bits; with this much for each there may be sixty-five thousand instances.
const MAX_WEIGHT: u32 = 65_535;

impl Reading<'_> {
    /// The instance with what of it is right, if it can be called when it is healthy.
    pub(super) fn usable(&mut self, instance: &Instance) -> Option<Instance> {
        if instance.address.parse::<IpAddr>().is_err() && !is_host_name(&instance.address) {
            let address = shortened(&instance.address);
            self.issue(path(instance), format!("{address:?} is neither an IP nor a host name"));
            return None;
        }
        let mut instance = instance.clone();
        for port in std::mem::take(&mut instance.ports) {
            if is_port(port.number) && port.service_port.is_none_or(is_port) {
                instance.ports.push(port);
            } else {
                let number = if is_port(port.number) { port.service_port } else { Some(port.number) };
                let message =
                    format!("{} is not a port; it would be from 1 to 65535", number.unwrap_or_default());
                self.issue(path(&instance), message);
            }
        }
        self.weigh(&mut instance);
        (!instance.ports.is_empty()).then_some(instance)
    }

    /// Who has no weight at all is not to be called.
    fn weigh(&mut self, instance: &mut Instance) {
        let said = Metadata::new(&instance.metadata).setting("weight").map(str::to_owned);
        match said.map(|text| text.trim().parse::<u64>().map_err(|_| text)) {
            None => {}
            Some(Ok(0)) => instance.is_unhealthy = true,
            Some(Ok(weight)) => instance.weight = u32::try_from(weight).unwrap_or(u32::MAX),
            Some(Err(text)) => {
                let why = format!("istio-weight: {:?} is not a whole number", shortened(&text));
                self.issue(path(instance), why);
            }
        }
        if instance.weight > MAX_WEIGHT {
            let why = format!("the weight {} counts as {MAX_WEIGHT}, which is the most", instance.weight);
            self.issue(path(instance), why);
            instance.weight = MAX_WEIGHT;
        }
    }

    /// The instances that are called, and how they are found. Where some have names and others have addresses, those
    /// with names would have proxies look up all of them: they are left out while they are not the most.
    pub(super) fn called<'b>(&mut self, instances: &'b [Instance]) -> (Vec<&'b Instance>, Resolution) {
        let healthy = instances.iter().filter(|instance| !instance.is_unhealthy);
        let (named, numbered): (Vec<_>, Vec<_>) =
            healthy.clone().partition(|instance| instance.address.parse::<IpAddr>().is_err());
        if named.is_empty() {
            return (numbered, Resolution::Static);
        }
        if named.len() > numbered.len() {
            return (healthy.collect(), Resolution::Dns);
        }
        for instance in named {
            let address = shortened(&instance.address);
            let why = format!("{address:?} is a name, and others have addresses: it is left out");
            self.issue(path(instance), why);
        }
        (numbered, Resolution::Static)
    }

    pub(super) fn endpoint(
        &mut self,
        instance: &Instance,
        ports: &BTreeMap<PortKey<'_>, EntryPort>,
    ) -> WorkloadEntry {
        let metadata = Metadata::new(&instance.metadata);
        let own = |key: &PortKey<'_>| u16::try_from(self.behind(instance, key)?.number).ok();
        let listens = ports.iter().filter_map(|(key, port)| Some((port.name.clone(), own(key)?)));
        let listens = listens.collect();
        let (labels, left_out) = metadata.labels();
        if left_out > 0 {
            self.issue(path(instance), format!("{left_out} metadata are no labels: too long or too many"));
        }
        let or = |setting: &str, own: &str| Name::new(metadata.setting(setting).unwrap_or(own));
        WorkloadEntry {
            address: Name::new(&instance.address),
            ports: listens,
            labels,
            network: or("network", &instance.network),
            locality: or("locality", &instance.locality),
            weight: instance.weight,
            service_account: or("service-account", ""),
            is_healthy: None,
        }
    }
}

pub(super) fn path(instance: &Instance) -> String {
    format!("instances[{}]", shortened(&instance.id))
}

/// Numbers that mean any other port are none either.
pub(super) fn is_port(number: u32) -> bool {
    number != 0 && u16::try_from(number).is_ok()
}

/// As much of something that may be a megabyte as helps to find it.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// A whole name, as DNS allows it; underscores are common in registries and harmless in Envoy.
pub(super) fn is_host_name(text: &str) -> bool {
    let is_part = |part: &str| {
        let inner = part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_');
        (1..=63).contains(&part.len()) && inner && !part.starts_with('-') && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}
