//! Identities: who a workload is, how it proves that, and the authority that certifies it.
//!
//! ```text
//!   files ──► Material ──► Authority ──sign──► certificate whose name is the caller's
//!                                                  ▲
//!   token ──► TokenRules::check ──► SpiffeId ──────┘
//! ```
//!
//! Nothing here listens or looks at a clock: what time it is comes in as seconds since 1970.

mod authority;
mod files;
mod issue;
mod jwk;
mod key;
mod material;
pub mod messages;
mod request;
mod spiffe;
mod token;

pub use authority::{Authority, CaError, Limits, Order, ServerCertificate, client_verifier};
pub use files::{FilesError, Plugged, keep_self_signed, plugged_in};
pub use jwk::{KeyError, KeySet};
pub use material::{Material, MaterialError, read_certificates, read_key};
pub use request::{Curve, SigningRequest, check_pair, expiry, readable_roots};
pub use spiffe::{SpiffeId, identities};
pub use token::{TokenError, TokenRules};

/// Seconds since 1970.
pub type UnixSeconds = i64;
