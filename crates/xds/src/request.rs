use std::sync::Arc;

use pilot_base::{Hash64, Name};

use crate::{Encoded, NameSet, TypeUrl};

/// The two forms of the aggregated stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Every request lists all names, every response of a whole-state type lists all resources.
    StateOfTheWorld = 0,
    /// Requests and responses tell only what changes.
    Delta = 1,
}

/// What a client says about one type.
#[derive(Clone, Debug)]
pub struct Request {
    pub type_url: TypeUrl,
    /// The response this answers, or empty.
    pub nonce: String,
    /// Why that response was refused.
    pub error: Option<String>,
    pub ask: Ask,
}

#[derive(Clone, Debug)]
pub enum Ask {
    /// Everything the client wants from now on. A client that has a version of an earlier stream is returning.
    Names {
        names: Arc<NameSet>,
        returning: bool,
    },
    Changes {
        subscribe: Arc<NameSet>,
        unsubscribe: Vec<Name>,
        initial: Initial,
    },
}

/// What a client holds from an earlier stream.
#[derive(Clone, Debug)]
pub enum Initial {
    /// This, or nothing.
    Some(Vec<Held>),
    /// All that there is now of the type, in the versions of now: whoever took the request has compared it.
    Everything,
}

/// What a client says that it holds.
#[derive(Clone, Debug)]
pub struct Held {
    pub name: Name,
    /// Nothing, if it is not of our making.
    pub version: Option<Hash64>,
    /// What there is now with that name, if whoever said the name has looked already.
    pub served: Option<Arc<Encoded>>,
}

impl Ask {
    /// Does the client come with resources from an earlier stream?
    pub(crate) fn is_return(&self) -> bool {
        match self {
            Self::Names { returning, .. } => *returning,
            Self::Changes { initial: Initial::Some(held), .. } => !held.is_empty(),
            Self::Changes { initial: Initial::Everything, .. } => true,
        }
    }
}

/// The name that stands for all names.
pub(crate) const WILDCARD: &str = "*";
