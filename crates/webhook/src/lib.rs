//! Admission: an API server asks about an object before it keeps it.
//!
//! ```text
//!   AdmissionReview (JSON) ──► Question ──config's own reading──► Verdict ──► AdmissionReview (JSON)
//! ```
//!
//! The rules are those by which the server reads objects, so that nothing is let in that it would pass over later. Nothing
//! here listens: bytes in, bytes out.

mod review;
mod validate;

pub use review::{Answer, Outcome, Refusal, Subject, review};
