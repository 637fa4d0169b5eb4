//! Configurations of webhooks, and whether API servers take what is written there.

use prometheus::{IntCounter, IntCounterVec, Result};

use super::register::Register;

pub struct Webhooks {
    updates: IntCounter,
    update_errors: IntCounterVec,
    attempts: IntCounterVec,
    retries: IntCounterVec,
    failures: IntCounterVec,
}

/// istiod's word for an API server that does not take it.
const FAILURE: &str = "webhook_update_failure";

impl Webhooks {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        Ok(Self {
            updates: register.counter(
                "galley_validation_config_updates",
                "Configurations of validating webhooks that were written.",
            )?,
            update_errors: register.counters_by(
                "galley_validation_config_update_error",
                "Configurations of validating webhooks that could not be written.",
                "reason",
            )?,
            attempts: register.counters_by(
                "webhook_patch_attempts_total",
                "Configurations of injecting webhooks that were to be written.",
                "name",
            )?,
            retries: register.counters_by(
                "webhook_patch_retries_total",
                "Those that are written again later.",
                "name",
            )?,
            failures: register.counters_by_all(
                "webhook_patch_failures_total",
                "Those that could not be written.",
                &["name", "reason"],
            )?,
        })
    }

    /// A configuration of those that judge objects was written, or why not.
    pub fn judging(&self, written: std::result::Result<(), &str>) {
        match written {
            Ok(()) => self.updates.inc(),
            Err(reason) => self.update_errors.with_label_values(&[reason]).inc(),
        }
    }

    /// The same for those that have sidecars injected.
    pub fn injecting(&self, name: &str, written: std::result::Result<(), &str>) {
        self.attempts.with_label_values(&[name]).inc();
        if written.is_err() {
            self.retries.with_label_values(&[name]).inc();
            self.failures.with_label_values(&[name, FAILURE]).inc();
        }
    }
}
