//! Rules from a page of any web server.
//!
//! ```text
//!   GET, with the tag of the last answer, every few seconds ──► Monitor ──► Documents ──► Batch
//! ```
//!
//! The whole page is one document. A page that is as before is not sent again by servers that know tags, and tells nothing
//! in any case.

mod source;

pub use source::{Page, UrlError, UrlOptions, open};
