use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

use arcstr::ArcStr;

/// A thin, immutable, reference-counted string: eight bytes, a copy costs one increment.
///
/// Hosts, namespaces, label keys and resource names are copied into many rows; none of them is ever changed in place.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(ArcStr);

impl Name {
    pub fn new(text: &str) -> Self {
        Self(ArcStr::from(text))
    }

    /// A name that lives in the binary and is never counted.
    pub const fn empty() -> Self {
        Self(arcstr::literal!(""))
    }

    /// What [`name!`](crate::name) makes a name of.
    #[doc(hidden)]
    pub const fn from_literal(text: ArcStr) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Does anybody else hold this very copy?
    pub(crate) fn is_shared(&self) -> bool {
        ArcStr::strong_count(&self.0) != Some(1)
    }
}

/// A name that is written in the code: it lives in the binary and is never counted, however often it is used.
#[macro_export]
macro_rules! name {
    ($text:expr) => {
        $crate::Name::from_literal($crate::literal!($text))
    };
}

impl Default for Name {
    fn default() -> Self {
        Self::empty()
    }
}

impl Deref for Name {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        Self(ArcStr::from(text))
    }
}

impl From<&String> for Name {
    fn from(text: &String) -> Self {
        Self::new(text)
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}
