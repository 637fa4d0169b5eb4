//! Plain Kubernetes objects, as far as a registry is made of them. Read from files here, and from an API server by the
//! Kubernetes source.

pub(crate) mod endpoints;
pub(crate) mod namespace;
pub(crate) mod node;
pub(crate) mod pod;
pub(crate) mod service;
