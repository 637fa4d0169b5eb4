//! What a Sidecar lets its proxies reach, listener by listener.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{Host, Name};
use pilot_model::{EgressHost, EgressListener, Service, Sidecar};

use crate::routes::RouteRule;

/// What an egress entry is filed under: a namespace or `*`, and a host or pattern. A host is looked up by asking for
/// each key that could name it, so nobody walks all Sidecars.
pub type EgressKey = (Name, Host);

const EVERY_NAMESPACE: &str = "*";
const THIS_NAMESPACE: &str = ".";

/// Every key under which an egress entry that lets a service through can be filed.
pub fn egress_keys(service_namespace: &Name, host: &Host) -> impl Iterator<Item = EgressKey> {
    let hosts: Vec<Host> = std::iter::once(host.clone()).chain(host.covering_patterns()).collect();
    let namespaces = [service_namespace.clone(), Name::new(EVERY_NAMESPACE)];
    namespaces.into_iter().flat_map(move |namespace| {
        let hosts = hosts.clone();
        hosts.into_iter().map(move |host| (namespace.clone(), host))
    })
}

/// Keys under which an entry is filed for what is more general than it: a VirtualService for a pattern is let through by
/// an entry for a host that the pattern covers.
pub fn covering_keys(entry: &EgressHost) -> impl Iterator<Item = EgressKey> {
    entry.host.covering_patterns().map(|pattern| (entry.namespace.clone(), pattern))
}

/// The egress listeners of a Sidecar for proxies of a namespace, with `.` replaced by it. A Sidecar without any lets
/// everything through.
pub fn egress_listeners(sidecar: &Sidecar, namespace: &Name) -> Vec<EgressListener> {
    if sidecar.egress.is_empty() {
        let all = EgressHost { namespace: Name::new(EVERY_NAMESPACE), host: Host::new("*"), exclude: false };
        return vec![EgressListener { hosts: vec![all], ..EgressListener::default() }];
    }
    let mut out = sidecar.egress.clone();
    let entries = out.iter_mut().flat_map(|listener| &mut listener.hosts);
    entries.filter(|entry| entry.namespace == THIS_NAMESPACE).for_each(|e| e.namespace = namespace.clone());
    out
}

/// Which of the ports of a service count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ports {
    All,
    These(BTreeSet<u16>),
}

impl Ports {
    pub(crate) fn of_listener(listener: &EgressListener) -> Self {
        listener.service_port().map_or(Self::All, |port| Self::These([port].into()))
    }

    /// The service with these ports only; nothing if it has none of them.
    pub(crate) fn trim(&self, service: &Arc<Service>) -> Option<Arc<Service>> {
        let Self::These(wanted) = self else { return Some(Arc::clone(service)) };
        let kept = || service.ports.iter().filter(|port| wanted.contains(&port.number));
        match kept().count() {
            0 => None,
            n if n == service.ports.len() => Some(Arc::clone(service)),
            _ => Some(Arc::new(Service { ports: kept().cloned().collect(), ..Service::clone(service) })),
        }
    }
}

/// The service as a listener lets it through, if it does.
pub(crate) fn import(listener: &EgressListener, service: &Arc<Service>) -> Option<Arc<Service>> {
    let names = |entry: &EgressHost| is_for(entry, &service.namespace) && service.host.subset_of(&entry.host);
    let excluded = listener.hosts.iter().any(|entry| entry.exclude && names(entry));
    let named = listener.hosts.iter().any(|entry| !entry.exclude && names(entry));
    let trimmed = (named && !excluded).then(|| Ports::of_listener(listener).trim(service)).flatten()?;
    // Other names count where they are let through, too.
    let entries = || listener.hosts.iter().filter(|entry| is_for(entry, &service.namespace));
    let lets = |alias: &Host| {
        let any = |exclude| entries().any(|e| e.exclude == exclude && alias.subset_of(&e.host));
        any(false) && !any(true)
    };
    if trimmed.aliases.iter().all(|(_, alias)| lets(alias)) {
        return Some(trimmed);
    }
    let mut service = Service::clone(&trimmed);
    service.aliases.retain(|(_, alias)| lets(alias));
    Some(Arc::new(service))
}

/// Does a listener let a VirtualService through? One of its hosts is enough, and patterns count in both directions.
pub fn imports_rule(listener: &EgressListener, rule: &RouteRule) -> bool {
    let entries = || listener.hosts.iter().filter(|entry| is_for(entry, &rule.id.namespace));
    rule.spec.hosts.iter().any(|host| {
        let named = entries().any(|entry| !entry.exclude && host.overlaps(&entry.host));
        named && !entries().any(|entry| entry.exclude && host.subset_of(&entry.host))
    })
}

fn is_for(entry: &EgressHost, namespace: &Name) -> bool {
    entry.namespace == EVERY_NAMESPACE || entry.namespace == *namespace
}

#[cfg(test)]
mod tests {
    use super::{egress_listeners, import};
    use crate::testing::service;
    use pilot_base::{Host, Name};
    use pilot_model::{EgressHost, EgressListener, EgressPort, Protocol, Sidecar};

    fn listener(entries: &[(&str, &str, bool)], port: Option<(u16, Protocol)>) -> EgressListener {
        let entry = |(namespace, host, exclude): &(&str, &str, bool)| EgressHost {
            namespace: Name::new(namespace),
            host: Host::new(host),
            exclude: *exclude,
        };
        EgressListener {
            hosts: entries.iter().map(entry).collect(),
            port: port.map(|(number, protocol)| EgressPort { number, name: Name::empty(), protocol }),
            ..EgressListener::default()
        }
    }

    #[test]
    fn a_dot_stands_for_the_namespace_of_the_proxy() {
        let sidecar = Sidecar { egress: vec![listener(&[(".", "*", false)], None)], ..Sidecar::default() };
        let listeners = egress_listeners(&sidecar, &"here".into());
        assert!(import(&listeners[0], &service("a.com", "here", |_| ())).is_some());
        assert!(import(&listeners[0], &service("a.com", "there", |_| ())).is_none());
        assert!(
            import(&egress_listeners(&Sidecar::default(), &"x".into())[0], &service("a", "b", |_| ()))
                .is_some()
        );
    }

    #[test]
    fn what_is_excluded_stays_outside() {
        let listener = listener(&[("*", "*", false), ("ns", "*.com", true)], None);
        assert!(import(&listener, &service("a.com", "ns", |_| ())).is_none());
        assert!(import(&listener, &service("a.org", "ns", |_| ())).is_some());
        assert!(import(&listener, &service("a.com", "other", |_| ())).is_some());
    }

    #[test]
    fn a_listener_with_a_port_serves_only_that_port() {
        let two = service("a.com", "ns", |s| {
            s.ports[0].number = 80;
            let mut more = s.ports[0].clone();
            more.number = 81;
            s.ports.push(more);
        });
        let ports = |port| {
            let found = import(&listener(&[("*", "*", false)], port), &two)?;
            Some(found.ports.iter().map(|port| port.number).collect::<Vec<_>>())
        };
        assert_eq!(ports(None), Some(vec![80, 81]));
        assert_eq!(ports(Some((81, Protocol::Http))), Some(vec![81]));
        assert_eq!(ports(Some((82, Protocol::Http))), None);
        assert_eq!(ports(Some((82, Protocol::HttpProxy))), Some(vec![80, 81]));
    }
}
