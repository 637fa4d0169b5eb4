//! Rules from etcd: each key below a prefix is a document.
//!
//! ```text
//!   /v3/kv/range once ──► Documents ──► Batch
//!   /v3/watch from that revision on ──► the keys that changed ──► Documents ──► Batch
//! ```
//!
//! It speaks the JSON form of etcd's interface, which every etcd serves at its ordinary address.

mod message;
mod source;

pub use source::{EtcdOptions, EtcdSource};
