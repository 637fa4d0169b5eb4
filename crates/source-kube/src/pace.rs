//! How often an API server is called, and how long to wait after it refused.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_base::{Clock, Millis};

/// So many requests a second, and so many at once after a silence.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    pub per_second: f64,
    pub burst: f64,
}

impl Default for Pace {
    /// What istiod allows itself.
    fn default() -> Self {
        Self { per_second: 80.0, burst: 160.0 }
    }
}

impl Pace {
    /// For who can wait: the rest is for those who cannot, such as proxies that want to be let in.
    pub(crate) fn leisurely(self) -> Self {
        Self { per_second: self.per_second / 4.0, burst: (self.burst / 4.0).max(1.0) }
    }
}

/// Lets requests through at a pace.
pub(crate) struct Bucket {
    pace: Pace,
    clock: Arc<dyn Clock>,
    state: Mutex<Level>,
}

struct Level {
    tokens: f64,
    at: Millis,
}

impl Bucket {
    pub(crate) fn new(pace: Pace, clock: Arc<dyn Clock>) -> Self {
        let at = clock.now();
        Self { pace, clock, state: Mutex::new(Level { tokens: pace.burst.max(1.0), at }) }
    }

    pub(crate) async fn take(&self) {
        while let Some(wait) = self.wait() {
            tokio::time::sleep(wait).await;
        }
    }

    /// How long to wait; nothing if a request may be sent, which then counts.
    #[allow(clippy::cast_precision_loss, reason = "milliseconds between two requests are few")]
    pub(crate) fn wait(&self) -> Option<Duration> {
        let now = self.clock.now();
        let mut level = self.state.lock();
        let passed = now.saturating_sub(level.at) as f64 / 1000.0;
        level.at = now;
        level.tokens = (level.tokens + passed * self.pace.per_second).min(self.pace.burst.max(1.0));
        if level.tokens >= 1.0 || self.pace.per_second <= 0.0 {
            level.tokens -= 1.0;
            return None;
        }
        let missing = (1.0 - level.tokens) / self.pace.per_second;
        Some(Duration::from_secs_f64(missing.clamp(0.001, 1.0)))
    }
}

/// Longer and longer waits, so that a server that comes back is not overrun.
pub struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

impl Backoff {
    /// A server that restarts is back within seconds, and should not be missed for longer than it was away.
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    pub fn new() -> Self {
        Self::between(Self::FIRST, Self::LONGEST)
    }

    /// The first wait and the longest, but for the server's wishes and some chance.
    pub fn between(first: Duration, longest: Duration) -> Self {
        Self { first, next: first, longest }
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// The next wait: at least what the server asks for.
    pub fn wait(&mut self, asked: Option<Duration>) -> Duration {
        let wait = self.next;
        self.next = (self.next * 2).min(self.longest);
        // Those who wait for the same server do not come back together.
        jitter(wait).max(asked.map(jitter).unwrap_or_default())
    }
}

/// Up to half as long again.
pub(crate) fn jitter(span: Duration) -> Duration {
    span + span.mul_f64(chance() / 2.0)
}

/// A number from zero to one. Every `RandomState` has keys of its own.
#[allow(clippy::cast_precision_loss, reason = "a rough number is enough")]
fn chance() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use pilot_base::Clock;

    use super::{Backoff, Bucket, Pace};

    struct Held(AtomicU64);

    impl Clock for Held {
        fn now(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_burst_is_let_through_and_then_the_pace_holds() {
        let clock = Arc::new(Held(AtomicU64::new(0)));
        let bucket = Bucket::new(Pace { per_second: 10.0, burst: 3.0 }, clock.clone());
        assert!((0..3).all(|_| bucket.wait().is_none()));
        assert!(bucket.wait().is_some_and(|wait| wait > Duration::from_millis(90)));
        clock.0.store(100, Ordering::Relaxed);
        assert!(bucket.wait().is_none());
        assert!(bucket.wait().is_some());
        clock.0.store(60_000, Ordering::Relaxed);
        assert_eq!(
            (0..10).filter(|_| bucket.wait().is_none()).count(),
            3,
            "silence is not saved up for ever"
        );
    }

    #[test]
    fn waits_grow_and_what_the_server_asks_for_counts() {
        let mut backoff = Backoff::new();
        let waits: Vec<Duration> = (0..12).map(|_| backoff.wait(None)).collect();
        assert!(waits[0] < Duration::from_millis(151) && waits[11] >= Backoff::LONGEST, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= Backoff::LONGEST.mul_f64(1.5)));
        backoff.reset();
        assert!(backoff.wait(Some(Duration::from_secs(7))) >= Duration::from_secs(7));
    }
}
