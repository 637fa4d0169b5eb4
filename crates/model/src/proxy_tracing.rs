use std::collections::BTreeMap;

use pilot_base::Name;

use crate::Number;

/// What a proxy's own settings say about traces.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ProxyTracing {
    /// In percent; nothing if it was not said.
    pub sampling: Option<Number>,
    pub max_path_tag_length: u32,
    pub istio_tags: Option<bool>,
    pub custom_tags: BTreeMap<Name, TraceTag>,
}

/// Where the value of a tag comes from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TraceTag {
    Literal(Name),
    Environment {
        name: Name,
        default: Name,
    },
    Header {
        name: Name,
        default: Name,
    },
    /// A text with Envoy's commands in it.
    Formatter(Name),
}
