//! From what sources say to what proxies are sent: the tables, and the one loop that changes them.

mod behind;
mod graph;
mod pipeline;
mod propagation;

pub use behind::Behind;
pub use graph::{Audience, Census, Inputs, Sent};
pub use pipeline::{Changes, Pipeline};
pub use propagation::Concerned;
