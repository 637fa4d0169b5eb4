//! Files and objects become the model here: one file per kind, with its defaults and its rules.
//!
//! ```text
//!   text ──yaml──► tree with lines ──de──► Istio's message ──kinds/…──► model, and issues
//! ```
//!
//! Nothing fails as a whole. What cannot be read is an [`Issue`](pilot_base::Issue) with kind, name, field and line; what
//! can be read goes on.

mod check;
mod de;
mod kinds;
mod kube;
mod mesh;
mod networks;
mod object;
mod openid;
mod tree;
mod value;
mod yaml;

pub use check::jwks::{same_keys, usable_keys};
pub use mesh::{read_mesh_config, read_mesh_layers, read_proxy_config};
pub use networks::read_mesh_networks;
use object::yaml_issue;
pub use object::{Reading, read, rule_kind};
pub use openid::{discovery_uri, told_jwks_uri};
pub use tree::{Document, Tree, read_object};
pub use value::read_value;

use pilot_base::Name;

/// What reading depends on beside the text.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The suffix of Kubernetes host names.
    pub domain: Name,
    /// The cluster that objects without one belong to.
    pub cluster: Name,
    /// Are Kubernetes' own objects (services, endpoints, pods) read too? Istiod passes over them in files.
    pub platform: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { domain: Name::new("cluster.local"), cluster: Name::new("Kubernetes"), platform: true }
    }
}
