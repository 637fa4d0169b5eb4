//! Services from Eureka.
//!
//! ```text
//!   /apps once, then /apps/delta every few seconds ──► Apps ──► one Registration per application ──► Shelf ──► Batch
//! ```
//!
//! Eureka tells nobody that something changed, so it is asked. A delta says what all applications come to together; if
//! that is not what we have, everything is asked for again.

mod apps;
mod message;
mod source;

pub use source::{EurekaOptions, EurekaSource};
