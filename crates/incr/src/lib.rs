//! The incremental engine. It knows no word of the mesh.
//!
//! ```text
//!   Txn ──► Input tables ──► map ──► group ──► map ──► …          one commit = one epoch
//!              │               │       │
//!              └── changed ────┴───────┴──► rows that read them are computed again; equal results go no further
//! ```
//!
//! The graph is declared once, in topological order, with four operators:
//! * [`Graph::map`] computes one row per key from what it reads through a [`Reader`];
//! * [`Graph::group`] gathers rows into one [`SharedMap`](pilot_base::SharedMap) per group key, fed only with what changed;
//! * [`Graph::tally`] is a group that only knows *that* somebody contributed a member, not who;
//! * [`Graph::product`] pairs the rows of a group with what is asked of the group.
//!
//! Every read is recorded, also the read of a row that does not exist, so a row is computed again exactly when something
//! it looked at has changed. There is no way to scan a table: cost that grows with the mesh cannot be written by accident.
//!
//! A row whose function panics keeps its last good value; the [`Fault`] names the inputs that led there.

mod blocks;
mod engine;
mod graph;
mod group;
mod input;
mod map;
mod node;
mod parallel;
mod product;
mod provenance;
mod reach;
mod reader;
mod rows;
mod table;
mod txn;

#[cfg(test)]
mod tests;

pub use engine::{Commit, Engine, NodeStats};
pub use graph::Graph;
pub use group::{Emit, Feeds};
pub use node::{Origin, Stopwatch};
pub use provenance::{Fault, Trace};
pub use reach::Reach;
pub use reader::Reader;
pub use table::{Input, Key, Table, Value};
pub use txn::{Shard, Txn};
