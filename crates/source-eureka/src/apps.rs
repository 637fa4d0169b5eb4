//! All applications as we know them, and what of them changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use pilot_source::{Instance, InstancePort, Registration, RegistryOptions};
use pilot_source_http::Part;

use crate::message::{Application, EurekaInstance, List, Listed, text};

/// Instances by application and id.
#[derive(Default)]
pub(crate) struct Apps {
    apps: BTreeMap<String, BTreeMap<String, Held>>,
}

/// An instance, or why it cannot be read; its status counts in any case.
struct Held {
    status: String,
    instance: Part<EurekaInstance>,
}

impl Apps {
    /// From all that there is.
    pub(crate) fn read(applications: List) -> Self {
        let mut apps = Self::default();
        apps.change(applications);
        apps
    }

    /// Takes in what changed, and tells of which applications.
    pub(crate) fn change(&mut self, applications: List) -> BTreeSet<String> {
        let mut touched = BTreeSet::new();
        for Application { name, instances } in applications.0 {
            let app = self.apps.entry(name.clone()).or_default();
            for Listed { id, status, is_gone, instance } in instances {
                if is_gone {
                    app.remove(&id);
                } else {
                    app.insert(id, Held { status, instance });
                }
            }
            if app.is_empty() {
                self.apps.remove(&name);
            }
            touched.insert(name);
        }
        touched
    }

    /// How many instances have each status, as Eureka writes it.
    pub(crate) fn hash_code(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for held in self.apps.values().flat_map(BTreeMap::values) {
            *counts.entry(&held.status).or_default() += 1;
        }
        counts.iter().fold(String::new(), |mut text, (status, count)| {
            // Writing to memory does not fail.
            let _written = write!(text, "{status}_{count}_");
            text
        })
    }

    pub(crate) fn all(&self, options: &RegistryOptions) -> Vec<Registration> {
        self.apps.keys().filter_map(|name| self.registration(name, options)).collect()
    }

    /// An application as a service; nothing if it has no instances. It is called by its name, and whoever has other virtual
    /// addresses by those alone: which of its instances are there says nothing about how the others are called.
    pub(crate) fn registration(&self, name: &str, options: &RegistryOptions) -> Option<Registration> {
        let mut registration = Registration { name: name.to_ascii_lowercase(), ..Registration::default() };
        let own = [options.host(&registration.name)];
        for (id, held) in self.apps.get(name)? {
            let from = match &held.instance {
                Ok(from) => from,
                Err(why) => {
                    registration.unreadable.push((id.clone(), why.clone()));
                    continue;
                }
            };
            let (mut instance, hosts) = (instance(id, from), hosts(from, options));
            // Metadata that name a host say where it is called in place of anything else.
            let is_said = instance.metadata.get("istio-host").is_some_and(|host| !host.is_empty());
            if !is_said && hosts != own {
                instance.hosts = hosts;
            }
            registration.instances.push(instance);
        }
        Some(registration)
    }
}

/// The virtual addresses of an instance.
fn hosts(from: &EurekaInstance, options: &RegistryOptions) -> Vec<String> {
    let lists = [&from.vip_address, &from.secure_vip_address].into_iter().flatten();
    let named = lists.flat_map(|list| list.split(',').map(str::trim)).filter(|vip| is_name(vip));
    let hosts: BTreeSet<String> = named.map(|vip| host(vip, options)).collect();
    hosts.into_iter().collect()
}

/// Some clients send names of properties that nobody has set.
fn is_name(vip: &str) -> bool {
    !vip.is_empty() && !vip.contains("${")
}

/// A virtual address that is a whole name is a host; a short one is a host in the domain of the registry.
fn host(vip: &str, options: &RegistryOptions) -> String {
    let vip = vip.to_ascii_lowercase();
    if vip.contains('.') || options.domain.is_empty() { vip } else { format!("{vip}.{}", options.domain) }
}

fn instance(id: &str, from: &EurekaInstance) -> Instance {
    let port = |name: &str, number: u32, protocol: &str| {
        let (name, protocol) = (name.to_owned(), protocol.to_owned());
        InstancePort { name, number, protocol, service_port: None }
    };
    let plain = from.port.used().map(|number| port("", number, ""));
    let secure = from.secure_port.used().map(|number| port("secure", number, "https"));
    let metadata = from.metadata.iter().filter(|(key, _)| !key.starts_with('@'));
    Instance {
        id: id.to_owned(),
        address: if from.ip_addr.is_empty() { from.host_name.clone() } else { from.ip_addr.clone() },
        ports: plain.into_iter().chain(secure).collect(),
        metadata: metadata.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect(),
        locality: locality(from).unwrap_or_default(),
        is_unhealthy: from.status != "UP",
        ..Instance::default()
    }
}

/// Amazon's zones are called after their region, with a letter behind.
fn locality(from: &EurekaInstance) -> Option<String> {
    let zone = text(from.data_center_info.metadata.get("availability-zone")?)?;
    let region = zone.trim_end_matches(|c: char| c.is_ascii_lowercase());
    Some(format!("{region}/{zone}"))
}

#[cfg(test)]
mod tests {
    use pilot_source::RegistryOptions;
    use serde_json::json;

    use super::{Apps, List};

    fn list(page: &serde_json::Value) -> List {
        serde_json::from_str(&page.to_string()).unwrap()
    }

    fn shop(id: &str, status: &str, action: &str) -> serde_json::Value {
        json!({"instanceId": id, "hostName": "h", "ipAddr": "10.0.0.1", "status": status, "actionType": action,
            "port": {"$": 8080, "@enabled": "true"}, "securePort": {"$": 8443, "@enabled": "true"},
            "vipAddress": "shop,Shop.example.com,${unset}", "metadata": {"@class": "x", "version": "v1", "n": 7},
            "dataCenterInfo": {"name": "Amazon", "metadata": {"availability-zone": "eu-west-1b"}}})
    }

    #[test]
    fn an_application_is_a_service() {
        let options = RegistryOptions::new("eureka", "service.eureka");
        let odd = json!({"instanceId": "b", "port": 7, "status": "UP"});
        let apps = Apps::read(list(&json!([7, {"name": "SHOP", "instance": [shop("a", "UP", ""), odd]}])));
        let all = apps.all(&options);
        assert_eq!((apps.hash_code().as_str(), all[0].unreadable[0].0.as_str()), ("UP_2_", "b"));
        let instance = &all[0].instances[0];
        assert_eq!(
            (all[0].name.as_str(), &instance.hosts[..]),
            ("shop", &["shop.example.com".into(), "shop.service.eureka".into()][..])
        );
        assert_eq!(instance.ports.iter().map(|port| port.number).collect::<Vec<_>>(), [8080, 8443]);
        assert_eq!(instance.locality, "eu-west-1/eu-west-1b");
        assert_eq!(
            instance.metadata.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>(),
            ["n=7", "version=v1"]
        );
    }

    #[test]
    fn each_instance_is_called_by_its_own_virtual_addresses() {
        let with = |id: &str, vip: &str| {
            let mut one = shop(id, "UP", "");
            (one["vipAddress"], one["metadata"]) = (json!(vip), json!({}));
            one
        };
        let mut own = with("d", "shop-own");
        own["metadata"] = json!({"istio-host": "own.example.com"});
        let all =
            [with("a", "shop"), with("b", "shop-canary"), with("c", "${unset}"), own, with("e", "Shop")];
        let apps = Apps::read(list(&json!([{"name": "SHOP", "instance": all}])));
        let all = apps.all(&RegistryOptions::new("eureka", "mesh"));
        assert!(all[0].hosts.is_empty(), "its name, in the domain of the registry");
        let own: Vec<_> = all[0].instances.iter().map(|instance| instance.hosts.join(",")).collect();
        assert_eq!(own, ["", "shop-canary.mesh", "", "", ""]);
    }

    #[test]
    fn deltas_are_taken_in() {
        let mut apps = Apps::read(list(&json!({"name": "SHOP", "instance": shop("a", "UP", "")})));
        let touched = apps.change(list(&json!([{"name": "SHOP", "instance": [shop("b", "DOWN", "ADDED")]}])));
        assert_eq!((touched.len(), apps.hash_code().as_str()), (1, "DOWN_1_UP_1_"));
        let gone = [shop("a", "UP", "DELETED"), shop("b", "UP", "DELETED")];
        apps.change(list(&json!([{"name": "SHOP", "instance": gone}])));
        assert!(serde_json::from_str::<List>("7").is_err() && list(&json!(null)).0.is_empty());
        assert!(apps.registration("SHOP", &RegistryOptions::new("eureka", "")).is_none());
    }
}
