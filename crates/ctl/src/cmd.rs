//! One file for each subcommand.

pub(crate) mod confirm;
pub(crate) mod install;
pub(crate) mod issues;
pub(crate) mod registry;
pub(crate) mod top;
pub(crate) mod validate;
pub(crate) mod version;
pub(crate) mod wait;
