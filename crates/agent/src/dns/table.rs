//! The name table, made ready to be asked: every form of every name, as it stands in a question.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use pilot_base::FastMap;

use super::wire::{Addresses, Known, TYPE_A, TYPE_AAAA, to_wire};
use crate::name_table::{NameInfo, NameTable};

const KUBERNETES: &str = "Kubernetes";
const WILDCARD: [u8; 2] = [1, b'*'];

/// Where the proxy is, which decides how short its names may be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) namespace: String,
    /// As `svc.cluster.local`, without the namespace.
    pub(crate) domain: String,
    /// The first domain that clients append: they ask for `a.example.ns.svc.cluster.local` before `a.example`.
    pub(crate) search: Option<String>,
}

#[derive(Default)]
struct Entry {
    v4: Option<Arc<[Ipv4Addr]>>,
    v6: Option<Arc<[Ipv6Addr]>>,
    alias_of: Option<Box<[u8]>>,
}

#[derive(Default)]
pub(super) struct Table {
    names: FastMap<Box<[u8]>, Entry>,
}

impl Place {
    /// `domain` may begin with the namespace.
    pub(crate) fn new(namespace: &str, domain: &str, search: &[String]) -> Self {
        let own = format!("{namespace}.");
        Self {
            namespace: namespace.to_owned(),
            domain: domain.strip_prefix(&own).unwrap_or(domain).to_owned(),
            search: search.first().map(|search| search.trim_end_matches('.').to_owned()),
        }
    }

    /// All names of a host, without dots at their ends.
    fn forms(&self, host: &str, info: &NameInfo) -> Vec<String> {
        if info.registry != KUBERNETES {
            return vec![host.strip_suffix('.').unwrap_or(host).to_owned()];
        }
        let mut forms = vec![host.to_owned()];
        // Other clusters may have another service of the same short name.
        if self.domain.is_empty() || !host.ends_with(&self.domain) {
            return forms;
        }
        let NameInfo { shortname, namespace, alt_hosts, .. } = info;
        let first = self.domain.split('.').next().unwrap_or_default();
        forms.push(format!("{shortname}.{namespace}"));
        forms.push(format!("{shortname}.{namespace}.{first}"));
        if *namespace == self.namespace {
            forms.push(shortname.clone());
        }
        forms.extend(alt_hosts.iter().cloned());
        forms
    }
}

impl Table {
    pub(super) fn new(table: &NameTable, place: &Place) -> Self {
        let mut built = Self::default();
        for (host, info) in &table.table {
            let ips: Vec<IpAddr> = info.ips.iter().filter_map(|ip| ip.parse().ok()).collect();
            if ips.is_empty() {
                continue;
            }
            let v4: Arc<[Ipv4Addr]> =
                ips.iter().filter_map(|ip| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None }).collect();
            let v6: Arc<[Ipv6Addr]> =
                ips.iter().filter_map(|ip| if let IpAddr::V6(ip) = ip { Some(*ip) } else { None }).collect();
            let forms = place.forms(host, info);
            for form in &forms {
                let Some(name) = to_wire(form) else { continue };
                built.alias(form, &name, &forms, place);
                let entry = built.names.entry(name.into()).or_default();
                (entry.v4, entry.v6) = (Some(Arc::clone(&v4)), Some(Arc::clone(&v6)));
            }
        }
        built
    }

    /// The name that clients ask for first.
    fn alias(&mut self, form: &str, name: &[u8], forms: &[String], place: &Place) {
        let Some(search) = place.search.as_deref().filter(|search| !form.ends_with(search)) else { return };
        let expanded = format!("{form}.{search}");
        if forms.contains(&expanded) {
            return;
        }
        if let Some(alias) = to_wire(&expanded) {
            self.names.entry(alias.into()).or_default().alias_of = Some(name.into());
        }
    }

    /// What to answer; none if somebody else should be asked.
    pub(super) fn find(&self, name: &[u8], kind: u16) -> Option<Known<'_>> {
        if !matches!(kind, TYPE_A | TYPE_AAAA) {
            return None;
        }
        let entry = self.names.get(name).or_else(|| self.wildcard(name))?;
        let alias_of = entry.alias_of.as_deref();
        let entry = alias_of.and_then(|target| self.names.get(target)).unwrap_or(entry);
        let addresses = if kind == TYPE_A {
            Addresses::V4(entry.v4.as_deref().unwrap_or_default())
        } else {
            Addresses::V6(entry.v6.as_deref().unwrap_or_default())
        };
        Some(Known { alias_of, addresses })
    }

    /// The nearest one wins.
    fn wildcard(&self, name: &[u8]) -> Option<&Entry> {
        let mut rest = name;
        let mut pattern = Vec::with_capacity(name.len() + WILDCARD.len());
        while let Some((length, behind)) = rest.split_first().filter(|(length, _)| **length > 0) {
            rest = behind.get(usize::from(*length)..)?;
            pattern.clear();
            pattern.extend_from_slice(&WILDCARD);
            pattern.extend_from_slice(rest);
            if let Some(entry) = self.names.get(pattern.as_slice()) {
                return Some(entry);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{Place, Table};
    use crate::dns::wire::{Addresses, TYPE_A, TYPE_AAAA, to_wire};
    use crate::name_table::{NameInfo, NameTable};

    fn table() -> Table {
        let service = |ips: &[&str], short: &str, namespace: &str| NameInfo {
            ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
            registry: if short.is_empty() { "External" } else { "Kubernetes" }.to_owned(),
            shortname: short.to_owned(),
            namespace: namespace.to_owned(),
            alt_hosts: Vec::new(),
        };
        let table = [
            ("cart.shop.svc.cluster.local", service(&["10.0.0.1", "fd00::1"], "cart", "shop")),
            ("bank.money.svc.cluster.local", service(&["10.0.0.2"], "bank", "money")),
            ("far.shop.svc.other.local", service(&["10.0.0.3"], "far", "shop")),
            ("*.example.com", service(&["10.0.0.4"], "", "")),
            ("broken.example.com", service(&["nonsense"], "", "")),
        ];
        let table = NameTable { table: table.map(|(host, info)| (host.to_owned(), info)).into() };
        let search = ["shop.svc.cluster.local".to_owned()];
        Table::new(&table, &Place::new("shop", "shop.svc.cluster.local", &search))
    }

    fn found(name: &str, kind: u16) -> Option<(String, usize)> {
        let table = table();
        let known = table.find(&to_wire(name).unwrap(), kind)?;
        let count = match known.addresses {
            Addresses::V4(all) => all.len(),
            Addresses::V6(all) => all.len(),
        };
        Some((String::from_utf8_lossy(known.alias_of.unwrap_or_default()).into_owned(), count))
    }

    #[test]
    fn names_are_short_where_they_are_at_home() {
        let plain = |count| Some((String::new(), count));
        for name in ["cart", "cart.shop", "cart.shop.svc", "cart.shop.svc.cluster.local", "bank.money"] {
            assert_eq!(found(name, TYPE_A), plain(1), "{name}");
        }
        assert_eq!(
            (found("bank", TYPE_A), found("far", TYPE_A), found("far.shop", TYPE_A)),
            (None, None, None)
        );
        assert_eq!(found("far.shop.svc.other.local", TYPE_A), plain(1));
        assert_eq!((found("cart", TYPE_AAAA), found("bank.money", TYPE_AAAA)), (plain(1), plain(0)));
        assert_eq!(found("cart", 16), None);
    }

    #[test]
    fn what_clients_append_is_an_alias() {
        let alias = found("bank.money.shop.svc.cluster.local", TYPE_A);
        assert_eq!(alias, Some(("\u{4}bank\u{5}money\0".to_owned(), 1)));
        let alias = found("bank.money.svc.cluster.local.shop.svc.cluster.local", TYPE_A);
        assert!(alias.is_some_and(|(target, count)| target.contains("cluster") && count == 1));
    }

    #[test]
    fn wildcards_match_all_below() {
        assert_eq!(found("a.b.example.com", TYPE_A), Some((String::new(), 1)));
        assert_eq!(found("broken.example.com", TYPE_A), Some((String::new(), 1)));
        assert_eq!(found("example.com", TYPE_A), None);
    }
}
