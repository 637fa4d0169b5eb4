//! Workloads outside of the platform that come and go.

use prometheus::{IntCounter, Result};

use super::register::Register;

/// What happens to entries of workloads that register by themselves.
pub struct Registrations {
    pub registered: IntCounter,
    pub updated: IntCounter,
    pub left: IntCounter,
    pub deleted: IntCounter,
    pub failed: IntCounter,
}

impl Registrations {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        let counter =
            |what: &str, help: &str| register.counter(&format!("auto_registration_{what}_total"), help);
        Ok(Self {
            registered: counter("success", "Workloads that were registered.")?,
            updated: counter("updates", "Registered workloads that came back.")?,
            left: counter("unregister", "Registered workloads that left.")?,
            deleted: counter("deletes", "Registered workloads that did not come back in time.")?,
            failed: counter("errors", "Workloads that could not be registered.")?,
        })
    }
}
