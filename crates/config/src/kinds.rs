//! The kinds, one file each.

pub(crate) mod destination_rule;
pub(crate) mod service_entry;
pub(crate) mod sidecar;
pub(crate) mod virtual_service;
pub(crate) mod workload_entry;
