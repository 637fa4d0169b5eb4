//! EnvoyFilters: what users change in the messages that were built for them.
//!
//! ```text
//!   EnvoyFilters of a proxy, in order ─► Patches by side and kind of resource
//!   bytes of a resource ─decode─► message ─patches─► other bytes, or none, or the same
//! ```
//! A resource that no patch matches keeps its bytes, so a proxy with patches shares all others with those without.

mod cluster;
mod fault;
mod list;
mod listener;
mod network;
mod route;
mod table;

pub use cluster::{added_clusters, patch_cluster};
pub use fault::{Fault, Faults};
pub use listener::{added_listeners, patch_listener};
pub use route::{RouteSide, patch_route_configuration};
pub use table::{TablePatches, added_extensions};

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use pilot_base::{Hash64, Hasher64};
use pilot_model::{ApplyTo, ConfigId, EnvoyPatch, PatchContext, PatchOperation, ProxyType};
use pilot_xds::Encoded;

/// One change, and whose it is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Patch {
    pub filter: ConfigId,
    pub spec: EnvoyPatch,
    hash: u64,
}

impl Patch {
    pub fn new(filter: ConfigId, spec: EnvoyPatch) -> Self {
        let mut hash = Hasher64::default();
        hash.write(format!("{filter} {spec:?}").as_bytes());
        Self { filter, spec, hash: number(hash.finish()) }
    }

    /// The message it brings.
    fn value<M: prost::Message + Default>(&self) -> M {
        // It was encoded from this very type when it was read.
        M::decode(&*self.spec.value).unwrap_or_default()
    }
}

fn number(hash: Hash64) -> u64 {
    hash.0
}

/// Changes in the order in which they are applied; never empty. Comparing them looks at their contents only where their
/// hashes are equal.
#[derive(Clone, Debug)]
pub struct Patches {
    list: Vec<Arc<Patch>>,
    hash: u64,
}

impl Patches {
    fn new(list: Vec<Arc<Patch>>) -> Option<Arc<Self>> {
        let mut hash = Hasher64::default();
        list.iter().for_each(|patch| {
            hash.write_u64(patch.hash);
        });
        let hash = number(hash.finish());
        (!list.is_empty()).then(|| Arc::new(Self { list, hash }))
    }

    fn iter(&self) -> impl Iterator<Item = &Patch> {
        self.list.iter().map(|patch| &**patch)
    }

    fn to(&self, apply_to: ApplyTo) -> impl Iterator<Item = &Patch> {
        self.iter().filter(move |patch| patch.spec.apply_to == apply_to)
    }
}

impl PartialEq for Patches {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.list == other.list
    }
}

impl Eq for Patches {}

impl Ord for Patches {
    fn cmp(&self, other: &Self) -> Ordering {
        self.hash.cmp(&other.hash).then_with(|| self.list.cmp(&other.list))
    }
}

impl PartialOrd for Patches {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Patches {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}

/// The changes for one side of a proxy, by what they change.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PatchSet {
    pub clusters: Option<Arc<Patches>>,
    pub listeners: Option<Arc<Patches>>,
    pub routes: Option<Arc<Patches>>,
}

/// All changes for a proxy.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ProxyPatches {
    /// What it does for its application, or what a gateway does.
    pub outbound: PatchSet,
    pub inbound: PatchSet,
    pub extensions: Option<Arc<Patches>>,
}

impl ProxyPatches {
    /// `patches` are those that match the proxy, in order.
    pub fn new(kind: ProxyType, patches: &[Arc<Patch>]) -> Self {
        let extensions = patches.iter().filter(|patch| {
            patch.spec.apply_to == ApplyTo::ExtensionConfig && patch.spec.operation == PatchOperation::Add
        });
        let extensions = Patches::new(extensions.cloned().collect());
        match kind {
            ProxyType::Sidecar => Self {
                outbound: side(patches, PatchContext::SidecarOutbound),
                inbound: side(patches, PatchContext::SidecarInbound),
                extensions,
            },
            ProxyType::Router => Self {
                outbound: side(patches, PatchContext::Gateway),
                inbound: PatchSet::default(),
                extensions,
            },
        }
    }
}

fn side(patches: &[Arc<Patch>], context: PatchContext) -> PatchSet {
    let counts = |patch: &&Arc<Patch>| match patch.spec.context {
        // What is added without saying where is not added twice.
        PatchContext::Any => {
            let adds_resource = patch.spec.operation == PatchOperation::Add
                && matches!(patch.spec.apply_to, ApplyTo::Cluster | ApplyTo::Listener);
            !(adds_resource && context == PatchContext::SidecarInbound)
        }
        wanted => wanted == context,
    };
    let of = |kinds: &[ApplyTo]| {
        let wanted = patches.iter().filter(counts).filter(|patch| kinds.contains(&patch.spec.apply_to));
        Patches::new(wanted.cloned().collect())
    };
    PatchSet {
        clusters: of(&[ApplyTo::Cluster]),
        listeners: of(&[
            ApplyTo::Listener,
            ApplyTo::ListenerFilter,
            ApplyTo::FilterChain,
            ApplyTo::NetworkFilter,
            ApplyTo::HttpFilter,
        ]),
        routes: of(&[ApplyTo::RouteConfiguration, ApplyTo::VirtualHost, ApplyTo::HttpRoute]),
    }
}

/// What became of a resource.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    Same,
    Changed(Arc<Encoded>),
    Removed,
}

#[cfg(test)]
mod tests;
