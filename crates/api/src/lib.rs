//! Istio's messages, with the field numbers and names that users' files and other programs depend on.
//!
//! One definition in `proto/` gives both forms: [`prost::Message`] for the wire and serde for proto3 JSON. Nothing here
//! knows what a message means; `config` decides that.

mod duration;

pub use duration::{Duration, parse_duration};
pub use pbjson_types as well_known;

#[allow(clippy::all, clippy::pedantic, clippy::disallowed_types, unreachable_pub, reason = "generated")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/mod.rs"));
}

/// `istio.extensions.v1alpha1`: code that proxies run. Every served version has the same messages.
pub use generated::istio::extensions::v1alpha1 as extensions;
/// `istio.mesh.v1alpha1`: settings of the mesh and of its proxies.
pub use generated::istio::mesh::v1alpha1 as mesh;
/// `istio.networking.v1alpha3`: the traffic rules. Every served version has the same messages.
pub use generated::istio::networking::v1alpha3 as networking;
/// `istio.networking.v1beta1`: a proxy's settings as an object of its own.
pub use generated::istio::networking::v1beta1 as proxy_config;
/// `istio.security.v1beta1`: who may call whom, and how he shows who he is.
pub use generated::istio::security::v1beta1 as security;
/// `istio.telemetry.v1alpha1`: what is measured, logged and traced. Every served version has the same messages.
pub use generated::istio::telemetry::v1alpha1 as telemetry;
/// `istio.type.v1beta1`: selectors.
pub use generated::istio::r#type::v1beta1 as selector;
