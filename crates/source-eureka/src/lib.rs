//! Services from Eureka.
//!
//! ```text
//!   /apps once, then /apps/delta every few seconds ──► Apps ──► one Registration per application ──► Shelf ──► Batch
//! ```
//!
//! Eureka tells nobody that something changed, so it is asked. A delta says what all applications come to together; if
//! that is not what we have, everything is asked for again. Eureka keeps pages that lack the last of many changes for up to
//! three minutes, so a second form of the same page is looked at too.

mod apps;
mod message;
mod source;

pub use source::{EurekaOptions, EurekaSource};
