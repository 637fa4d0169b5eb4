use std::fmt;

use crate::Name;

/// A DNS host name, or a pattern that begins with `*`: `*` alone, or `*.example.com`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Host(Name);

impl Host {
    pub fn new(text: &str) -> Self {
        Self(Name::new(text))
    }

    /// As it is compared: case does not count in names of hosts.
    pub fn lowercase(&self) -> Self {
        Self(Name::from(self.0.to_ascii_lowercase()))
    }

    pub fn name(&self) -> &Name {
        &self.0
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_wildcard(&self) -> bool {
        self.0.starts_with('*')
    }

    /// Is every host that `self` stands for also one that `other` stands for?
    pub fn subset_of(&self, other: &Self) -> bool {
        match (self.0.strip_prefix('*'), other.0.strip_prefix('*')) {
            (None, None) => self == other,
            (Some(_), None) => false,
            (None, Some(suffix)) => self.0.ends_with(suffix),
            (Some(own), Some(suffix)) => own.ends_with(suffix),
        }
    }

    /// Do both stand for at least one common host?
    pub fn overlaps(&self, other: &Self) -> bool {
        self.subset_of(other) || other.subset_of(self)
    }

    /// Every pattern that covers this host, the most specific first: for `a.b.c` these are `*.b.c`, `*.c` and `*`.
    ///
    /// An index keyed by pattern is asked for each of them, so that no list of patterns is ever walked.
    /// Only patterns that begin at a dot are found this way; `*b.c` is legal but never written.
    pub fn covering_patterns(&self) -> impl Iterator<Item = Self> {
        let text = self.0.strip_prefix("*.").unwrap_or(&self.0);
        let own = self.is_wildcard();
        let dots = text.match_indices('.').map(|(at, _)| Self(Name::from(format!("*{}", &text[at..]))));
        let itself = (own && self.0.len() > 1).then(|| self.clone());
        itself.into_iter().chain(dots).chain(std::iter::once(Self::new("*")))
    }
}

impl From<&str> for Host {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<Name> for Host {
    fn from(name: Name) -> Self {
        Self(name)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Host;

    fn subset(a: &str, b: &str) -> bool {
        Host::new(a).subset_of(&Host::new(b))
    }

    #[test]
    fn patterns_cover_hosts() {
        assert!(subset("a.b.c", "*.b.c"));
        assert!(subset("*.b.c", "*.c"));
        assert!(subset("*.b.c", "*"));
        assert!(!subset("*.c", "*.b.c"));
        assert!(!subset("*.c", "a.c"));
        assert!(!subset("b.c", "*.b.c"));
        assert!(Host::new("*.c").overlaps(&Host::new("*.b.c")));
        assert!(!Host::new("*.d").overlaps(&Host::new("a.c")));
    }

    #[test]
    fn covering_patterns_go_from_specific_to_general() {
        let of = |h: &str| Host::new(h).covering_patterns().map(|p| p.to_string()).collect::<Vec<_>>();
        assert_eq!(of("a.b.c"), ["*.b.c", "*.c", "*"]);
        assert_eq!(of("*.b.c"), ["*.b.c", "*.c", "*"]);
        assert_eq!(of("a"), ["*"]);
        assert_eq!(of("*"), ["*"]);
    }
}
