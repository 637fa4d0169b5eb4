//! One file for each subcommand.

pub(crate) mod discovery;
pub(crate) mod request;
pub(crate) mod version;
