//! Which objects are behind what proxies are sent: for people who wonder why something is refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use pilot_base::{Name, ObjectRef};
use pilot_incr::{Origin, Trace};
use pilot_model::{Kind, ProxyId};
use pilot_xds::{Encoded, TypeUrl};

use crate::Pipeline;

/// Objects that say who and where, and not what to do.
const BACKGROUND: [&str; 10] = [
    "Service",
    "EndpointSlice",
    "Endpoints",
    "Pod",
    "Node",
    "Namespace",
    "Proxy",
    "Options",
    "KeySet",
    "HostAddresses",
];

/// The objects behind a resource.
pub struct Behind {
    /// Of all that it was made of.
    all: BTreeSet<Origin>,
    /// So many rows were looked through to find them. It is a walk over tables: who asks for much does so bit by bit, and
    /// keeps what he learns.
    pub looked_at: usize,
}

impl Pipeline {
    /// A resource as a proxy is to have it now. As long as it is this very one, the same is behind it.
    pub fn sent(&self, proxy: ProxyId, type_url: TypeUrl, resource: &Name) -> Option<&Arc<Encoded>> {
        let audience = self.engine.get(&self.outputs.audiences, &proxy)?;
        let sent = self.engine.get(&self.outputs.manifests, audience)?;
        sent.by_type[type_url.index()].get(resource)
    }

    /// What is behind a resource that a proxy is sent.
    pub fn behind(&self, proxy: ProxyId, resource: &Name) -> Behind {
        let audience = self.audience_of(proxy);
        let trace = audience
            .map(|audience| self.engine.member_provenance(&self.outputs.manifests, &audience, resource));
        let Trace { origins: all, looked_at } = trace.unwrap_or_default();
        Behind { all, looked_at }
    }
}

impl Behind {
    /// Those that changed last. What everybody shares (services, endpoints, proxies) is not among them: what proxies refuse
    /// comes from rules.
    pub fn suspects(&self) -> Vec<ObjectRef> {
        let is_rule = |origin: &&Origin| !BACKGROUND.contains(&origin.object.kind.as_str());
        // What is written in Envoy's own words is checked least, so of those that came together it is suspected first.
        let rank = |origin: &Origin| (origin.changed, origin.object.kind == Kind::EnvoyFilter.name());
        let Some(last) = self.all.iter().filter(is_rule).map(rank).max() else { return Vec::new() };
        let last = self.all.iter().filter(is_rule).filter(|origin| rank(origin) == last);
        last.map(|origin| origin.object.clone()).collect()
    }

    pub fn includes(&self, object: &ObjectRef) -> bool {
        self.all.iter().any(|origin| origin.object == *object)
    }
}
