use std::fmt;
use std::sync::Arc;

use pilot_base::Name;
use pilot_model::ConfigId;

/// For whom something holds. What a proxy sees is one or two of these, the special over the general. It stands in the keys of
/// most tables, so it is small.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Layer {
    /// Every namespace that has no Sidecar of its own: what is public, and no rule of any client.
    Base,
    /// Over the base: what one namespace sees differently.
    Namespace(Name),
    /// Instead of the base: what some proxies of a namespace see.
    Sidecar(Arc<SidecarScope>),
}

/// What a Sidecar lets the proxies of a namespace see, or everything if there is none, with the DestinationRules that select
/// them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SidecarScope {
    pub namespace: Name,
    pub id: Option<ConfigId>,
    pub rules: Vec<ConfigId>,
}

impl Layer {
    /// The namespace whose view this is.
    pub fn client(&self) -> Option<&Name> {
        match self {
            Self::Base => None,
            Self::Namespace(namespace) => Some(namespace),
            Self::Sidecar(scope) => Some(&scope.namespace),
        }
    }

    /// DestinationRules that are only for some workloads, and for these.
    pub fn selective_rules(&self) -> &[ConfigId] {
        match self {
            Self::Base | Self::Namespace(_) => &[],
            Self::Sidecar(scope) => &scope.rules,
        }
    }

    /// The layers of a proxy in this scope, from the bottom up.
    pub fn stack(&self) -> Vec<Self> {
        match self {
            Self::Base => vec![Self::Base],
            Self::Namespace(_) => vec![Self::Base, self.clone()],
            Self::Sidecar(_) => vec![self.clone()],
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => f.write_str("base"),
            Self::Namespace(namespace) => write!(f, "namespace {namespace}"),
            Self::Sidecar(scope) => {
                match &scope.id {
                    Some(id) => write!(f, "sidecar {id} for {}", scope.namespace)?,
                    None => write!(f, "workloads of {}", scope.namespace)?,
                }
                scope.rules.iter().try_for_each(|rule| write!(f, " with {rule}"))
            }
        }
    }
}
