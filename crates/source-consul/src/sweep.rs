//! When all services are looked at: Consul tells that something changed in the catalog, and not always what.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

/// Which services are still to be looked at, and when to begin again.
pub(crate) struct Sweep {
    /// Those that nobody has looked at in the round that is going on, the first one last.
    left: Vec<String>,
    /// What is looked for.
    sought: Option<u64>,
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

/// Why another round is wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Wanted {
    /// Whatever changed seems to be known; several changes at once may look like that.
    ToBeSure,
    /// Nobody knows what changed at this index; since when.
    ToFind(u64, Instant),
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
        let (left, took, known) = (Vec::new(), Duration::ZERO, BTreeSet::new());
        Self {
            left,
            sought: None,
            asked: 0,
            began: now,
            is_whole: true,
            took,
            ended: now,
            wanted: None,
            known,
        }
    }

    /// Something changed at an index. That one which is known was the only one is not certain.
    pub(crate) fn changed(&mut self, index: u64, now: Instant) {
        let is_known = self.known.contains(&index);
        self.wanted = Some(if is_known { Wanted::ToBeSure } else { Wanted::ToFind(index, now) });
    }

    /// A service is known to have changed at an index.
    pub(crate) fn found(&mut self, index: u64) {
        self.known.insert(index);
        if self.known.len() > REMEMBERED {
            self.known.pop_first();
        }
        if matches!(self.wanted, Some(Wanted::ToFind(sought, _)) if index == sought) {
            self.wanted = Some(Wanted::ToBeSure);
        }
        // The others need not be looked at now.
        if self.sought == Some(index) {
            (self.sought, self.left, self.is_whole) = (None, Vec::new(), false);
            self.wanted = self.wanted.or(Some(Wanted::ToBeSure));
        }
    }

    fn is_going_on(&self) -> bool {
        self.asked > 0 || !self.left.is_empty()
    }

    /// When the next round begins.
    pub(crate) fn due(&self) -> Option<Instant> {
        let wanted = self.wanted.filter(|_| !self.is_going_on())?;
        Some(match wanted {
            Wanted::ToFind(_, since) => (since + SETTLE).max(self.ended + self.took.min(LONGEST_REST)),
            Wanted::ToBeSure => self.ended + (self.took * 10).clamp(SHORTEST_DOUBT, LONGEST_DOUBT),
        })
    }

    /// Begins a round over services, of which the last is the first.
    pub(crate) fn begin(&mut self, services: Vec<String>, now: Instant) {
        self.sought = match self.wanted.take() {
            Some(Wanted::ToFind(index, _)) => Some(index),
            _ => None,
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
            (self.sought, self.ended) = (None, now);
        }
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
        sweep.changed(7, now);
        assert_eq!(sweep.due(), Some(now + Duration::from_millis(50)));
        let ended = round(&mut sweep, now, 2 * SECOND);
        assert_eq!(sweep.due(), None);
        sweep.changed(8, ended);
        assert_eq!(sweep.due(), Some(ended + 2 * SECOND));
        let ended = round(&mut sweep, ended, 60 * SECOND);
        sweep.changed(9, ended);
        assert_eq!(sweep.due(), Some(ended + 5 * SECOND), "nobody waits for ever");
    }

    #[test]
    fn what_is_known_is_only_made_sure_of() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        let ended = round(&mut sweep, now, SECOND);
        sweep.changed(7, ended);
        sweep.found(6);
        sweep.found(8);
        assert_eq!(sweep.due(), Some(ended + SECOND));
        sweep.found(7);
        assert_eq!(sweep.due(), Some(ended + 10 * SECOND));
        let ended = round(&mut sweep, ended, 60 * SECOND);
        sweep.changed(8, ended);
        assert_eq!(sweep.due(), Some(ended + 60 * SECOND), "it was known before");
    }

    #[test]
    fn nobody_looks_on_for_what_has_been_found() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        let ended = round(&mut sweep, now, SECOND);
        sweep.changed(7, ended);
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
}
