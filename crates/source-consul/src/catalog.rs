//! What the questions that wait at Consul have said, and which services may be different.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::message::{Check, Listed};

/// Tags by service, as the catalog says it.
pub(crate) type Services = BTreeMap<String, Vec<String>>;

/// Of which node and by which name a check is, and whose it is; those of a node are no service's.
type Alarms = BTreeMap<(String, String), String>;

/// What is known of the whole catalog.
#[derive(Default)]
pub(crate) struct Catalog {
    services: Services,
    critical: Alarms,
    warning: Alarms,
    /// When each node was changed.
    nodes: BTreeMap<String, u64>,
    /// What was read of each service.
    read: BTreeMap<String, Seen>,
    /// Names of nodes, each once.
    names: BTreeSet<Arc<str>>,
}

/// How a service was when it was read.
struct Seen {
    index: u64,
    /// Where its instances are.
    nodes: Vec<Arc<str>>,
}

/// What came of an answer about all services.
#[derive(Default, PartialEq, Debug)]
pub(crate) struct Named {
    pub(crate) changed: BTreeSet<String>,
    pub(crate) gone: BTreeSet<String>,
}

impl Catalog {
    /// All services, those that changed last behind the others: what has changed often does so again.
    pub(crate) fn by_last_change(&self) -> Vec<String> {
        let mut all: Vec<&String> = self.services.keys().collect();
        all.sort_by_key(|name| self.read.get(*name).map_or(u64::MAX, |seen| seen.index));
        all.into_iter().cloned().collect()
    }

    pub(crate) fn has(&self, service: &str) -> bool {
        self.services.contains_key(service)
    }

    /// Is most of what there was missing? That is hardly true; as for shelves.
    pub(crate) fn is_collapse(&self, now: &Services) -> bool {
        let gone = self.services.keys().filter(|name| !now.contains_key(*name)).count();
        let had = self.services.len();
        gone > 1 && (gone == had || (had >= 10 && gone * 2 > had))
    }

    pub(crate) fn take_services(&mut self, services: Services) -> Named {
        let differs = |(name, tags): &(&String, &Vec<String>)| self.services.get(*name) != Some(*tags);
        let changed = services.iter().filter(differs).map(|(name, _)| name.clone()).collect();
        let gone: BTreeSet<String> =
            self.services.keys().filter(|name| !services.contains_key(*name)).cloned().collect();
        self.services = services;
        gone.iter().for_each(|name| _ = self.read.remove(name));
        Named { changed, gone }
    }

    pub(crate) fn take_critical(&mut self, checks: Vec<Check>) -> BTreeSet<String> {
        let now = alarms(checks);
        let before = std::mem::replace(&mut self.critical, now);
        self.touched(&before, &self.critical)
    }

    pub(crate) fn take_warning(&mut self, checks: Vec<Check>) -> BTreeSet<String> {
        let now = alarms(checks);
        let before = std::mem::replace(&mut self.warning, now);
        self.touched(&before, &self.warning)
    }

    pub(crate) fn take_nodes(&mut self, nodes: Vec<Listed>) -> BTreeSet<String> {
        // Machines come and go, and most of them never come again under their name.
        self.names.retain(|name| Arc::strong_count(name) > 1);
        let now: BTreeMap<String, u64> =
            nodes.into_iter().map(|node| (node.node, node.modify_index)).collect();
        let before = std::mem::replace(&mut self.nodes, now);
        let differs = |node: &&str| before.get(*node) != self.nodes.get(*node);
        let nodes = before.keys().chain(self.nodes.keys()).map(String::as_str).filter(differs);
        self.on(&nodes.collect())
    }

    /// Notes how a service is. Tells whether that is something else than before.
    pub(crate) fn seen(&mut self, service: &str, index: u64, nodes: &BTreeSet<String>) {
        let nodes = nodes.iter().map(|node| self.name(node)).collect();
        self.read.insert(service.to_owned(), Seen { index, nodes });
    }

    /// Has a service changed since it was read?
    pub(crate) fn is_stale(&self, service: &str, index: u64) -> bool {
        self.has(service) && self.read.get(service).is_none_or(|seen| seen.index != index)
    }

    fn name(&mut self, node: &str) -> Arc<str> {
        if let Some(name) = self.names.get(node) {
            return Arc::clone(name);
        }
        let name: Arc<str> = Arc::from(node);
        self.names.insert(Arc::clone(&name));
        name
    }

    /// The services of checks that only one of two lists has; a check of a node is one of all that is on it.
    fn touched(&self, before: &Alarms, now: &Alarms) -> BTreeSet<String> {
        let differs = |(key, service): &(&(String, String), &String)| {
            before.get(*key) != Some(*service) || now.get(*key) != Some(*service)
        };
        let (mut services, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        for ((node, _), service) in before.iter().chain(now).filter(differs) {
            if service.is_empty() {
                nodes.insert(node.as_str());
            } else if self.has(service) {
                services.insert(service.clone());
            }
        }
        services.extend(self.on(&nodes));
        services
    }

    fn on(&self, nodes: &BTreeSet<&str>) -> BTreeSet<String> {
        if nodes.is_empty() {
            return BTreeSet::new();
        }
        let is_there = |seen: &Seen| seen.nodes.iter().any(|node| nodes.contains(&**node));
        self.read.iter().filter(|(_, seen)| is_there(seen)).map(|(name, _)| name.clone()).collect()
    }
}

fn alarms(checks: Vec<Check>) -> Alarms {
    checks.into_iter().map(|check| ((check.node, check.id), check.service_name)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Catalog, Services};
    use crate::message::{Check, Listed};

    fn services(all: &[(&str, &str)]) -> Services {
        all.iter().map(|(name, tag)| ((*name).to_owned(), vec![(*tag).to_owned()])).collect()
    }

    fn check(node: &str, service: &str) -> Check {
        let id = format!("check-{service}");
        Check { id, node: node.into(), service_name: service.into(), ..Check::default() }
    }

    fn names(set: &BTreeSet<String>) -> Vec<&str> {
        set.iter().map(String::as_str).collect()
    }

    fn catalog() -> Catalog {
        let mut catalog = Catalog::default();
        let named = catalog.take_services(services(&[("a", ""), ("b", ""), ("c", "")]));
        assert_eq!(named.changed.len(), 3);
        for (service, node) in [("a", "n1"), ("b", "n1"), ("c", "n2")] {
            catalog.seen(service, 7, &[node.to_owned()].into());
        }
        catalog
    }

    #[test]
    fn only_what_changed_is_named() {
        let mut catalog = catalog();
        let named = catalog.take_services(services(&[("a", "v2"), ("b", ""), ("d", "")]));
        assert_eq!((names(&named.changed), names(&named.gone)), (vec!["a", "d"], vec!["c"]));
        catalog.seen("b", 9, &BTreeSet::new());
        assert_eq!(catalog.by_last_change(), ["a", "b", "d"]);
        assert!(!catalog.is_stale("a", 7) && catalog.is_stale("a", 8) && catalog.is_stale("d", 8));
        assert!(!catalog.is_stale("c", 8), "what is gone is not asked for");
    }

    #[test]
    fn checks_name_their_service_or_all_of_their_node() {
        let mut catalog = catalog();
        assert_eq!(names(&catalog.take_critical(vec![check("n2", "c")])), ["c"]);
        assert_eq!(names(&catalog.take_critical(vec![check("n2", "c"), check("n1", "")])), ["a", "b"]);
        assert_eq!(names(&catalog.take_warning(vec![check("n2", "gone")])), Vec::<&str>::new());
        assert_eq!(names(&catalog.take_critical(vec![])), ["a", "b", "c"]);
        let node = |modify_index| Listed { node: "n2".into(), modify_index };
        assert_eq!(names(&catalog.take_nodes(vec![node(1)])), ["c"]);
        assert!(catalog.take_nodes(vec![node(1)]).is_empty());
        assert_eq!(names(&catalog.take_nodes(vec![node(2)])), ["c"]);
        catalog.seen("c", 8, &["n3".to_owned()].into());
        catalog.take_nodes(vec![]);
        let known: Vec<&str> = catalog.names.iter().map(|name| &**name).collect();
        assert_eq!(known, ["n1", "n3"], "a node on which nobody is any more is forgotten");
    }

    #[test]
    fn nearly_everything_is_not_gone_at_once() {
        let mut catalog = Catalog::default();
        assert!(!catalog.is_collapse(&Services::new()));
        catalog.take_services(services(&[("a", "")]));
        assert!(!catalog.is_collapse(&Services::new()), "one may go by itself");
        catalog.take_services(services(&[("a", ""), ("b", "")]));
        assert!(catalog.is_collapse(&Services::new()) && !catalog.is_collapse(&services(&[("a", "")])));
    }
}
