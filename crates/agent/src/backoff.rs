use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

/// Pauses between tries that double, up to a longest one. Chance comes in as a number, so that tests have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

/// Thousandths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chance(u32);

impl Chance {
    pub(crate) const ALL: u32 = 1_000;

    pub(crate) fn draw() -> Self {
        let drawn = RandomState::new().build_hasher().finish() % u64::from(Self::ALL + 1);
        Self(u32::try_from(drawn).unwrap_or(Self::ALL))
    }

    /// From 0 to 1.
    pub(crate) fn ratio(self) -> f64 {
        f64::from(self.0) / f64::from(Self::ALL)
    }

    #[cfg(test)]
    pub(crate) fn thousandths(number: u32) -> Self {
        Self(number)
    }
}

impl Backoff {
    pub(crate) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Nothing while all went well, and then between half of the pause and all of it: who failed together comes back one
    /// after another.
    pub(crate) fn pause(&self, chance: Chance) -> Duration {
        let Some(doublings) = self.failures.checked_sub(1) else { return Duration::ZERO };
        let whole = self.first.saturating_mul(1 << doublings.min(16)).min(self.longest);
        whole / 2 + whole.mul_f64(chance.ratio() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Backoff, Chance};
    use std::time::Duration;

    #[test]
    fn pauses_grow_and_chance_spreads_them() {
        let millis = Duration::from_millis;
        let mut backoff = Backoff::new(millis(100), millis(1_000));
        let pauses = |backoff: &Backoff| [0, 1_000].map(|chance| backoff.pause(Chance(chance)));
        assert_eq!(pauses(&backoff), [Duration::ZERO; 2]);
        backoff.failed();
        assert_eq!(pauses(&backoff), [millis(50), millis(100)]);
        backoff.failed();
        assert_eq!(pauses(&backoff), [millis(100), millis(200)]);
        (0..100).for_each(|_| backoff.failed());
        assert_eq!(pauses(&backoff), [millis(500), millis(1_000)]);
        backoff.succeeded();
        assert_eq!(pauses(&backoff), [Duration::ZERO; 2]);
    }

    #[test]
    fn chance_is_a_part_of_one() {
        for _ in 0..100 {
            assert!((0.0..=1.0).contains(&Chance::draw().ratio()));
        }
    }
}
