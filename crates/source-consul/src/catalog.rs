//! What the two questions that wait at Consul have said, and which services they name.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::Check;

/// Tags by service, as the catalog says it.
pub(crate) type Services = BTreeMap<String, Vec<String>>;

/// What is known of the whole catalog.
#[derive(Default)]
pub(crate) struct Catalog {
    services: Services,
    /// By node and id: whose it is, and when it changed.
    checks: BTreeMap<(String, String), (String, u64)>,
}

/// Which services are to be asked for.
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) changed: BTreeSet<String>,
    pub(crate) gone: BTreeSet<String>,
}

impl Catalog {
    pub(crate) fn services(&self) -> impl Iterator<Item = &String> {
        self.services.keys()
    }

    pub(crate) fn take_services(&mut self, services: Services) -> Named {
        let differs = |(name, tags): &(&String, &Vec<String>)| self.services.get(*name) != Some(*tags);
        let changed = services.iter().filter(differs).map(|(name, _)| name.clone()).collect();
        let gone = self.services.keys().filter(|name| !services.contains_key(*name)).cloned().collect();
        self.services = services;
        Named { changed, gone }
    }

    /// A check of a node is one of all its services, and of none by name.
    pub(crate) fn take_checks(&mut self, checks: Vec<Check>) -> (Named, bool) {
        let key = |check: &Check| (check.node.clone(), check.id.clone());
        let now: BTreeMap<_, _> =
            checks.into_iter().map(|check| (key(&check), (check.service_name, check.modify_index))).collect();
        let differs = |(key, check): &(&_, &_)| self.checks.get(*key) != Some(*check);
        let new = now.iter().filter(differs).map(|(_, (service, _))| service);
        let old =
            self.checks.iter().filter(|(key, _)| !now.contains_key(*key)).map(|(_, (service, _))| service);
        let touched: BTreeSet<String> = new.chain(old).cloned().collect();
        self.checks = now;
        let of_nodes = touched.contains("");
        let known = |name: &String| self.services.contains_key(name);
        (Named { changed: touched.into_iter().filter(known).collect(), gone: BTreeSet::new() }, of_nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::{Catalog, Services};
    use crate::message::Check;

    fn services(all: &[(&str, &str)]) -> Services {
        all.iter().map(|(name, tag)| ((*name).to_owned(), vec![(*tag).to_owned()])).collect()
    }

    fn check(service: &str, modify_index: u64) -> Check {
        let id = format!("check-{service}");
        Check { id, node: "n".into(), service_name: service.into(), modify_index, ..Check::default() }
    }

    #[test]
    fn only_what_changed_is_named() {
        let mut catalog = Catalog::default();
        let named = catalog.take_services(services(&[("a", ""), ("b", "")]));
        assert_eq!(named.changed.len(), 2);
        catalog.take_checks(vec![check("a", 1), check("b", 1), check("", 1)]);
        let named = catalog.take_services(services(&[("a", "v2"), ("c", "")]));
        assert_eq!(
            (named.changed.into_iter().collect::<Vec<_>>(), named.gone.len()),
            (vec!["a".into(), "c".into()], 1)
        );
        let (named, of_nodes) = catalog.take_checks(vec![check("a", 1), check("", 2)]);
        assert!(named.changed.is_empty() && of_nodes, "b has gone, and a node changed");
        let (named, of_nodes) = catalog.take_checks(vec![check("a", 3), check("", 2)]);
        assert!(named.changed.contains("a") && !of_nodes);
    }
}
