//! Who may look into the server, and how much he may see.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use pilot_base::Name;
use pilot_ca::SpiffeId;
use pilot_model::{MeshConfig, Proxy};
use tokio::sync::watch;

use crate::authenticate::{Caller, Gate};

/// What operators say of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DebugOptions {
    /// `ENABLE_DEBUG_ON_HTTP`: are there pages over HTTP, or only over xDS?
    pub on_http: bool,
    /// `ENABLE_DEBUG_ENDPOINT_AUTH`: do namespaces see only what is theirs?
    pub auth: bool,
    /// `DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES`: who sees everything, beside the root namespace.
    pub namespaces: BTreeSet<Name>,
}

impl Default for DebugOptions {
    fn default() -> Self {
        Self { on_http: true, auth: true, namespaces: BTreeSet::new() }
    }
}

/// The door to the pages for debugging, over HTTP and over xDS.
pub struct DebugDoor {
    pub options: DebugOptions,
    pub gate: Arc<Gate>,
    pub mesh: watch::Receiver<Arc<MeshConfig>>,
}

/// How much somebody may see.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Viewer {
    Everything,
    /// What proxies of one namespace have.
    Namespace(Name),
}

/// Pages that show one proxy, which those of its namespace may see.
pub(crate) const OF_ONE_PROXY: [&str; 3] = ["config_dump", "edsz", "ndsz"];

impl Viewer {
    pub(crate) fn sees(&self, proxy: &Proxy) -> bool {
        match self {
            Self::Everything => true,
            Self::Namespace(namespace) => proxy.namespace == *namespace,
        }
    }

    /// May he ask for a page at all? Pages are named as they are below `/debug/`.
    pub(crate) fn may_open(&self, page: &str) -> bool {
        *self == Self::Everything || OF_ONE_PROXY.contains(&page)
    }
}

impl DebugDoor {
    /// Nothing if nobody knows who he is.
    pub(crate) async fn viewer(&self, caller: &Caller) -> Option<Viewer> {
        let identities = self.gate.ask(caller).await.ok()?;
        Some(self.of(&identities))
    }

    pub(crate) fn of(&self, identities: &[SpiffeId]) -> Viewer {
        let root = self.mesh.borrow().root_namespace.clone();
        let is_trusted = |id: &SpiffeId| {
            root.as_str() == id.namespace
                || self.options.namespaces.iter().any(|n| n.as_str() == id.namespace)
        };
        match identities.first() {
            Some(first) if self.options.auth && !identities.iter().any(is_trusted) => {
                Viewer::Namespace(Name::new(&first.namespace))
            }
            _ => Viewer::Everything,
        }
    }
}

/// Who is on the server's machine, as by `kubectl exec` and `kubectl port-forward`, sees everything.
pub(crate) fn is_local(peer: Option<SocketAddr>) -> bool {
    peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_who_is_on_this_machine_is_local() {
        for (peer, may) in [
            ("127.0.0.1:5", true),
            ("[::1]:5", true),
            ("[::ffff:127.0.0.1]:5", true),
            ("10.0.0.1:5", false),
            ("[2001:db8::1]:5", false),
        ] {
            assert_eq!(is_local(Some(peer.parse().unwrap())), may, "{peer}");
        }
        assert!(!is_local(None));
    }
}
