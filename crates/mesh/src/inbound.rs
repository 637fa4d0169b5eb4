use std::sync::Arc;

use pilot_model::{Protocol, Service};

/// A port of a service that a workload serves.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    pub service: Arc<Service>,
    /// The port by which clients call it.
    pub port: u16,
    pub protocol: Protocol,
    /// The port at which the workload listens.
    pub target_port: u16,
}

/// The order in which services claim a workload's port: older first, then by host.
pub fn order_targets(targets: &mut [Target]) {
    targets.sort_by(|a, b| {
        let key = |t: &Target| (t.service.created, t.service.host.clone(), t.port, t.target_port);
        key(a).cmp(&key(b))
    });
}
