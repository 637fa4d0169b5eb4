/// Milliseconds since some fixed start. Protocol code compares these and never asks what day it is.
pub type Millis = u64;

/// Where time comes from. The real one lives in the binaries; simulation has its own.
pub trait Clock: Send + Sync {
    fn now(&self) -> Millis;
}
