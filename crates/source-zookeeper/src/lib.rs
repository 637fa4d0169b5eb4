//! Services from ZooKeeper.
//!
//! ```text
//!   one recursive watch on the root ──► nodes that changed ──► Layout reads each ──► Registration ──► Shelf ──► Batch
//! ```
//!
//! The client speaks only what is needed here, and a little more for who writes nodes in tests. It never takes part in a
//! session that it lost: it begins a new one, and lists everything again.

mod client;
mod layout;
mod source;

pub use client::{Create, ZkError, ZooKeeper};
pub use layout::Layout;
pub use source::{Credentials, Login, ZooKeeperOptions, ZooKeeperSource};
