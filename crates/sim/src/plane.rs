use std::sync::Arc;

use pilot_base::Name;
use pilot_xds::{Manifests, TypeUrl};

use crate::rng::Rng;

/// What one resource says about others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Clusters and routes that this resource names.
    pub refers_to: Vec<(TypeUrl, Name)>,
    /// Clusters that it names and that a client asks for when it needs them.
    pub asks_for: Vec<Name>,
    /// A cluster that is told its endpoints by the server.
    pub wants_endpoints: bool,
    /// A client refuses it.
    pub poisoned: bool,
}

/// How much of what there is a client is sent without having asked for it by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    Everything,
    /// Clusters that requests are routed to are there for who asks for them.
    OnDemand,
}

/// A control plane without its streams: something that changes and always has a complete state for one proxy.
pub trait Plane {
    /// Changes something.
    fn mutate(&mut self, rng: &mut Rng);
    fn manifests(&mut self) -> Arc<Manifests>;
    /// Reads a resource as a client would.
    fn facts(&self, type_url: TypeUrl, message: &[u8]) -> Facts;
}
