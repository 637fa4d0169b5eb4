//! Services that run in Mesos, through Marathon.
//!
//! ```text
//!   /v2/apps with their tasks once ──► Registration ──► Shelf ──► Batch
//!   /v2/events ──► the apps that something happened to ──► asked for again
//! ```

mod message;
mod source;

pub use source::{MarathonOptions, MarathonSource};
