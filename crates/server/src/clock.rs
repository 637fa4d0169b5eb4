use std::time::{Instant, SystemTime};

use pilot_base::{Clock, Micros, Millis};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// For how many nanoseconds the calling thread has computed: what others do meanwhile does not count.
pub(crate) fn thread_nanos() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    let nanos = tv_sec.saturating_mul(1_000_000_000).saturating_add(tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}

/// What certificates and tokens are compared with.
#[allow(
    clippy::disallowed_methods,
    reason = "others count in seconds since 1970, which no clock of ours tells"
)]
pub fn unix_seconds() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The same, in billionths of seconds: who came after whom is told by it.
#[allow(clippy::disallowed_methods, reason = "it is written down for others to compare with")]
pub fn unix_nanos() -> i128 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i128::try_from(since.as_nanos()).unwrap_or(i128::MAX)
}

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

    fn micros(&self) -> Micros {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A clock that tests hold and let go on.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Held(std::sync::atomic::AtomicU64);

#[cfg(test)]
impl Held {
    pub(crate) fn go_on(&self, by: Micros) {
        self.0.fetch_add(by, std::sync::atomic::Ordering::Relaxed);
    }

    pub(crate) fn now_micros(&self) -> Micros {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

#[cfg(test)]
impl Clock for Held {
    fn now(&self) -> Millis {
        self.now_micros() / 1000
    }

    fn micros(&self) -> Micros {
        self.now_micros()
    }
}
