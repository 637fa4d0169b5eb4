//! Those who are asked whether a request may pass.

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::listener::v3 as listener;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use pilot_model::MeshConfig;

/// Providers of the mesh configuration, and which hosts there are.
pub(crate) struct Providers<'a> {
    pub(crate) mesh: &'a MeshConfig,
    /// Is there exactly one service with a host, or one in the namespace that is named?
    pub(crate) is_known: &'a dyn Fn(Option<&Name>, &Host) -> bool,
}

/// Filters that ask.
pub(crate) struct Asked {
    pub(crate) http: HttpFilter,
    /// Only those who are asked over gRPC can be asked about connections.
    pub(crate) network: Option<listener::Filter>,
}

impl Providers<'_> {
    /// Nothing, if there is no such provider or if its service is not known.
    pub(crate) fn find(&self, _name: &Name) -> Option<Asked> {
        let _ = (self.mesh, self.is_known);
        None
    }
}
