use pilot_base::Millis;
use tokio::time::Instant;

/// Real time, counted from when the command began.
pub(crate) struct Clock(Instant);

impl Default for Clock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl pilot_base::Clock for Clock {
    fn now(&self) -> Millis {
        Millis::try_from(self.0.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }
}
