//! Rules from stores of documents, such as a key-value store.
//!
//! ```text
//!   key and bytes ──config::read──► objects and issues of one document ──► Documents: which of them counts ──► Batch
//! ```
//!
//! A document may have several objects in YAML or JSON. One that cannot be read keeps what it last said.

#[cfg(feature = "contract")]
pub mod contract;
mod documents;
mod monitor;

pub use documents::{Documents, StoreOptions};
pub use monitor::{Monitor, Snapshots};
