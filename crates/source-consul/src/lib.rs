//! Services from Consul, and rules from its key-value store.
//!
//! ```text
//!   /catalog/services        ┐
//!   /health/state/critical   │ blocking queries: which services may be different
//!   /health/state/warning    │        │
//!   /catalog/nodes           ┘        │      index of each service, without its instances,
//!                                     ▼      if nobody says which one it was ──┐
//!   /health/service/<name> for each of those ◄───────────────────────────────┘
//!                └──► Registration ──► Shelf ──► Batch
//! ```
//!
//! Four questions wait at Consul, whatever the number of services: Consul lets a client have two hundred connections. A
//! new service, one that is gone, other tags, a check that fails or recovers, and another node are told by name. An
//! instance that comes or goes while its checks pass, or has none, and another address, port or metadata are told without
//! one: the catalog has a new index, and the service that has it too is looked for by asking each for its index, with a
//! filter that leaves nothing else of the answer. The index of each change is that of one service, so nothing is looked
//! for if a service that was named has it. Then all are made sure of later, as two changes may have been told as one.

mod ask;
mod catalog;
mod kv;
mod message;
mod source;
mod sweep;

pub use kv::{ConsulKv, ConsulKvOptions};
pub use source::{ConsulOptions, ConsulSource};
