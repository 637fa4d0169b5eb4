/// Milliseconds since some fixed start. Protocol code compares these and never asks what day it is.
pub type Millis = u64;

/// Microseconds since the same start: for what is over too soon to be counted in milliseconds.
pub type Micros = u64;

/// Where time comes from. The real one lives in the binaries; simulation has its own.
pub trait Clock: Send + Sync {
    fn now(&self) -> Millis;

    /// The same moment, as finely as the clock knows it.
    fn micros(&self) -> Micros {
        self.now().saturating_mul(1000)
    }
}
