use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use pilot_base::{Labels, Name};

use crate::{Locality, ProxyConfig, Span};

/// One connection of one proxy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProxyId(pub u64);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ProxyType {
    Sidecar,
    Router,
}

/// How an application's traffic reaches the proxy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Interception {
    #[default]
    Redirect,
    Tproxy,
    /// It is not redirected: the application calls the proxy's ports.
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IpMode {
    V4,
    V6,
    Dual,
}

/// Istio's version of a proxy; one that does not say counts as the newest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Version {
    pub const NEWEST: Self = Self { major: u32::MAX, minor: u32::MAX, patch: u32::MAX };

    /// Reads the `major.minor[.patch]` that a version string begins with.
    pub fn parse(text: &str) -> Self {
        let mut numbers = text.split('.').map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().ok()
        });
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => {
                Self { major, minor, patch: numbers.next().flatten().unwrap_or(u32::MAX) }
            }
            _ => Self::NEWEST,
        }
    }
}

/// Files with certificates that a proxy uses in place of those it is issued; empty where none is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CertificateFiles {
    pub chain: Name,
    pub key: Name,
    pub root: Name,
    /// Does somebody else than the agent read them?
    pub served_apart: bool,
}

/// A proxy, as it introduces itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Proxy {
    pub kind: ProxyType,
    /// `pod.namespace`, the third part of the node id.
    pub name: Name,
    pub ips: Vec<IpAddr>,
    pub namespace: Name,
    /// `namespace.svc.cluster.local`
    pub dns_domain: Name,
    pub labels: Labels,
    /// Labels that it has beside those that its pod is known to have.
    pub static_labels: Labels,
    /// Ports of its pod that have a name, as it says.
    pub pod_ports: BTreeMap<Name, u16>,
    pub locality: Locality,
    pub cluster: Name,
    pub network: Name,
    /// The networks that it wants to see; all, if it does not say.
    pub network_view: Vec<Name>,
    pub mesh_id: Name,
    pub node: Name,
    pub service_account: Name,
    pub interception: Interception,
    pub version: Version,
    pub version_text: Name,
    /// Is it a gRPC library that asks, without an Envoy?
    pub proxyless: bool,
    /// Does it take changes instead of the whole state, and so can ask for more?
    pub takes_changes: bool,
    /// Everything it says about itself in plain words.
    pub metadata: Labels,
    pub http10: bool,
    pub idle_timeout: Option<Span>,
    pub http_proxy_port: Option<u16>,
    pub inbound_exact_balance: bool,
    pub outbound_exact_balance: bool,
    pub unprivileged: bool,
    /// A server beside it has secrets for it, asked for as `sds://`.
    pub external_secrets: bool,
    /// Ports at which its bootstrap listens, for health checks and metrics.
    pub own_ports: Vec<u16>,
    /// For those who call it.
    pub server_files: CertificateFiles,
    /// For those it calls.
    pub client_files: CertificateFiles,
    /// Does it answer DNS queries of its application, and does it want addresses for services without one?
    pub dns_capture: bool,
    pub dns_auto_allocate: bool,
    /// Where it answers them.
    pub dns_proxy: (Name, u16),
    /// What Envoy was told to call its service.
    pub service_cluster: Name,
    /// What else it may be called: by an annotation for OpenTelemetry, by its owner, by its only container.
    pub otel_annotation: Name,
    pub workload_name: Name,
    pub container: Name,
    /// Its own settings, if it sent any.
    pub config: Option<ProxyConfig>,
    /// Which Secrets of its namespace it may read, by what it has proved.
    pub secrets: SecretAccess,
}

/// Which Secrets of its own namespace a proxy may read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum SecretAccess {
    #[default]
    None,
    /// Only whom to trust.
    Authorities,
    All,
}

impl Proxy {
    /// A proxy that says no more about itself than it must.
    pub fn new(kind: ProxyType, name: &str, namespace: &str, ips: Vec<IpAddr>) -> Self {
        Self {
            kind,
            name: name.into(),
            ips,
            namespace: namespace.into(),
            dns_domain: Name::empty(),
            labels: Labels::default(),
            static_labels: Labels::default(),
            pod_ports: BTreeMap::new(),
            locality: Locality::default(),
            cluster: Name::empty(),
            network: Name::empty(),
            network_view: Vec::new(),
            mesh_id: Name::empty(),
            node: Name::empty(),
            service_account: Name::empty(),
            interception: Interception::default(),
            version: Version::NEWEST,
            version_text: Name::empty(),
            proxyless: false,
            takes_changes: false,
            metadata: Labels::default(),
            http10: false,
            idle_timeout: None,
            http_proxy_port: None,
            inbound_exact_balance: false,
            outbound_exact_balance: false,
            unprivileged: false,
            external_secrets: false,
            own_ports: Vec::new(),
            server_files: CertificateFiles::default(),
            client_files: CertificateFiles::default(),
            dns_capture: false,
            dns_auto_allocate: false,
            dns_proxy: (Name::new("127.0.0.1"), 15053),
            service_cluster: Name::empty(),
            otel_annotation: Name::empty(),
            workload_name: Name::empty(),
            container: Name::empty(),
            config: None,
            secrets: SecretAccess::None,
        }
    }

    pub fn ip_mode(&self) -> IpMode {
        match (self.ips.iter().any(IpAddr::is_ipv4), self.ips.iter().any(IpAddr::is_ipv6)) {
            (true, true) => IpMode::Dual,
            (false, true) => IpMode::V6,
            _ => IpMode::V4,
        }
    }
}

impl fmt::Display for ProxyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn versions_are_read_and_compared() {
        let v = Version::parse;
        assert_eq!(v("1.28.0"), Version { major: 1, minor: 28, patch: 0 });
        assert_eq!(v("1.29-alpha.abc"), Version { major: 1, minor: 29, patch: u32::MAX });
        assert_eq!(v(""), Version::NEWEST);
        assert_eq!(v("latest"), Version::NEWEST);
        assert!(v("1.9.9") < v("1.28.0"));
    }
}
