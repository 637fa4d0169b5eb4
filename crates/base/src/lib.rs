//! Words that every other crate shares. No domain rules live here.
//!
//! * [`Name`], [`Labels`], [`Host`]: cheap, shared, comparable strings; [`Words`]: each of them kept once.
//! * [`SharedMap`]: an ordered map whose copies share what they have in common; groups and manifests are made of it.
//! * [`Cidr`]: a range of addresses.
//! * [`Hash64`]: content hashes that are equal in every process.
//! * [`Keyed`]: a shared value that much is looked up by.
//! * [`Issue`]: what is wrong with which object, as data.
//! * [`Clock`]: where time comes from, so that simulation can hold it.

mod cidr;
mod clock;
mod hash;
mod host;
mod issue;
mod keyed;
mod labels;
mod name;
mod shared_map;
mod text;
mod words;

/// What [`name!`] is made of.
#[doc(hidden)]
pub use arcstr::literal;
pub use cidr::Cidr;
pub use clock::{Clock, Micros, Millis};
pub use hash::{Hash64, Hasher64, combine_unordered};
pub use host::Host;
pub use issue::{Issue, ObjectRef, Severity};
pub use keyed::Keyed;
pub use labels::Labels;
pub use name::Name;
pub use shared_map::{MapChange, SharedMap};
pub use text::{parse_bool, parse_span};
pub use words::Words;

/// A hash map for places where its order is never observed. Its hash has no seed.
pub use rustc_hash::FxHashMap as FastMap;
/// A hash set for places where its order is never observed. Its hash has no seed.
pub use rustc_hash::FxHashSet as FastSet;
