//! The names by which clients call a service.

use std::net::{IpAddr, Ipv6Addr};

use pilot_base::{Host, Name};
use pilot_model::{Registry, Resolution, Service};

use super::{Maker, Neighbours};

const SERVICES: &str = ".svc.";

/// How names are written in a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// The table is for one port, which goes without saying.
    Plain,
    /// Also with the port behind them.
    WithPort,
}

/// A name as it stands in a `Host` header.
pub(crate) fn domain(name: &str) -> String {
    match name.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => name.to_owned(),
    }
}

pub(super) fn at_port(name: &str, port: u16) -> String {
    format!("{}:{port}", domain(name))
}

impl<N: Neighbours> Maker<'_, N> {
    /// Every name by which clients may call the service.
    pub(super) fn domains(&self, service: &Service, port: u16, naming: Naming) -> Vec<String> {
        let both = |name: String| {
            let with = (naming == Naming::WithPort).then(|| at_port(&name, port));
            std::iter::once(domain(&name)).chain(with)
        };
        let aliases = service.aliases.iter().map(|(_, alias)| alias);
        let hosts = std::iter::once(&service.host).chain(aliases);
        let mut out: Vec<String> =
            hosts.flat_map(|host| self.names_of(host.as_str(), port)).flat_map(both).collect();
        // Endpoints of a headless service have names of their own below that of the service.
        if service.registry == Registry::Kubernetes && service.resolution == Resolution::Passthrough {
            let below: Vec<String> = out.iter().map(|name| format!("*.{name}")).collect();
            out.extend(below);
        }
        let addresses = service.reachable_from(&self.traits.caller);
        for address in addresses.iter().filter(|address| self.is_first_at(address, port)) {
            for name in both(address.to_string()) {
                if !out.contains(&name) {
                    out.push(name);
                }
            }
        }
        out
    }

    /// A name and its other forms.
    fn names_of(&self, host: &str, port: u16) -> Vec<String> {
        let mut others = Vec::new();
        if self.settings.options.features.absolute_fqdn && host.parse::<IpAddr>().is_err() {
            others.push(format!("{host}."));
        }
        others.extend(short_names(host, &self.traits.dns_suffix, self.client));
        others.retain(|name| !self.is_another_host(name, port));
        std::iter::once(host.to_owned()).chain(others).collect()
    }

    fn is_another_host(&self, name: &str, port: u16) -> bool {
        let other = Host::new(name);
        if other == self.plan.host {
            return false;
        }
        let Some(plan) = self.around.plan(&other) else { return false };
        let Some(view) = plan.view(self.view.listener) else { return false };
        view.serves_http(port) || Maker { plan, view, ..*self }.ports_of_rules().contains(&port)
    }

    /// Of several hosts with one address one is called by it: one that a VirtualService routes, then the first by name.
    fn is_first_at(&self, address: &Name, port: u16) -> bool {
        let own = (self.view.routes.is_empty(), &self.plan.host);
        let hosts = self.around.hosts_at(address);
        let is_before = |host: &Host| {
            let there = self.view_of(host).filter(|view| view.serves_http(port));
            there.is_some_and(|view| (view.routes.is_empty(), host) < own)
        };
        !hosts.iter().any(is_before)
    }
}

/// The beginnings of a name that are enough in the clients' domain.
pub(crate) fn short_names(host: &str, suffix: &str, client: Option<&Name>) -> Vec<String> {
    if suffix.is_empty() {
        return Vec::new();
    }
    if !suffix.starts_with(SERVICES) {
        return shared_domain(host, suffix);
    }
    // `name.namespace`
    let Some((name, namespace)) = host.strip_suffix(suffix).and_then(|whole| whole.split_once('.')) else {
        return Vec::new();
    };
    let both = format!("{name}.{namespace}");
    if client.is_some_and(|client| client == namespace) {
        return vec![name.to_owned(), format!("{both}.svc"), both];
    }
    vec![both.clone(), format!("{both}.svc")]
}

/// What of a host is not the domain that it shares with the clients, who live outside Kubernetes.
fn shared_domain(host: &str, domain: &str) -> Vec<String> {
    let (host, domain): (Vec<&str>, Vec<&str>) = (host.split('.').collect(), domain.split('.').collect());
    let shared = host.iter().rev().zip(domain.iter().rev()).take_while(|(a, b)| a == b).count();
    if shared == 0 {
        return Vec::new();
    }
    let (own, common) = host.split_at(host.len() - shared);
    let unique = own.join(".");
    let with_next = (own.len() == 2).then(|| format!("{unique}.{}", common[0]));
    std::iter::once(unique).chain(with_next).collect()
}

#[cfg(test)]
mod tests {
    use super::shared_domain;

    #[test]
    fn a_shared_domain_need_not_be_said() {
        assert_eq!(shared_domain("foo.local.campus.net", "local.campus.net"), ["foo"]);
        assert_eq!(
            shared_domain("foo.local.campus.net", "remote.campus.net"),
            ["foo.local", "foo.local.campus"]
        );
        assert!(shared_domain("foo.com", "campus.net").is_empty());
    }
}
