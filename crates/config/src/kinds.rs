//! The kinds, one file each.

pub(crate) mod authorization_policy;
mod cel;
pub(crate) mod destination_rule;
pub(crate) mod envoy_filter;
pub(crate) mod gateway;
pub(crate) mod peer_authentication;
pub(crate) mod proxy_config;
pub(crate) mod request_authentication;
pub(crate) mod service_entry;
pub(crate) mod sidecar;
pub(crate) mod telemetry;
pub(crate) mod traffic_extension;
pub(crate) mod virtual_service;
pub(crate) mod wasm_plugin;
pub(crate) mod workload_entry;
pub(crate) mod workload_group;
