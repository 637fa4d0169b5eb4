//! Plain Kubernetes objects, as far as a registry is made of them. Read from files here, and from an API server by the
//! Kubernetes source.

pub(crate) mod endpoints;
pub(crate) mod namespace;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod secret;
pub(crate) mod service;

use crate::check::Check;
use crate::de;
use crate::yaml::Node;

/// Reads the part of an object that we have a use for. Kubernetes has checked the rest.
fn read_part<T: serde::de::DeserializeOwned>(node: &Node<'_>, check: &mut Check<'_>) -> Option<T> {
    match de::read(node, "") {
        Ok(typed) => Some(typed.value),
        Err(error) => {
            check.reject(error.path, error.message);
            None
        }
    }
}

#[cfg(test)]
mod tests;
