//! Services from Consul, and rules from its key-value store.
//!
//! ```text
//!   /catalog/services  ┐ blocking queries: which services may be different
//!   /health/state/any  ┘        │
//!                               ▼
//!   /health/service/<name> for each of those ──► Registration ──► Shelf ──► Batch
//! ```
//!
//! Two questions wait at Consul, whatever the number of services: Consul lets a client have two hundred connections. What
//! they say names the services whose instances, tags or checks changed. A change of nothing but an instance's address or
//! metadata is not told by name, so after each change of the catalog all services are asked for as well; the larger the
//! catalog, the more seldom.

mod catalog;
mod kv;
mod message;
mod source;

pub use kv::{ConsulKv, ConsulKvOptions};
pub use source::{ConsulOptions, ConsulSource};
