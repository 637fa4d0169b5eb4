//! When keys are asked for, and what proxies are told of them. Time comes in as data.

use std::collections::BTreeMap;
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
/// So many are asked at once: each takes a thread, which costs little while it waits, of the 512 that tokio has for all
/// that blocks.
const AT_ONCE: usize = 32;
/// Who failed is likely to make us wait again, so half of the threads are kept for the others.
const FAILED_AT_ONCE: usize = AT_ONCE / 2;
/// Nobody holds a thread for longer, whatever a policy allows: twice of what rules wait by default.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Within this, all that is new is to be asked once. A start waits a little longer for the answers.
const FIRST_ROUND: Millis = 8_000;
/// Where many share the first round, each has at least this: an issuer that is well needs less.
const SHORTEST_ROUND: Duration = Duration::from_secs(1);

pub(super) struct Schedule {
    refresh: Millis,
    entries: BTreeMap<KeySource, Entry>,
    asking: Asking,
}

/// Who is being asked. Each holds a thread until it has answered, also when nobody wants to know any more.
#[derive(Default)]
struct Asking(BTreeMap<KeySource, Turn>);

/// In which order they are asked where there are more than threads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Turn {
    /// Never asked: no token of theirs is good until they have answered.
    New,
    /// They have answered last time, and may have other keys by now.
    Known,
    Failed,
}

/// How long an issuer may make us wait.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Patience {
    /// For each request, as the policy says.
    pub(super) request: Duration,
    /// For all requests that a question needs.
    pub(super) question: Duration,
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
        Self { refresh, entries: BTreeMap::new(), asking: Asking::default() }
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
    pub(super) fn due(&mut self, now: Millis) -> Vec<(KeySource, Patience)> {
        // A question that is on its way is answered for whoever wants to know then.
        let is_due = |source: &KeySource, entry: &Entry| entry.due <= now && !self.asking.has(source);
        let mut waiting: Vec<_> =
            self.entries.iter().filter(|(source, entry)| is_due(source, entry)).collect();
        waiting.sort_by_key(|(_, entry)| (entry.turn(), entry.due));
        let new = waiting.iter().filter(|(_, entry)| entry.turn() == Turn::New).count();
        let mut due = Vec::new();
        for (source, entry) in waiting {
            if self.asking.has_room_for(entry.turn()) {
                self.asking.0.insert(source.clone(), entry.turn());
                due.push((source.clone(), entry.patience(new, now)));
            }
        }
        due
    }

    /// When to look again. Nothing if an answer comes first anyway.
    pub(super) fn next(&self) -> Option<Millis> {
        let may_be_asked = |(source, entry): &(&KeySource, &Entry)| {
            !self.asking.has(source) && self.asking.has_room_for(entry.turn())
        };
        self.entries.iter().filter(may_be_asked).map(|(_, entry)| entry.due).min()
    }

    /// What proxies are told, unless nobody wants it any more.
    pub(super) fn answered(
        &mut self,
        source: &KeySource,
        answer: Result<Name, String>,
        now: Millis,
    ) -> Option<KeySet> {
        self.asking.0.remove(source);
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

impl Asking {
    fn has(&self, source: &KeySource) -> bool {
        self.0.contains_key(source)
    }

    fn has_room_for(&self, turn: Turn) -> bool {
        let failed = || self.0.values().filter(|turn| **turn == Turn::Failed).count();
        self.0.len() < AT_ONCE && (turn != Turn::Failed || failed() < FAILED_AT_ONCE)
    }
}

impl Entry {
    fn turn(&self) -> Turn {
        match (self.failures, &self.good) {
            (0, None) => Turn::New,
            (0, Some(_)) => Turn::Known,
            _ => Turn::Failed,
        }
    }

    /// New ones that cannot be asked all at once share the first round: who needs longer is asked again soon.
    fn patience(&self, new: usize, now: Millis) -> Patience {
        let rounds = u32::try_from(new.div_ceil(AT_ONCE)).unwrap_or(u32::MAX);
        let question = if self.turn() == Turn::New && rounds > 1 {
            let left = Duration::from_millis(self.due.saturating_add(FIRST_ROUND).saturating_sub(now));
            (left / rounds).max(SHORTEST_ROUND)
        } else {
            LONGEST_WAIT
        };
        Patience { request: self.wait.min(question), question }
    }
}

fn millis(span: Duration) -> Millis {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
