use std::fmt::Write as _;
use std::net::IpAddr;

use pilot_base::{Host, Name};

/// A host as a rule's writer meant it: a name without dots is a service of the rule's own namespace.
pub fn fqdn(host: &Host, namespace: &Name, domain: &Name) -> Host {
    let text = host.as_str();
    let whole = text.is_empty() || text == "*" || text.contains('.') || text.parse::<IpAddr>().is_ok();
    if whole {
        return host.lowercase();
    }
    let mut out = text.to_owned();
    if !namespace.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(out, ".{namespace}");
    }
    if !domain.is_empty() {
        let _ = write!(out, ".svc.{domain}");
    }
    Host::new(&out).lowercase()
}

/// The identity of a service account.
pub fn spiffe(trust_domain: &Name, namespace: &Name, account: &Name) -> Name {
    Name::from(format!("spiffe://{}/ns/{namespace}/sa/{account}", trust_domain.replace('@', ".")))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    Inbound,
    Outbound,
}

/// How a cluster is called. Filters, dashboards and istioctl take these names apart.
pub struct ClusterName;

impl ClusterName {
    pub fn outbound(port: u16, subset: &str, host: &Host) -> Name {
        Name::from(format!("outbound|{port}|{subset}|{host}"))
    }

    /// The port in the name of an outbound cluster.
    pub fn port(name: &str) -> Option<u16> {
        name.strip_prefix("outbound|")?.split('|').next()?.parse().ok()
    }

    pub fn inbound(port: u16) -> Name {
        Name::from(format!("inbound|{port}||"))
    }

    /// The name under which a gateway of another network knows the cluster; also the server name in mutual TLS.
    pub fn sni(port: u16, subset: &str, host: &Host) -> Name {
        Name::from(format!("outbound_.{port}_.{subset}_.{host}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{ClusterName, fqdn};
    use pilot_base::Host;

    #[test]
    fn outbound_clusters_tell_their_port() {
        assert_eq!(ClusterName::port(&ClusterName::outbound(80, "v1", &Host::new("a.example"))), Some(80));
        assert_eq!(ClusterName::port(&ClusterName::inbound(80)), None);
        assert_eq!(ClusterName::port("PassthroughCluster"), None);
    }

    #[test]
    fn short_names_are_made_whole() {
        let whole = |host: &str| fqdn(&Host::new(host), &"ns".into(), &"cluster.local".into()).to_string();
        assert_eq!(whole("reviews"), "reviews.ns.svc.cluster.local");
        assert_eq!(whole("Reviews.other"), "reviews.other");
        assert_eq!(whole("*"), "*");
        assert_eq!(whole("*.com"), "*.com");
        assert_eq!(whole("10.0.0.1"), "10.0.0.1");
    }
}
