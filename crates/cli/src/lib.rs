//! What the command lines of all binaries share.

mod argv;
mod log;

pub use argv::{Known, keep_known};
pub use log::{Log, LogArgs};
