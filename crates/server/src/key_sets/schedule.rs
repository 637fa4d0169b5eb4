//! When keys are asked for, and what proxies are told of them. Time comes in as data.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pilot_base::{Millis, Name};
use pilot_model::{KeySet, KeySource, Span};

use crate::engine::WantedKeys;

/// The first pause after a failure; each further one is twice as long.
const FIRST_RETRY: Millis = 1_000;
/// Issuers that come back are noticed within a minute.
const LONGEST_RETRY: Millis = 60_000;
/// Keys that could not be confirmed for a week are not believed any more.
const BELIEVED: Millis = 7 * 24 * 3_600 * 1_000;
/// So many issuers are asked at once: each takes a thread while it makes us wait.
const AT_ONCE: usize = 8;

pub(super) struct Schedule {
    refresh: Millis,
    entries: BTreeMap<KeySource, Entry>,
    /// Who is being asked. Each holds a thread until it has answered, also when nobody wants to know any more.
    asking: BTreeSet<KeySource>,
}

struct Entry {
    wait: Span,
    /// When to ask, unless that has been done already.
    due: Millis,
    failures: u32,
    /// The last good keys, and when they came.
    good: Option<(Name, Millis)>,
}

impl Schedule {
    pub(super) fn new(refresh: Duration) -> Self {
        // A pause of nothing would be a storm.
        let refresh = millis(refresh).max(FIRST_RETRY);
        Self { refresh, entries: BTreeMap::new(), asking: BTreeSet::new() }
    }

    /// Takes over what is wanted now, and tells what is not any more.
    pub(super) fn want(&mut self, wanted: &WantedKeys, now: Millis) -> Vec<KeySource> {
        let gone: Vec<KeySource> =
            self.entries.keys().filter(|source| !wanted.contains_key(*source)).cloned().collect();
        for source in &gone {
            self.entries.remove(source);
        }
        for (source, wait) in wanted {
            let entry = self.entries.entry(source.clone()).or_insert(Entry {
                wait: *wait,
                due: now,
                failures: 0,
                good: None,
            });
            entry.wait = *wait;
        }
        gone
    }

    /// Those to ask for now. They count as being asked for until they are answered.
    pub(super) fn due(&mut self, now: Millis) -> Vec<(KeySource, Span)> {
        let mut due = Vec::new();
        for (source, entry) in self.entries.iter().filter(|(_, entry)| entry.due <= now) {
            // A question that is on its way is answered for whoever wants to know then.
            if self.asking.len() < AT_ONCE && self.asking.insert(source.clone()) {
                due.push((source.clone(), entry.wait));
            }
        }
        due
    }

    /// When to look again. Nothing if an answer comes first anyway.
    pub(super) fn next(&self) -> Option<Millis> {
        if self.asking.len() >= AT_ONCE {
            return None;
        }
        let resting = self.entries.iter().filter(|(source, _)| !self.asking.contains(*source));
        resting.map(|(_, entry)| entry.due).min()
    }

    /// What proxies are told, unless nobody wants it any more.
    pub(super) fn answered(
        &mut self,
        source: &KeySource,
        answer: Result<Name, String>,
        now: Millis,
    ) -> Option<KeySet> {
        self.asking.remove(source);
        let entry = self.entries.get_mut(source)?;
        let (pause, failure) = match answer {
            Ok(keys) => {
                entry.failures = 0;
                // Another text would be another listener, and that drains connections.
                let keys = match entry.good.take() {
                    Some((known, _)) if pilot_config::same_keys(&known, &keys) => known,
                    _ => keys,
                };
                entry.good = Some((keys, now));
                (self.refresh, None)
            }
            Err(reason) => {
                let pause = FIRST_RETRY.saturating_mul(1 << entry.failures.min(16)).min(LONGEST_RETRY);
                entry.failures = entry.failures.saturating_add(1);
                entry.good.take_if(|(_, came)| now.saturating_sub(*came) >= BELIEVED);
                (pause, Some(Name::from(reason)))
            }
        };
        entry.due = now.saturating_add(pause);
        Some(KeySet { keys: entry.good.as_ref().map(|(keys, _)| keys.clone()), failure })
    }
}

fn millis(span: Duration) -> Millis {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{AT_ONCE, BELIEVED, Schedule};
    use crate::engine::WantedKeys;
    use pilot_base::Name;
    use pilot_model::{KeySet, KeySource};
    use std::time::Duration;

    fn source(name: &str) -> KeySource {
        KeySource::Uri(Name::new(name))
    }

    fn wanted(names: &[&str]) -> WantedKeys {
        names.iter().map(|name| (source(name), Duration::from_secs(5))).collect()
    }

    fn schedule() -> Schedule {
        Schedule::new(Duration::from_secs(1200))
    }

    fn asked(schedule: &mut Schedule, now: u64) -> usize {
        schedule.due(now).len()
    }

    #[test]
    fn keys_are_asked_for_at_once_and_then_now_and_again() {
        let mut schedule = schedule();
        assert!(schedule.want(&wanted(&["a"]), 0).is_empty());
        assert_eq!(asked(&mut schedule, 0), 1);
        assert_eq!(asked(&mut schedule, 0), 0, "one question at a time");
        let set = schedule.answered(&source("a"), Ok(Name::new("k")), 10);
        assert_eq!(set, Some(KeySet { keys: Some(Name::new("k")), failure: None }));
        assert_eq!(schedule.next(), Some(1_200_010));
        assert_eq!(asked(&mut schedule, 1_200_009), 0);
        assert_eq!(asked(&mut schedule, 1_200_010), 1);
    }

    #[test]
    fn failures_are_repeated_ever_more_slowly_and_keep_the_last_keys() {
        let mut schedule = schedule();
        schedule.want(&wanted(&["a"]), 0);
        asked(&mut schedule, 0);
        schedule.answered(&source("a"), Ok(Name::new("k")), 0);
        let mut now = 1_200_000;
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(asked(&mut schedule, now), 1);
            let set = schedule.answered(&source("a"), Err("no".to_owned()), now);
            assert_eq!(set, Some(KeySet { keys: Some(Name::new("k")), failure: Some(Name::new("no")) }));
            now += pause * 1_000;
            assert_eq!(schedule.next(), Some(now));
        }
        asked(&mut schedule, now);
        let set = schedule.answered(&source("a"), Err("no".to_owned()), BELIEVED).unwrap();
        assert_eq!(set.keys, None, "after a week they are too old");
    }

    #[test]
    fn keys_that_only_changed_places_are_no_news() {
        let first = Name::new(r#"{"keys":[{"kid":"a","k":"AQ"},{"kid":"b","k":"Ag"}]}"#);
        let shuffled = Name::new(r#"{"keys": [{"kid": "b", "k": "Ag"}, {"k": "AQ", "kid": "a"}]}"#);
        let other = Name::new(r#"{"keys":[{"kid":"a","k":"AQ"},{"kid":"b","k":"Aw"}]}"#);
        let mut schedule = schedule();
        schedule.want(&wanted(&["a"]), 0);
        let mut told = |keys: &Name, now| {
            assert_eq!(asked(&mut schedule, now), 1);
            schedule.answered(&source("a"), Ok(keys.clone()), now).unwrap().keys
        };
        assert_eq!(told(&first, 0), Some(first.clone()));
        assert_eq!(told(&shuffled, 1_200_000), Some(first));
        assert_eq!(told(&other, 2_400_000), Some(other.clone()));
        assert_eq!(schedule.next(), Some(3_600_000), "and yet they count as confirmed");
    }

    #[test]
    fn what_nobody_wants_is_forgotten_even_while_it_comes() {
        let mut schedule = schedule();
        schedule.want(&wanted(&["a", "b"]), 0);
        assert_eq!(asked(&mut schedule, 0), 2);
        assert_eq!(schedule.want(&wanted(&["b"]), 0), [source("a")]);
        assert_eq!(schedule.answered(&source("a"), Ok(Name::new("k")), 0), None);
    }

    #[test]
    fn whoever_is_asked_holds_a_thread_though_nobody_wants_to_know_any_more() {
        let names = |group: &str| (0..AT_ONCE).map(|i| format!("{group}{i}")).collect::<Vec<_>>();
        let want = |schedule: &mut Schedule, names: &[String]| {
            schedule.want(&wanted(&names.iter().map(String::as_str).collect::<Vec<_>>()), 0);
        };
        let (first, second) = (names("a"), names("b"));
        let mut schedule = schedule();
        want(&mut schedule, &first);
        assert_eq!(asked(&mut schedule, 0), AT_ONCE);
        want(&mut schedule, &second);
        assert_eq!(asked(&mut schedule, 0), 0, "no thread is free");
        assert_eq!(schedule.next(), None);
        assert_eq!(schedule.answered(&source("a0"), Ok(Name::new("k")), 0), None);
        assert_eq!(asked(&mut schedule, 0), 1);
        want(&mut schedule, &first);
        for name in &first[1..] {
            assert!(
                schedule.answered(&source(name), Ok(Name::new("k")), 0).is_some(),
                "wanted again meanwhile"
            );
        }
        assert_eq!(asked(&mut schedule, 0), 1, "only the one whose answer came too early");
    }

    #[test]
    fn only_some_are_asked_at_once() {
        let names: Vec<String> = (0..AT_ONCE + 3).map(|i| i.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut schedule = schedule();
        schedule.want(&wanted(&names), 0);
        assert_eq!(asked(&mut schedule, 0), AT_ONCE);
        assert_eq!(schedule.next(), None);
        schedule.answered(&source("0"), Err("no".to_owned()), 0);
        assert_eq!(asked(&mut schedule, 0), 1);
    }
}
