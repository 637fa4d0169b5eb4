use std::time::Instant;

use pilot_base::{Clock, Millis};

/// Real time, counted from when the program started.
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the clock that everybody else is to ask")]
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
