//! The HTTP client that adapters of registries share.
//!
//! ```text
//!   adapter ──path──► Client ──one of several servers, with TLS and a token──► Answer, or why there is none
//! ```
//!
//! Every answer has a limit in time and in size. A token that is refused is read again from its file. What a client says about itself or in errors never has a secret in it.

mod address;
mod client;
mod connector;
mod decode;
mod events;
mod secret;
mod tls;

pub use address::{AddressError, ServerAddress, encoded};
pub use client::{Answer, Client, ClientError, ClientOptions};
pub use connector::{GrpcConnector, Stream};
pub use decode::{Part, parts};
pub use events::{EventStream, LineStream, ServerEvent};
pub use secret::Secret;
pub use tls::{TlsError, TlsFiles};
