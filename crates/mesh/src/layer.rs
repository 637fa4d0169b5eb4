use std::fmt;

use pilot_base::{Host, Name};
use pilot_model::{ConfigId, EgressHost, Service, Sidecar};

/// For whom something holds. What a proxy sees is one or two of these, the special over the general.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Layer {
    /// Every namespace that has no Sidecar of its own: what is public, and no rule of any client.
    Base,
    /// Over the base: what one namespace sees differently.
    Namespace(Name),
    /// Instead of the base: what a Sidecar lets the proxies of a namespace see.
    Sidecar { namespace: Name, id: ConfigId },
}

impl Layer {
    /// The namespace whose view this is.
    pub fn client(&self) -> Option<&Name> {
        match self {
            Self::Base => None,
            Self::Namespace(namespace) | Self::Sidecar { namespace, .. } => Some(namespace),
        }
    }

    /// The layers of a proxy in this scope, from the bottom up.
    pub fn stack(&self) -> Vec<Self> {
        match self {
            Self::Base => vec![Self::Base],
            Self::Namespace(_) => vec![Self::Base, self.clone()],
            Self::Sidecar { .. } => vec![self.clone()],
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => f.write_str("base"),
            Self::Namespace(namespace) => write!(f, "namespace {namespace}"),
            Self::Sidecar { namespace, id } => write!(f, "sidecar {id} for {namespace}"),
        }
    }
}

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

/// An entry with `.` replaced by the namespace it stands for.
pub(crate) fn in_namespace(entry: &EgressHost, namespace: &Name) -> EgressHost {
    if entry.namespace == THIS_NAMESPACE {
        EgressHost { namespace: namespace.clone(), ..entry.clone() }
    } else {
        entry.clone()
    }
}

/// All that the egress listeners of a Sidecar name, for proxies of a namespace. A Sidecar without egress lets everything
/// through.
pub fn imports(sidecar: &Sidecar, namespace: &Name) -> Vec<EgressHost> {
    if sidecar.egress.is_empty() {
        return vec![EgressHost {
            namespace: Name::new(EVERY_NAMESPACE),
            host: Host::new("*"),
            exclude: false,
        }];
    }
    sidecar
        .egress
        .iter()
        .flat_map(|listener| &listener.hosts)
        .map(|entry| in_namespace(entry, namespace))
        .collect()
}

/// Does a list of entries let a service through?
pub(crate) fn lets_through(entries: &[EgressHost], service: &Service) -> bool {
    let names = |entry: &EgressHost| {
        let namespace = entry.namespace == EVERY_NAMESPACE || entry.namespace == service.namespace;
        namespace && service.host.subset_of(&entry.host)
    };
    let excluded = entries.iter().any(|entry| entry.exclude && names(entry));
    !excluded && entries.iter().any(|entry| !entry.exclude && names(entry))
}
