//! Services and rules that are kept in memory and written over HTTP, so that anything can register.
//!
//! ```text
//!   curl, a sidecar, a script ──HTTP (api)──► State: who is registered and until when ──► Shelf, Documents ──► Batch
//! ```
//!
//! `openapi.yaml` beside this crate describes the interface. Nothing survives the process: who registers says so again
//! when its heartbeat is answered with 404.

mod api;
mod rules;
mod source;
mod state;

pub use source::{MemoryOptions, MemorySource};
