//! Load for any ADS server: what it costs to start, to tell many proxies everything, and to tell them what changed.
//!
//! ```text
//!   shape ──► mesh ──► folder ◄─── phase ────────► measure ──► table, growth, plot
//!                        │ followed by  │ waits for marks
//!                        ▼              ▼
//!                      server ◄─────► fleet: proxies, each with a stream and a state
//!                      floor  ◄─────── recording of the first of them
//! ```
//!
//! Proxies do what Envoy does, but they walk what they are sent instead of decoding it, so that thousands of them cost
//! less than the server that is measured. Changes are recognised by marks that survive translation (`stamp`).

mod compare;
mod fleet;
mod floor;
mod folder;
mod growth;
mod grpc;
mod holding;
mod links;
mod load;
mod marks;
mod measure;
mod mesh;
mod names;
mod node;
mod phase;
mod plot;
mod proc;
mod recording;
mod request;
mod resource;
mod server;
mod shape;
mod soak;
mod stamp;
mod state;
mod stopwatch;
mod table;
mod wire;

pub use compare::{Lines, Programs, Who, compare};
pub use fleet::Fleet;
pub use floor::serve as serve_floor;
pub use folder::Folder;
pub use growth::{Curve, measure as measure_growth, render as render_growth};
pub use load::{Load, run as load};
pub use measure::Measure;
pub use mesh::Mesh;
pub use phase::run as run_phases;
pub use plot::render as render_plot;
pub use server::{Candidate, Server};
pub use shape::{Churn, Phase, Protocol, Shape};
pub use soak::{Plan, Verdict, differences, run as soak};
pub use table::render as render_table;
