//! When all services are looked at: Consul tells that something changed in the catalog, and not always what.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

/// Which services are still to be looked at, and when to begin again.
pub(crate) struct Sweep {
    /// Those that nobody has looked at in the round that is going on, the first one last.
    left: Vec<String>,
    /// What is looked for; if nothing is, the round goes to its end.
    sought: Vec<Span>,
    /// How many are being looked at.
    asked: usize,
    began: Instant,
    /// Does the round go to its end?
    is_whole: bool,
    /// How long the last whole round took, and when the last one was over.
    took: Duration,
    ended: Instant,
    wanted: Option<Wanted>,
    /// Indices of changes that are known, the last ones.
    known: BTreeSet<u64>,
}

/// What happened behind one index and up to another. One answer may tell of many changes, and says only when the last of
/// them was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    behind: u64,
    last: u64,
}

/// Why another round is wanted.
#[derive(PartialEq, Eq, Debug)]
enum Wanted {
    /// Whatever changed seems to be known; several changes at one index may look like that.
    ToBeSure,
    /// Nobody knows all that changed in these spans; since when.
    ToFind(Vec<Span>, Instant),
}

/// The other questions that wait may say within so long what it was.
const SETTLE: Duration = Duration::from_millis(50);
/// Looking for something may take half of the time, and making sure a tenth; both have an end.
const LONGEST_REST: Duration = Duration::from_secs(5);
const LONGEST_DOUBT: Duration = Duration::from_secs(60);
const SHORTEST_DOUBT: Duration = Duration::from_secs(1);
/// The questions that wait tell of the same change within milliseconds of each other.
const REMEMBERED: usize = 256;

impl Sweep {
    pub(crate) fn new(now: Instant) -> Self {
        let (left, sought, known) = Default::default();
        let took = Duration::ZERO;
        Self { left, sought, asked: 0, began: now, is_whole: true, took, ended: now, wanted: None, known }
    }

    /// Something changed behind an index, for the last time at another one. That a change which is known was the only one
    /// is not certain.
    pub(crate) fn changed(&mut self, behind: u64, last: u64, now: Instant) {
        let span = Span { behind, last };
        if span.is_explained(&self.known) {
            self.wanted.get_or_insert(Wanted::ToBeSure);
            return;
        }
        match &mut self.wanted {
            // All of it is looked for in one round.
            Some(Wanted::ToFind(spans, _)) => spans.push(span),
            wanted => *wanted = Some(Wanted::ToFind(vec![span], now)),
        }
    }

    /// A service is known to have changed at an index.
    pub(crate) fn found(&mut self, index: u64) {
        self.known.insert(index);
        if self.known.len() > REMEMBERED {
            self.known.pop_first();
        }
        if let Some(Wanted::ToFind(spans, _)) = &mut self.wanted {
            spans.retain(|span| !span.is_explained(&self.known));
            if spans.is_empty() {
                self.wanted = Some(Wanted::ToBeSure);
            }
        }
        if !self.sought.is_empty() {
            self.sought.retain(|span| !span.is_explained(&self.known));
            if self.sought.is_empty() {
                // The others need not be looked at now.
                (self.left, self.is_whole) = (Vec::new(), false);
                self.wanted.get_or_insert(Wanted::ToBeSure);
            }
        }
    }

    fn is_going_on(&self) -> bool {
        self.asked > 0 || !self.left.is_empty()
    }

    /// When the next round begins.
    pub(crate) fn due(&self) -> Option<Instant> {
        let wanted = self.wanted.as_ref().filter(|_| !self.is_going_on())?;
        Some(match wanted {
            Wanted::ToFind(_, since) => (*since + SETTLE).max(self.ended + self.took.min(LONGEST_REST)),
            Wanted::ToBeSure => self.ended + (self.took * 10).clamp(SHORTEST_DOUBT, LONGEST_DOUBT),
        })
    }

    /// Begins a round over services, of which the last is the first.
    pub(crate) fn begin(&mut self, services: Vec<String>, now: Instant) {
        self.sought = match self.wanted.take() {
            Some(Wanted::ToFind(spans, _)) => spans,
            _ => Vec::new(),
        };
        (self.left, self.began, self.is_whole) = (services, now, true);
    }

    /// The next service to be looked at.
    pub(crate) fn next(&mut self) -> Option<String> {
        let next = self.left.pop();
        self.asked += usize::from(next.is_some());
        next
    }

    /// One has been looked at.
    pub(crate) fn done(&mut self, now: Instant) {
        self.asked = self.asked.saturating_sub(1);
        if !self.is_going_on() {
            if self.is_whole {
                self.took = now - self.began;
            }
            self.sought.clear();
            self.ended = now;
        }
    }
}

impl Span {
    /// Is it known what changed at each index of it?
    fn is_explained(self, known: &BTreeSet<u64>) -> bool {
        let Some(count) = self.last.checked_sub(self.behind) else { return true };
        // Where none is skipped there are as many as there are numbers.
        known.range(self.behind..=self.last).filter(|index| **index > self.behind).count() as u64 == count
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Sweep;

    const SECOND: Duration = Duration::from_secs(1);

    /// A round over one service that takes so long.
    fn round(sweep: &mut Sweep, now: Instant, took: Duration) -> Instant {
        sweep.begin(vec!["a".to_owned()], now);
        assert!(sweep.next().is_some() && sweep.next().is_none() && sweep.due().is_none());
        sweep.done(now + took);
        now + took
    }

    #[test]
    fn what_nobody_knows_is_looked_for_at_once_but_not_all_the_time() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        assert_eq!(sweep.due(), None);
        sweep.changed(6, 7, now);
        assert_eq!(sweep.due(), Some(now + Duration::from_millis(50)));
        let ended = round(&mut sweep, now, 2 * SECOND);
        assert_eq!(sweep.due(), None);
        sweep.changed(7, 8, ended);
        assert_eq!(sweep.due(), Some(ended + 2 * SECOND));
        let ended = round(&mut sweep, ended, 60 * SECOND);
        sweep.changed(8, 9, ended);
        assert_eq!(sweep.due(), Some(ended + 5 * SECOND), "nobody waits for ever");
    }

    #[test]
    fn what_is_known_is_only_made_sure_of() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        let ended = round(&mut sweep, now, SECOND);
        sweep.changed(6, 7, ended);
        sweep.found(6);
        sweep.found(8);
        assert_eq!(sweep.due(), Some(ended + SECOND));
        sweep.found(7);
        assert_eq!(sweep.due(), Some(ended + 10 * SECOND));
        let ended = round(&mut sweep, ended, 60 * SECOND);
        sweep.changed(7, 8, ended);
        assert_eq!(sweep.due(), Some(ended + 60 * SECOND), "it was known before");
    }

    #[test]
    fn nobody_looks_on_for_what_has_been_found() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        let ended = round(&mut sweep, now, SECOND);
        sweep.changed(6, 7, ended);
        sweep.begin(vec!["a".to_owned(), "b".to_owned()], ended);
        assert_eq!(sweep.next().as_deref(), Some("b"));
        sweep.found(7);
        sweep.done(ended);
        assert_eq!(
            (sweep.next(), sweep.due()),
            (None, Some(ended + 10 * SECOND)),
            "the others are made sure of later"
        );
    }
    #[test]
    fn what_is_looked_for_is_not_forgotten_over_what_is_known() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        let ended = round(&mut sweep, now, SECOND);
        sweep.changed(6, 7, ended);
        sweep.found(8);
        sweep.changed(7, 8, ended);
        assert_eq!(sweep.due(), Some(ended + SECOND), "it is known what happened at 8, and not at 7");
        sweep.found(7);
        assert_eq!(sweep.due(), Some(ended + 10 * SECOND));
    }

    #[test]
    fn an_answer_that_tells_of_several_changes_has_all_services_looked_at() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        let ended = round(&mut sweep, now, SECOND);
        sweep.found(9);
        sweep.changed(6, 9, ended);
        assert_eq!(sweep.due(), Some(ended + SECOND), "7 and 8 may have been others");
        sweep.begin(vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], ended);
        assert!(sweep.next().is_some());
        sweep.found(8);
        assert!(sweep.next().is_some(), "7 may have been another");
        sweep.found(7);
        assert_eq!(sweep.next(), None, "all three are known");
        let mut sweep = Sweep::new(now);
        sweep.changed(6, 7, now);
        sweep.changed(7, 8, now);
        sweep.begin(vec!["a".to_owned(), "b".to_owned()], now);
        sweep.found(8);
        assert!(sweep.next().is_some(), "what happened at 7 is still looked for");
    }
}
