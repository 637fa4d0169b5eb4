//! Services that legacy names stand for.
//!
//! ```text
//!   _http._tcp.shop.example.com SRV ──► targets, ports, weights ──► addresses of each ──► Registration ──► Shelf
//! ```
//!
//! DNS tells nobody that something changed, so it is asked again when what it said has lived its time.

mod ask;
mod source;
mod wire;

pub use ask::DnsError;
pub use source::{DnsOptions, DnsSource};
