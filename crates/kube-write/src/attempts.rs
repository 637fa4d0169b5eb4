//! What is tried until it works, without wearing out who is asked.
//!
//! ```text
//!   written ──► forgotten          an object of its own fault ──► that one waits, longer and longer
//!   forbidden ──► that one waits for long, and so do all others for a while
//!   no answer, too busy, not ready ──► all wait
//! ```
//!
//! What is heard in between changes nothing about how long somebody waits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use pilot_source_kube::{Backoff, CallError};
use tokio::time::{Instant, sleep_until};

/// How the writing of many objects goes. The same trouble is told once.
pub(crate) struct Attempts<K> {
    /// What is not as it should be while it does not work.
    trouble: &'static str,
    told: String,
    /// Nothing is tried before.
    pause: Option<Instant>,
    backoff: Backoff,
    waiting: BTreeMap<K, Waiting>,
    /// What was written lately; nothing if nobody else writes the same.
    written: Option<BTreeMap<K, Written>>,
}

/// Who writes the same again and again has somebody against him, who wants something else.
struct Written {
    at: Instant,
    times: u32,
    until: Instant,
    backoff: Backoff,
}

struct Waiting {
    until: Instant,
    backoff: Backoff,
}

/// An API server that refuses what is asked of it is asked again now and then: somebody may have mended it.
const FORBIDDEN: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];
const REFUSED: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(300)];
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// So often something may have to be written for good reasons.
const FREE: u32 = 3;
const QUARREL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Nobody writes against us any more.
const QUIET: Duration = Duration::from_secs(300);

impl<K: Ord + Clone> Attempts<K> {
    pub(crate) fn new(trouble: &'static str) -> Self {
        let [first, longest] = PAUSE;
        Self {
            trouble,
            told: String::new(),
            pause: None,
            backoff: Backoff::between(first, longest),
            waiting: BTreeMap::new(),
            written: None,
        }
    }

    /// For what another server may want to be different, as while a root certificate is replaced: neither writes as fast as it
    /// can.
    pub(crate) fn among_others(trouble: &'static str) -> Self {
        Self { written: Some(BTreeMap::new()), ..Self::new(trouble) }
    }

    /// May this one be tried now?
    pub(crate) fn may(&self, key: &K) -> bool {
        let now = Instant::now();
        let rests = self.pause.is_some_and(|until| until > now);
        !rests && self.until(key).is_none_or(|until| until <= now)
    }

    /// Until when this one waits for itself.
    fn until(&self, key: &K) -> Option<Instant> {
        let waiting = self.waiting.get(key).map(|waiting| waiting.until);
        let written = self.written.as_ref().and_then(|written| written.get(key)).map(|written| written.until);
        waiting.into_iter().chain(written).max()
    }

    /// When something of what is left to do may be tried; never if nothing is. What is not left is forgotten.
    pub(crate) fn due(&mut self, left: &BTreeSet<K>) -> Option<Instant> {
        self.waiting.retain(|key, _| left.contains(key));
        let now = Instant::now();
        let one = |key: &K| self.until(key).map_or(now, |until| until.max(now));
        let first = left.iter().map(one).min()?;
        Some(self.pause.filter(|pause| *pause > now).unwrap_or(first))
    }

    /// The outcome of one attempt.
    pub(crate) fn note(&mut self, key: &K, outcome: &Result<(), CallError>) {
        let Err(error) = outcome else {
            self.worked(key);
            return;
        };
        if !is_left(outcome) {
            self.waiting.remove(key);
            return;
        }
        self.tell(error);
        match error.status() {
            Some(403) => {
                self.hold(key, FORBIDDEN);
                self.rest(None);
            }
            Some(429) => self.rest(error.retry_after()),
            Some(400..=499) => self.hold(key, REFUSED),
            _ => self.rest(error.retry_after()),
        }
    }

    fn worked(&mut self, key: &K) {
        self.waiting.remove(key);
        self.pause = None;
        self.backoff.reset();
        self.wrote(key);
        if self.waiting.is_empty() {
            self.told.clear();
        }
    }

    fn wrote(&mut self, key: &K) {
        let (now, [first, longest]) = (Instant::now(), QUARREL);
        let Some(all) = &mut self.written else { return };
        all.retain(|_, written| now < written.at + QUIET);
        let new = || Written { at: now, times: 0, until: now, backoff: Backoff::between(first, longest) };
        let written = all.entry(key.clone()).or_insert_with(new);
        (written.at, written.times) = (now, written.times.saturating_add(1));
        if written.times > FREE {
            written.until = now + written.backoff.wait(None);
        }
    }

    fn tell(&mut self, error: &CallError) {
        // Objects differ, and the trouble is the same.
        let text = error.status().map_or_else(|| error.to_string(), |status| status.to_string());
        if text != self.told {
            tracing::warn!("{}: {error}", self.trouble);
            self.told = text;
        }
    }

    fn hold(&mut self, key: &K, [first, longest]: [Duration; 2]) {
        let waiting = self
            .waiting
            .entry(key.clone())
            .or_insert_with(|| Waiting { until: Instant::now(), backoff: Backoff::between(first, longest) });
        waiting.until = Instant::now() + waiting.backoff.wait(None);
    }

    fn rest(&mut self, asked: Option<Duration>) {
        self.pause = Some(Instant::now() + self.backoff.wait(asked));
    }
}

/// Is it left to do? What was changed or is gone in between is told by a watch.
pub(crate) fn is_left(outcome: &Result<(), CallError>) -> bool {
    outcome.as_ref().is_err_and(|error| !matches!(error.status(), Some(404 | 409)))
}

/// Waits until then, or for ever.
pub(crate) async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// One thing that is tried until it works.
pub(crate) struct Patience {
    trouble: &'static str,
    backoff: Backoff,
    told: String,
}

impl Patience {
    pub(crate) fn new(trouble: &'static str) -> Self {
        Self { trouble, backoff: Backoff::new(), told: String::new() }
    }

    /// Says what is wrong, and waits before it is tried again.
    pub(crate) async fn wait(&mut self, error: impl Display) {
        let text = error.to_string();
        if text != self.told {
            tracing::warn!("{}: {text}", self.trouble);
            self.told = text;
        }
        tokio::time::sleep(self.backoff.wait(None)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use pilot_source_kube::CallError;
    use tokio::time::{Instant, advance};

    use super::Attempts;

    fn refused(status: u16) -> Result<(), CallError> {
        Err(CallError::Refused { status, reason: String::new(), message: "no".to_owned(), retry_after: None })
    }

    /// How many of so many objects are tried in one round, if all end the same.
    fn round(attempts: &mut Attempts<u32>, count: u32, outcome: &Result<(), CallError>) -> u32 {
        let mut tried = 0;
        for key in 0..count {
            if attempts.may(&key) {
                tried += 1;
                attempts.note(&key, outcome);
            }
        }
        tried
    }

    /// Where time goes on between one look at the clock and the next.
    #[test]
    fn who_was_never_tried_may_be_tried_now() {
        assert!((0..1_000).all(|key| Attempts::new("test").may(&key)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_forbidden_asks_once_and_then_now_and_then() {
        let mut attempts = Attempts::new("test");
        assert_eq!(round(&mut attempts, 100, &refused(403)), 1);
        let mut tried = 0;
        for _ in 0..600 {
            // Whatever is heard meanwhile.
            advance(Duration::from_millis(100)).await;
            tried += round(&mut attempts, 100, &refused(403));
        }
        assert!(tried <= 6, "{tried} in a minute");
        // Others are tried first, so that one that may be written is.
        advance(Duration::from_secs(60)).await;
        assert!(attempts.may(&99));
        attempts.note(&99, &Ok(()));
        assert!(attempts.may(&98), "something works again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_refused_for_itself_holds_up_no_other() {
        let mut attempts = Attempts::new("test");
        assert_eq!(round(&mut attempts, 5, &refused(422)), 5);
        assert_eq!(round(&mut attempts, 6, &Ok(())), 1, "the one that is new");
        advance(Duration::from_secs(2)).await;
        assert_eq!(round(&mut attempts, 6, &Ok(())), 6);
        assert_eq!(round(&mut attempts, 6, &refused(409)), 6, "a watch will tell");
        assert_eq!(round(&mut attempts, 6, &refused(409)), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_is_due_when_it_may_be_tried_and_nothing_else_is() {
        let mut attempts = Attempts::new("test");
        assert!(attempts.due(&BTreeSet::new()).is_none());
        assert_eq!(attempts.due(&BTreeSet::from([1])), Some(Instant::now()));
        attempts.note(&1, &refused(422));
        let due = attempts.due(&BTreeSet::from([1])).unwrap();
        assert!(due > Instant::now());
        attempts.note(&2, &refused(503));
        assert!(attempts.due(&BTreeSet::from([1, 2])).unwrap() > Instant::now());
        advance(Duration::from_secs(600)).await;
        assert_eq!(attempts.due(&BTreeSet::from([1, 2])), Some(Instant::now()));
        assert!(attempts.due(&BTreeSet::new()).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn two_who_want_different_things_write_less_and_less() {
        let mut attempts = Attempts::among_others("test");
        let (mut written, mut alone) = (0, Attempts::new("test"));
        for _ in 0..6_000 {
            // The other one writes at once.
            written += round(&mut attempts, 1, &Ok(()));
            assert_eq!(round(&mut alone, 1, &Ok(())), 1);
            advance(Duration::from_millis(100)).await;
        }
        assert!((10..25).contains(&written), "{written} times in ten minutes");
        assert!(attempts.may(&2), "others are not held up");
        advance(Duration::from_secs(301)).await;
        assert_eq!((round(&mut attempts, 1, &Ok(())), round(&mut attempts, 1, &Ok(()))), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_busy_or_away_is_left_alone_by_all() {
        for error in [refused(429), refused(500), Err(CallError::Unreachable("gone".to_owned()))] {
            let mut attempts = Attempts::new("test");
            assert_eq!(round(&mut attempts, 5, &error), 1);
            assert_eq!(round(&mut attempts, 5, &Ok(())), 0);
            advance(Duration::from_secs(2)).await;
            assert_eq!(round(&mut attempts, 5, &Ok(())), 5);
        }
    }
}
