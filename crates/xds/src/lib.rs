//! The xDS protocol without I/O.
//!
//! ```text
//!   Encoded   one resource, encoded once; its bytes serve delta and state-of-the-world alike
//!   Manifest  what exists for one proxy and one type: layers of shared maps
//!   Watch     what one client asked for, has, refused and is being sent, for one type
//!   Session   all watches of one stream, and the order between types
//!   Commons   what sessions have in common, worked out once
//! ```
//!
//! A session is fed with requests, with newer manifests and with the time; it answers with responses. It never looks at a
//! clock, never blocks and never queues: what a slow client is sent next is the difference between what it has and what
//! is newest then.

mod commons;
mod encoded;
mod manifest;
mod names;
mod owed;
mod parts;
pub mod quirks;
mod request;
mod response;
mod session;
mod type_url;
mod watch;
pub mod wire;

pub use commons::{Commons, Run, held_entry};
pub use encoded::{ChildMap, Children, Chunk, Encoded, EncodedList, Piece, Summary};
pub use manifest::{Layer, Manifest, Manifests, Unserved, Why};
pub use names::NameSet;
pub use parts::{Part, Parts};
pub use request::{Ask, Held, Initial, Protocol, Request};
pub use response::Response;
pub use session::{Event, Pacing, Room, Session};
pub use type_url::TypeUrl;
