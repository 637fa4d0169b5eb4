use pilot_base::{Labels, Name};

use crate::Locality;

/// Where an endpoint is reached.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Address {
    Ip(std::net::IpAddr),
    /// A name that the proxy resolves.
    Host(Name),
    /// A Unix socket.
    Pipe(Name),
}

impl Address {
    pub fn parse(text: &str) -> Self {
        match (text.parse(), text.strip_prefix("unix://")) {
            (Ok(ip), _) => Self::Ip(ip),
            (_, Some(path)) => Self::Pipe(Name::new(path)),
            _ => Self::Host(Name::new(text)),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Health {
    /// Nobody has looked.
    #[default]
    Unknown,
    Healthy,
    Unhealthy,
    Draining,
    Terminating,
}

/// Does the endpoint's own proxy accept mutual TLS?
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum TlsSupport {
    #[default]
    None,
    Istio,
    /// A value of the `security.istio.io/tlsMode` label that only its user understands.
    Other(Name),
}

impl TlsSupport {
    pub fn parse(label: &str) -> Self {
        match label {
            "istio" => Self::Istio,
            "" | "disabled" => Self::None,
            other => Self::Other(Name::new(other)),
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Istio => Some("istio"),
            Self::Other(text) => Some(text),
        }
    }
}

/// One address and port behind a service.
#[derive(Clone, PartialEq, Debug)]
pub struct Endpoint {
    pub address: Address,
    /// More addresses of the same workload.
    pub more_addresses: Vec<Address>,
    pub port: u16,
    /// Which port of the service this is for.
    pub port_name: Name,
    /// Its number, where a ServiceEntry says so. Names that are looked up are told apart by it.
    pub entry_port: Option<u16>,
    pub labels: Labels,
    pub service_account: Name,
    pub locality: Locality,
    pub network: Name,
    pub cluster: Name,
    pub weight: u32,
    pub tls: TlsSupport,
    pub health: Health,
    pub workload: Name,
    pub namespace: Name,
    pub node: Name,
    /// The name of its pod below that of a headless service: `hostname.subdomain`.
    pub dns_name: Option<Name>,
}

impl Endpoint {
    /// A label of the workload. Where it runs counts as labels too, over what it was given by hand.
    pub fn label(&self, key: &str) -> Option<&Name> {
        let place = match key {
            "topology.kubernetes.io/region" => &self.locality.region,
            "topology.kubernetes.io/zone" => &self.locality.zone,
            "topology.istio.io/subzone" => &self.locality.subzone,
            "topology.istio.io/cluster" => &self.cluster,
            "kubernetes.io/hostname" => &self.node,
            "topology.istio.io/network" => {
                let given = self.labels.get(key).filter(|network| !network.is_empty());
                return given.or(Some(&self.network).filter(|network| !network.is_empty()));
            }
            _ => return self.labels.get(key),
        };
        if place.is_empty() { self.labels.get(key) } else { Some(place) }
    }

    pub fn is_selected_by(&self, selector: &Labels) -> bool {
        selector.iter().all(|(key, value)| self.label(key) == Some(value))
    }
}
