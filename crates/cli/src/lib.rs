//! What the command lines of all binaries share.

mod argv;
mod env;
mod http;
mod log;

pub use argv::{Lenience, without_unknown};
pub use env::Env;
pub use http::{HttpError, request};
pub use log::{LogArgs, LogError};
