use std::time::{Duration, Instant};

/// Real time since it was started: what is measured here is nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    #[allow(clippy::disallowed_methods, reason = "delays of real servers can only be told by a real clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds.
    pub fn now(self) -> u64 {
        u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
