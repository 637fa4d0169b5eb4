use std::collections::BTreeMap;

use pilot_base::Labels;

/// Whether workloads take mutual TLS from their peers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerAuthentication {
    /// Without one, or with an empty one, it is for the whole namespace, or for the mesh.
    pub selector: Labels,
    /// Nothing leaves it to the wider policy.
    pub mode: Option<MtlsMode>,
    /// By the workload's own ports.
    pub ports: BTreeMap<u16, Option<MtlsMode>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum MtlsMode {
    Disable,
    #[default]
    Permissive,
    Strict,
}
