//! Objects that an API server asked about, and what became of them.

use pilot_webhook::{Outcome, Subject};
use prometheus::{IntCounterVec, Result};

use super::register::Register;

pub(crate) struct Validation {
    passed: IntCounterVec,
    failed: IntCounterVec,
    http_errors: IntCounterVec,
}

impl Validation {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        let subject = ["group", "version", "resource"];
        let and_why = ["group", "version", "resource", "reason"];
        Ok(Self {
            passed: register.counters_by_all(
                "galley_validation_passed",
                "Objects that are valid.",
                &subject,
            )?,
            failed: register.counters_by_all(
                "galley_validation_failed",
                "Objects that were refused.",
                &and_why,
            )?,
            http_errors: register.counters_by(
                "galley_validation_http_error",
                "Questions about objects that could not be answered.",
                "status",
            )?,
        })
    }

    pub(crate) fn count(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Passed(Subject { group, version, resource }) => {
                self.passed.with_label_values(&[group, version, resource]).inc();
            }
            Outcome::Failed(Subject { group, version, resource }, refusal) => {
                self.failed.with_label_values(&[group, version, resource, refusal.reason()]).inc();
            }
            Outcome::DryRun | Outcome::Unreadable => {}
        }
    }

    pub(crate) fn http_error(&self, status: u16) {
        self.http_errors.with_label_values(&[status.to_string().as_str()]).inc();
    }
}
