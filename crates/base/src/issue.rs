use std::fmt;

use crate::Name;

/// Which object an issue is about, in the words its user knows it by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ObjectRef {
    pub kind: Name,
    pub namespace: Name,
    pub name: Name,
}

impl ObjectRef {
    pub fn new(kind: &str, namespace: impl Into<Name>, name: impl Into<Name>) -> Self {
        Self { kind: Name::new(kind), namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// The object, or the part of it that `path` names, has no effect.
    Error,
    /// The object has effect, but perhaps not the one its writer meant.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One thing that is wrong with one object. Issues are data: they travel beside the best valid result, never instead of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Issue {
    pub severity: Severity,
    pub object: ObjectRef,
    /// The field, as a user would write it: `spec.http[0].route[1].weight`. Empty when the whole object is meant.
    pub path: String,
    /// Where it was read: `reviews.yaml:12`, if it came from a place that has one.
    pub place: Option<String>,
    /// Lower case, no full stop, says what is wrong and, where it can, what would be right.
    pub message: String,
}

impl Issue {
    pub fn error(object: ObjectRef, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, object, path: path.into(), place: None, message: message.into() }
    }

    pub fn warning(object: ObjectRef, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(object, path, message) }
    }

    pub fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        write!(f, "{}: {}", self.severity, self.object)?;
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        write!(f, ": {}", self.message)
    }
}
