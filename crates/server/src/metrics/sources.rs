//! What each source has told, and whether its backend can be asked.

use prometheus::{GaugeVec, IntGaugeVec, Result};

use super::register::Register;
use super::seconds;
use crate::sources::SourceState;

pub(crate) struct SourceGauges {
    up: IntGaugeVec,
    changes: IntGaugeVec,
    lag: GaugeVec,
}

impl SourceGauges {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        let by = &["source"];
        Ok(Self {
            up: register.gauges("pilot_source_up", "Can the backend of the source be asked?", by)?,
            changes: register.gauges(
                "pilot_source_changes",
                "Objects that the source told to be there, different or gone.",
                by,
            )?,
            lag: register.fractions(
                "pilot_source_lag_seconds",
                "Time until the last change of the source was committed.",
                by,
            )?,
        })
    }

    pub(crate) fn note(&self, source: &SourceState) {
        let name = [source.name.as_str()];
        self.up.with_label_values(&name).set(i64::from(source.trouble.is_none()));
        self.changes.with_label_values(&name).set(i64::try_from(source.changes).unwrap_or(i64::MAX));
        self.lag.with_label_values(&name).set(seconds(source.lag));
    }
}
