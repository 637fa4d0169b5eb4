//! Services and rules from the API servers of Kubernetes clusters.
//!
//! ```text
//!   API server ──list, watch──► Follow, one per kind ──► Hub, one per cluster ──► Batch
//!                                 └ Known: what was told, so that a new list is told as the difference
//! ```
//!
//! Objects are read from JSON with `config`'s own readers, so that what is wrong with them is told as it is for files. A
//! cluster that does not answer keeps what it told; so does a kind that we may not see.

mod access;
mod client;
mod crds;
mod definitions;
mod follow;
mod ingress;
mod known;
mod mesh_maps;
mod objects;
mod pace;
mod remote;
mod resource;
mod selection;
mod sight;
mod source;
mod tally;
mod tasks;
mod troubles;
mod wire;

pub use access::{
    Access, AccessError, ClientCertificate, Credential, Source as KubeconfigOf, Surroundings, Trust,
};
pub use client::{Call, CallError, Client};
pub use definitions::definitions;
pub use follow::{Follow, Teller, Trouble, Update};
pub use ingress::{ClassLook, Ingress, IngressLook, IngressSource, ingress_classes, ingresses};
pub use known::{Change, Collapse, Look, Lost, Verdict, What};
pub use mesh_maps::MeshPlace;
pub use objects::is_for_another;
pub use pace::{Backoff, Pace};
pub use remote::{RemoteClients, RemoteClusters, RemoteOptions};
pub use resource::{Content, RULES, Resource};
pub use selection::Selection;
pub use source::{ClusterOptions, KubeSource, Role, RulePlaces, place_of};
pub use tally::{Became, Heard, Tally};
