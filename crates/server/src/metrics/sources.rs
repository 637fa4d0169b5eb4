//! What each source has told, and whether its backend can be asked.

use parking_lot::Mutex;
use pilot_base::Name;
use pilot_source::Contact;
use prometheus::{GaugeVec, IntGaugeVec, Result};

use super::register::Register;
use super::seconds;
use crate::sources::SourceState;

pub(crate) struct SourceGauges {
    up: IntGaugeVec,
    changes: IntGaugeVec,
    lag: GaugeVec,
    heard: GaugeVec,
    /// Where it is noted that each source was heard of.
    contacts: Mutex<Vec<(Name, Contact)>>,
}

impl SourceGauges {
    pub(super) fn new(register: &Register<'_>) -> Result<Self> {
        let by = &["source"];
        Ok(Self {
            up: register.gauges("pilot_source_up", "Has the source told everything, and can it be asked?", by)?,
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
            heard: register.fractions(
                "pilot_source_last_heard_seconds",
                "Time since the backend of the source was last heard of, whether or not there was anything new.",
                by,
            )?,
            contacts: Mutex::default(),
        })
    }

    /// A source is followed from now on.
    pub(crate) fn follow(&self, source: &SourceState) {
        self.note(source);
        self.contacts.lock().extend(source.contact.clone().map(|contact| (source.name.clone(), contact)));
    }

    /// Reads what is different at any time.
    pub(super) fn refresh(&self) {
        for (name, contact) in self.contacts.lock().iter() {
            if let Some(age) = contact.age() {
                self.heard.with_label_values(&[name.as_str()]).set(age.as_secs_f64());
            }
        }
    }

    pub(crate) fn note(&self, source: &SourceState) {
        let name = [source.name.as_str()];
        self.up.with_label_values(&name).set(i64::from(source.is_up()));
        self.changes.with_label_values(&name).set(i64::try_from(source.changes).unwrap_or(i64::MAX));
        self.lag.with_label_values(&name).set(seconds(source.lag));
    }
}
