//! How fresh each source is.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::{Issue, Micros, Millis, Name, Severity};
use pilot_incr::Shard;
use pilot_model::{Config, ServiceEntry};
use pilot_source::{Batch, Contact, Event};

use crate::intake::Amount;
use crate::metrics::SourceGauges;

/// One source, as far as it was heard.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceState {
    pub(crate) name: Name,
    /// Has it told everything it had?
    pub(crate) is_complete: bool,
    /// Why it cannot be asked, if that is so.
    pub(crate) trouble: Option<String>,
    /// What people should know of it otherwise.
    pub(crate) warning: Option<String>,
    /// When it last told something.
    pub(crate) told_at: Option<Millis>,
    /// When its backend was last heard of, where that is noted.
    pub(crate) contact: Option<Contact>,
    /// How many changes it told.
    pub(crate) changes: u64,
    /// How long the last of them took until it was committed.
    pub(crate) lag: Micros,
    /// Rules of it that count.
    pub(crate) rules: usize,
    pub(crate) amount: Amount,
}

impl SourceState {
    /// Has it told everything, and can it be asked?
    pub(crate) fn is_up(&self) -> bool {
        self.is_complete && self.trouble.is_none()
    }
}

/// What somebody who looks at registries is shown.
pub(crate) struct RegistryView {
    pub(crate) sources: Vec<SourceState>,
    /// ServiceEntries, and who told them.
    pub(crate) entries: Vec<(Name, Arc<Config<ServiceEntry>>)>,
}

/// All sources.
#[derive(Default)]
pub(crate) struct SourceBook {
    by_shard: BTreeMap<Shard, SourceState>,
}

impl SourceBook {
    /// A source is followed from now on, whether or not it ever tells anything.
    pub(crate) fn follow(
        &mut self,
        shard: Shard,
        name: Name,
        contact: Option<Contact>,
        gauges: &SourceGauges,
    ) {
        let source = SourceState { name, contact, ..Default::default() };
        gauges.follow(&source);
        self.by_shard.insert(shard, source);
    }

    pub(crate) fn told(&mut self, shard: Shard, name: &Name, batch: &Batch, now: Millis) {
        let source = self
            .by_shard
            .entry(shard)
            .or_insert_with(|| SourceState { name: name.clone(), ..Default::default() });
        source.told_at = Some(now);
        for event in &batch.events {
            match event {
                Event::InitDone => source.is_complete = true,
                Event::InitApply(_) | Event::Apply(_) | Event::Delete(_) => source.changes += 1,
                Event::Init | Event::Mesh(_) | Event::Networks(_) => {}
            }
        }
        // What a source says under its own name is about itself.
        for (_, issues) in batch.issues.iter().filter(|(place, _)| place == name) {
            let first = |severity: Severity| {
                let of_this = |issue: &&Issue| issue.severity == severity;
                issues.iter().find(of_this).map(|issue| issue.message.clone())
            };
            (source.trouble, source.warning) = (first(Severity::Error), first(Severity::Warning));
        }
    }

    pub(crate) fn committed(&mut self, told: &[(Shard, Micros)], now: Micros, gauges: &SourceGauges) {
        for (shard, at) in told {
            let Some(source) = self.by_shard.get_mut(shard) else { continue };
            source.lag = now.saturating_sub(*at);
            gauges.note(source);
        }
    }

    /// All of them, with how many rules of each count and how much it has.
    pub(crate) fn all(&self, has: impl Fn(Shard) -> (usize, Amount)) -> Vec<SourceState> {
        let each = self.by_shard.iter().map(|(shard, source)| {
            let (rules, amount) = has(*shard);
            SourceState { rules, amount, ..source.clone() }
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests {
    use pilot_base::{Issue, Name, ObjectRef};
    use pilot_incr::Shard;
    use pilot_source::{Batch, Contact, Event};

    use super::SourceBook;
    use crate::Metrics;
    use crate::intake::Amount;

    fn batch(events: Vec<Event>, issues: Vec<Issue>) -> Batch {
        Batch { events, issues: vec![(Name::new("eureka"), issues)] }
    }

    #[test]
    fn a_warning_is_no_trouble_and_who_has_told_nothing_is_known() {
        let metrics = Metrics::new("1").unwrap();
        let (mut book, shard, name) = (SourceBook::default(), Shard(3), Name::new("eureka"));
        let contact = Contact::default();
        book.follow(shard, name.clone(), Some(contact.clone()), &metrics.sources);
        let text = || String::from_utf8(metrics.text(1)).unwrap();
        let state = |book: &SourceBook| book.all(|_| (0, Amount::default())).remove(0);
        assert!(state(&book).told_at.is_none() && !state(&book).is_up());
        assert!(text().contains("pilot_source_up{source=\"eureka\"} 0\n"), "{}", text());
        assert!(!text().contains("pilot_source_last_heard_seconds{"), "{}", text());
        contact.heard();
        let object = ObjectRef::new("Registry", Name::empty(), "eureka");
        let warning = Issue::warning(object.clone(), "", "it tells no changes");
        let error = Issue::error(object, "", "it cannot be asked");
        let mut tell = |batch: Batch| {
            book.told(shard, &name, &batch, 5);
            book.committed(&[(shard, 1)], 2, &metrics.sources);
            state(&book)
        };
        let now = tell(batch(vec![Event::Init, Event::InitDone], vec![warning.clone()]));
        assert_eq!((now.trouble, now.warning.as_deref()), (None, Some("it tells no changes")));
        assert!(text().contains("pilot_source_up{source=\"eureka\"} 1\n"), "{}", text());
        assert!(text().contains("pilot_source_last_heard_seconds{source=\"eureka\"} 0"), "{}", text());
        let now = tell(batch(Vec::new(), vec![warning, error]));
        assert_eq!(now.trouble.as_deref(), Some("it cannot be asked"));
        assert!(text().contains("pilot_source_up{source=\"eureka\"} 0\n"), "{}", text());
    }
}
