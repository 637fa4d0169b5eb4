//! Which ServiceEntry has which addresses, and what should stand in whose status.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use pilot_base::Cidr;
use pilot_config::Tree;
use pilot_model::ConfigId;
use serde_json::{Value, json};

use super::pool::Pool;

/// A host and an address of it, as both stand in a status.
pub(crate) type HostAddress = (String, IpAddr);

/// What is known of a ServiceEntry.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry {
    /// When it was made. Of two that have the same address the older keeps it.
    pub(crate) created: String,
    /// Nothing was changed in between if it still has this version when it is written.
    pub(crate) version: String,
    /// The hosts that need addresses; none if it has some, or wants none.
    pub(crate) hosts: Vec<String>,
    /// Addresses that its writer gave it.
    pub(crate) own: Vec<IpAddr>,
    /// What its status says.
    pub(crate) stored: Vec<HostAddress>,
    /// What it is about to say.
    planned: Option<Vec<HostAddress>>,
}

impl Entry {
    pub(crate) fn read(object: Tree<'_>) -> Self {
        let texts = |path: &[&str]| -> Vec<String> {
            object
                .at(path)
                .into_iter()
                .flat_map(Tree::items)
                .filter_map(Tree::text)
                .map(str::to_owned)
                .collect()
        };
        let resolution = object.text_at(&["spec", "resolution"]);
        let written = texts(&["spec", "addresses"]);
        let label = object.text_at(&["metadata", "labels", "networking.istio.io/enable-autoallocate-ip"]);
        // Without resolution a call keeps the address that it was made to, which leads nowhere.
        let wants =
            written.is_empty() && !matches!(resolution, "" | "NONE") && !label.eq_ignore_ascii_case("false");
        // A name table cannot hold patterns; only a proxy that looks names up itself knows what to do with them.
        let is_named = |host: &String| resolution == "DYNAMIC_DNS" || !host.contains('*');
        let mut hosts = texts(&["spec", "hosts"]);
        hosts.retain(|host| wants && is_named(host));
        let mut seen = BTreeSet::new();
        hosts.retain(|host| seen.insert(host.clone()));
        let stored = object.at(&["status", "addresses"]).into_iter().flat_map(Tree::items);
        let stored = stored.filter_map(|address| {
            Some((address.text_at(&["host"]).to_owned(), address.text_at(&["value"]).parse().ok()?))
        });
        let metadata = |field: &str| object.text_at(&["metadata", field]).to_owned();
        Self {
            created: metadata("creationTimestamp"),
            version: metadata("resourceVersion"),
            hosts,
            own: written.iter().filter_map(|address| address.parse().ok()).collect(),
            stored: stored.collect(),
            planned: None,
        }
    }

    fn given(&self) -> &[HostAddress] {
        self.planned.as_deref().unwrap_or(&self.stored)
    }

    fn claims(&self) -> Vec<IpAddr> {
        self.given().iter().map(|(_, ip)| *ip).chain(self.own.iter().copied()).collect()
    }
}

/// All ServiceEntries, and the ranges that addresses come from.
pub(crate) struct Ledger {
    entries: BTreeMap<ConfigId, Entry>,
    pools: [Pool; 2],
}

impl Ledger {
    /// Addresses of both families, one of each for each host.
    pub(crate) fn new(v4: Cidr, v6: Cidr) -> Self {
        Self { entries: BTreeMap::new(), pools: [Pool::new(v4), Pool::new(v6)] }
    }

    pub(crate) fn entry(&self, id: &ConfigId) -> Option<&Entry> {
        self.entries.get(id)
    }

    /// Tells who has to be looked at: itself, and who has an address in common with it.
    pub(crate) fn put(&mut self, id: &ConfigId, entry: Entry) -> BTreeSet<ConfigId> {
        let mut touched = self.remove(id);
        for ip in entry.claims() {
            let pool = self.pool(ip);
            pool.claim(ip, id);
            touched.extend(pool.owners(ip).cloned());
        }
        self.entries.insert(id.clone(), entry);
        touched.insert(id.clone());
        touched
    }

    /// Tells who had an address in common with it.
    pub(crate) fn remove(&mut self, id: &ConfigId) -> BTreeSet<ConfigId> {
        let mut touched = BTreeSet::new();
        for ip in self.entries.remove(id).iter().flat_map(Entry::claims) {
            let pool = self.pool(ip);
            pool.release(ip, id);
            touched.extend(pool.owners(ip).cloned());
        }
        touched
    }

    /// What should stand in a status; nothing if it stands there already. New addresses are taken at once, and stay so
    /// until it is known what was written.
    pub(crate) fn plan(&mut self, id: &ConfigId) -> Option<Vec<HostAddress>> {
        let entry = self.entries.get(id)?.clone();
        let mut planned = Vec::new();
        for host in &entry.hosts {
            let kept: Vec<IpAddr> = entry
                .given()
                .iter()
                .filter(|(of, ip)| of == host && !self.belongs_to_another(id, &entry, *ip))
                .map(|(_, ip)| *ip)
                .collect();
            for pool in 0..2 {
                let is_v4 = pool == 0;
                let mut own = kept.iter().filter(|ip| ip.is_ipv4() == is_v4).copied().peekable();
                if own.peek().is_some() {
                    planned.extend(own.map(|ip| (host.clone(), ip)));
                } else if let Some(ip) = self.pools[pool].take(id) {
                    planned.push((host.clone(), ip));
                }
            }
        }
        let entry = Entry { planned: Some(planned.clone()), ..entry };
        self.put(id, entry.clone());
        (planned != entry.stored).then_some(planned)
    }

    /// Addresses that people gave come first, then those of older objects.
    fn belongs_to_another(&self, id: &ConfigId, entry: &Entry, ip: IpAddr) -> bool {
        let pool = &self.pools[usize::from(ip.is_ipv6())];
        pool.owners(ip)
            .filter(|other| *other != id)
            .filter_map(|other| Some((other, self.entries.get(other)?)))
            .any(|(other_id, other)| {
                let is_older = (&other.created, other_id) < (&entry.created, id);
                other.own.contains(&ip) || (!other.hosts.is_empty() && is_older)
            })
    }

    fn pool(&mut self, ip: IpAddr) -> &mut Pool {
        &mut self.pools[usize::from(ip.is_ipv6())]
    }
}

/// As it stands in a status.
pub(crate) fn written(addresses: &[HostAddress]) -> Value {
    addresses.iter().map(|(host, ip)| json!({"value": ip.to_string(), "host": host})).collect()
}

#[cfg(test)]
mod tests {
    use pilot_base::Cidr;
    use pilot_config::Document;
    use pilot_model::ConfigId;
    use serde_json::{Value, json};

    use super::{Entry, Ledger, written};

    fn ledger() -> Ledger {
        Ledger::new(Cidr::parse("240.240.0.0/16").unwrap(), Cidr::parse("2001:2::/48").unwrap())
    }

    fn id(name: &str) -> ConfigId {
        ConfigId::new("shop", name)
    }

    fn entry(created: u32, spec: &Value, addresses: &Value) -> Entry {
        let object = json!({
            "metadata": {"creationTimestamp": format!("2026-01-01T00:00:{created:02}Z"), "resourceVersion": "7"},
            "spec": spec, "status": {"addresses": addresses},
        });
        Entry::read(Document::parse(object.to_string().as_bytes()).unwrap().tree())
    }

    fn dns(hosts: &[&str]) -> Value {
        json!({"hosts": hosts, "resolution": "DNS"})
    }

    fn at(host: &str, number: u32) -> [Value; 2] {
        [
            json!({"value": format!("240.240.0.{number}"), "host": host}),
            json!({"value": format!("2001:2::{number:x}"), "host": host}),
        ]
    }

    #[test]
    fn each_host_has_an_address_of_each_family_and_keeps_it() {
        let mut ledger = ledger();
        ledger.put(&id("a"), entry(1, &dns(&["a.com", "b.com", "*.c.com", "a.com"]), &json!([])));
        let planned = written(&ledger.plan(&id("a")).unwrap());
        assert_eq!(planned, json!([at("a.com", 1), at("b.com", 2)].concat()));
        assert!(ledger.plan(&id("a")).is_some(), "it is not written yet, and the plan is the same");
        ledger.put(&id("a"), entry(1, &dns(&["a.com", "b.com"]), &planned));
        assert_eq!(ledger.plan(&id("a")), None);
        // One host goes, one comes.
        ledger.put(&id("a"), entry(1, &dns(&["b.com", "d.com"]), &planned));
        let planned = written(&ledger.plan(&id("a")).unwrap());
        assert_eq!(planned, json!([at("b.com", 2), at("d.com", 3)].concat()));
    }

    #[test]
    fn who_wants_none_has_none() {
        let mut ledger = ledger();
        for (name, spec) in [
            ("none", json!({"hosts": ["a.com"], "resolution": "NONE"})),
            ("default", json!({"hosts": ["a.com"]})),
            ("own", json!({"hosts": ["a.com"], "resolution": "DNS", "addresses": ["10.0.0.1"]})),
        ] {
            ledger.put(&id(name), entry(1, &spec, &json!([])));
            assert_eq!(ledger.plan(&id(name)), None, "{name}");
            ledger.put(&id(name), entry(1, &spec, &json!(at("a.com", 1))));
            assert_eq!(ledger.plan(&id(name)), Some(Vec::new()), "{name} had some once");
        }
        let any = json!({"hosts": ["*.a.com"], "resolution": "DYNAMIC_DNS"});
        ledger.put(&id("any"), entry(1, &any, &json!([])));
        assert_eq!(ledger.plan(&id("any")).map(|planned| planned.len()), Some(2));
    }

    #[test]
    fn the_older_keeps_an_address_that_two_have() {
        let mut ledger = ledger();
        ledger.put(&id("new"), entry(2, &dns(&["a.com"]), &json!(at("a.com", 1))));
        let touched = ledger.put(&id("old"), entry(1, &dns(&["b.com"]), &json!(at("b.com", 1))));
        assert_eq!(touched.into_iter().collect::<Vec<_>>(), [id("new"), id("old")]);
        assert_eq!(ledger.plan(&id("old")), None);
        assert_eq!(written(&ledger.plan(&id("new")).unwrap()), json!(at("a.com", 2)));
    }

    #[test]
    fn nobody_keeps_an_address_that_people_gave_to_another() {
        let mut ledger = ledger();
        ledger.put(&id("auto"), entry(1, &dns(&["a.com"]), &json!(at("a.com", 1))));
        let own = json!({"hosts": ["b.com"], "resolution": "DNS", "addresses": ["240.240.0.1"]});
        assert!(ledger.put(&id("own"), entry(2, &own, &json!([]))).contains(&id("auto")));
        let planned = written(&ledger.plan(&id("auto")).unwrap());
        assert_eq!(
            planned,
            json!([{"value": "240.240.0.2", "host": "a.com"}, {"value": "2001:2::1", "host": "a.com"}])
        );
    }

    #[test]
    fn what_a_lost_object_had_is_free() {
        let mut ledger = ledger();
        ledger.put(&id("new"), entry(2, &dns(&["a.com"]), &json!(at("a.com", 1))));
        ledger.put(&id("old"), entry(1, &dns(&["b.com"]), &json!(at("b.com", 1))));
        assert!(ledger.remove(&id("old")).contains(&id("new")));
        assert_eq!(ledger.plan(&id("new")), None);
    }
}
