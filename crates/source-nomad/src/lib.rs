//! Nomad's native services.
//!
//! ```text
//!   /v1/services and /v1/service/<name> once ──► Registration ──► Shelf ──► Batch
//!   /v1/event/stream?topic=Service ──► the services that changed ──► asked for again
//! ```

mod message;
mod source;

pub use source::{NomadOptions, NomadSource};
