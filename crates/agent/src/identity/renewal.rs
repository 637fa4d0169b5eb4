//! When a certificate is asked for again. No clock and no chance: both come in.

use std::time::Duration;

use crate::backoff::{Backoff, Chance};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Envoy may be waiting for its first certificate.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Which part of its life a certificate is renewed before its end, and by how much that varies, so that not all come at once.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Grace {
    ratio: f64,
    jitter: f64,
}

impl Grace {
    pub(super) fn new(ratio: f64, jitter: f64) -> Self {
        let sane = |number: f64| if number.is_finite() { number.clamp(0.0, 1.0) } else { 0.0 };
        Self { ratio: sane(ratio), jitter: sane(jitter) }
    }

    /// `size` is how far it is from the middle, `side` on which side.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "lives of certificates are short"
    )]
    fn due(self, created: i64, expires: i64, (size, side): (Chance, Chance)) -> i64 {
        let sign = if side.ratio() < 0.5 { -1.0 } else { 1.0 };
        let ratio = (self.ratio + sign * self.jitter * size.ratio()).clamp(0.0, 1.0);
        let life = expires.saturating_sub(created).max(0);
        expires.saturating_sub((life as f64 * ratio) as i64)
    }
}

pub(super) struct Renewal {
    grace: Grace,
    /// In seconds since 1970.
    due: i64,
    backoff: Backoff,
}

impl Renewal {
    /// The first one is due at once.
    pub(super) fn new(grace: Grace, now: i64) -> Self {
        Self { grace, due: now, backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE) }
    }

    pub(super) fn issued(&mut self, (created, expires): (i64, i64), size: Chance, side: Chance) {
        self.backoff.succeeded();
        // An authority that issues what has ended already is not asked in a circle.
        let soonest = created.saturating_add(i64::try_from(FIRST_PAUSE.as_secs()).unwrap_or(1));
        self.due = self.grace.due(created, expires, (size, side)).max(soonest);
    }

    /// How long until the next try.
    pub(super) fn failed(&mut self, now: i64, chance: Chance) -> Duration {
        self.backoff.failed();
        // Whole seconds, so that the time is really over.
        let pause = Duration::from_secs(self.backoff.pause(chance).as_secs() + 1);
        self.due = now.saturating_add(i64::try_from(pause.as_secs()).unwrap_or(i64::MAX));
        pause
    }

    pub(super) fn force(&mut self, now: i64) {
        self.due = now;
    }

    pub(super) fn wait(&self, now: i64) -> Duration {
        Duration::from_secs(u64::try_from(self.due.saturating_sub(now)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::{Grace, Renewal};
    use crate::backoff::Chance;
    use std::time::Duration;

    const DAY: i64 = 24 * 60 * 60;

    fn due(grace: Grace, size: u32, side: u32) -> u64 {
        let mut renewal = Renewal::new(grace, 0);
        assert_eq!(renewal.wait(0), Duration::ZERO, "the first is due at once");
        renewal.issued((0, DAY), Chance::thousandths(size), Chance::thousandths(side));
        renewal.wait(0).as_secs()
    }

    #[test]
    fn certificates_are_renewed_in_the_middle_of_their_life_give_or_take() {
        let usual = Grace::new(0.5, 0.01);
        assert_eq!(due(usual, 0, 0), 43_200);
        assert_eq!((due(usual, 1_000, 1_000), due(usual, 1_000, 0)), (42_336, 44_064));
        assert_eq!((due(Grace::new(7.0, 0.0), 0, 0), due(Grace::new(-1.0, f64::NAN), 0, 0)), (1, 86_400));
    }

    #[test]
    fn time_that_passes_brings_the_next_one() {
        let mut renewal = Renewal::new(Grace::new(0.5, 0.0), 100);
        renewal.issued((100, 300), Chance::thousandths(0), Chance::thousandths(0));
        assert_eq!(renewal.wait(199), Duration::from_secs(1));
        assert_eq!(renewal.wait(200), Duration::ZERO);
        // The clock of the machine was set back.
        assert_eq!(renewal.wait(50), Duration::from_secs(150));
    }

    #[test]
    fn failures_are_spaced_out_and_forgotten() {
        let mut renewal = Renewal::new(Grace::new(0.5, 0.0), 0);
        let pauses: Vec<u64> =
            (0..8).map(|_| renewal.failed(1_000, Chance::thousandths(1_000)).as_secs()).collect();
        assert_eq!(pauses, [2, 3, 5, 9, 17, 31, 31, 31]);
        assert_eq!(renewal.wait(1_000).as_secs(), 31);
        renewal.issued((1_000, 1_200), Chance::thousandths(0), Chance::thousandths(0));
        assert_eq!(renewal.failed(1_100, Chance::thousandths(1_000)).as_secs(), 2);
        renewal.force(1_100);
        assert_eq!(renewal.wait(1_100), Duration::ZERO);
    }

    #[test]
    fn a_certificate_that_has_ended_is_not_asked_for_in_a_circle() {
        let mut renewal = Renewal::new(Grace::new(0.5, 0.0), 0);
        renewal.issued((1_000, 900), Chance::thousandths(0), Chance::thousandths(0));
        assert_eq!(renewal.wait(1_000), Duration::from_secs(1));
    }
}
