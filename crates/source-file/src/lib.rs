//! Services and rules from a folder of YAML files.
//!
//! ```text
//!   folder ──watch──► what may have changed ──walk──► what did change ──read, in parallel──► contents ──► Batch
//! ```
//!
//! Only files whose stamp changed are read again. What one save changed arrives in one batch. A file that cannot be read
//! keeps what it last said.

mod contents;
mod mesh_file;
mod source;
mod walk;
mod watch;

pub use mesh_file::MeshFile;
pub use source::{FileSource, OpenError};
