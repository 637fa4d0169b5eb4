use pilot_base::Name;

use crate::TypeUrl;

/// The two forms of the aggregated stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Every request lists all names, every response of a whole-state type lists all resources.
    StateOfTheWorld,
    /// Requests and responses tell only what changes.
    Delta,
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
    Names { names: Vec<Name>, returning: bool },
    Changes {
        subscribe: Vec<Name>,
        unsubscribe: Vec<Name>,
        /// What the client holds from an earlier stream, with versions.
        initial: Vec<(Name, String)>,
    },
}

impl Ask {
    /// Does the client come with resources from an earlier stream?
    pub(crate) fn is_return(&self) -> bool {
        match self {
            Self::Names { returning, .. } => *returning,
            Self::Changes { initial, .. } => !initial.is_empty(),
        }
    }
}

/// The name that stands for all names.
pub(crate) const WILDCARD: &str = "*";
