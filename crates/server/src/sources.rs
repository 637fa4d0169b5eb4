//! How fresh each source is.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Micros, Millis, Name};
use pilot_incr::Shard;
use pilot_model::{Config, ServiceEntry};
use pilot_source::{Batch, Event};

use crate::metrics::SourceGauges;

/// One source, as far as it was heard.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct SourceState {
    pub(crate) name: Name,
    /// Has it told everything it had?
    pub(crate) is_complete: bool,
    /// What it says about itself, if something is wrong.
    pub(crate) trouble: Option<String>,
    /// When it last told something.
    pub(crate) told_at: Millis,
    /// How many changes it told.
    pub(crate) changes: u64,
    /// How long the last of them took until it was committed.
    pub(crate) lag: Micros,
    /// Rules of it that count.
    pub(crate) rules: usize,
}

/// What somebody who looks at registries is shown.
pub(crate) struct RegistryView {
    pub(crate) sources: Vec<SourceState>,
    pub(crate) entries: Vec<Arc<Config<ServiceEntry>>>,
}

/// All sources.
#[derive(Default)]
pub(crate) struct SourceBook {
    by_shard: BTreeMap<Shard, SourceState>,
}

impl SourceBook {
    pub(crate) fn told(&mut self, shard: Shard, name: &Name, batch: &Batch, now: Millis) {
        let source = self
            .by_shard
            .entry(shard)
            .or_insert_with(|| SourceState { name: name.clone(), ..Default::default() });
        source.told_at = now;
        for event in &batch.events {
            match event {
                Event::InitDone => source.is_complete = true,
                Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => source.changes += 1,
                Event::Init | Event::Mesh(_) | Event::Networks(_) => {}
            }
        }
        // What a source says under its own name is about itself.
        for (_, issues) in batch.issues.iter().filter(|(place, _)| place == name) {
            source.trouble = issues.first().map(|issue| issue.message.clone());
        }
    }

    pub(crate) fn committed(&mut self, told: &[(Shard, Micros)], now: Micros, gauges: &SourceGauges) {
        for (shard, at) in told {
            let Some(source) = self.by_shard.get_mut(shard) else { continue };
            source.lag = now.saturating_sub(*at);
            gauges.note(source);
        }
    }

    pub(crate) fn all(&self, rules: impl Fn(Shard) -> usize) -> Vec<SourceState> {
        let each = self
            .by_shard
            .iter()
            .map(|(shard, source)| SourceState { rules: rules(*shard), ..source.clone() });
        each.collect()
    }
}
