//! Services and rules that are kept in memory and written over HTTP, so that anything can register.
//!
//! ```text
//!   curl, a sidecar, a script ──HTTP (api)──► State: who is registered and until when ──► Shelf, Documents ──► Batch
//! ```
//!
//! `openapi.yaml` beside this crate describes the interface. What is to survive the process is kept in a file; without one,
//! who registers says so again when its heartbeat is answered with 404.

mod api;
mod keep;
mod rules;
mod source;
mod state;

pub use source::{MemoryOptions, MemorySource};
