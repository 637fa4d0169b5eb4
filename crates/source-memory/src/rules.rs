//! Rules that were written, each document with a version of its own.

use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Rules {
    documents: BTreeMap<String, (u64, String)>,
    last: u64,
}

/// What a writer has seen of a document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    /// It does not matter.
    Whatever,
    /// There was none.
    Nothing,
    /// There was one.
    Any,
    Version(u64),
}

/// Why a document is not written.
pub(crate) enum Conflict {
    /// It is not the version that its writer has seen; this is.
    Newer(u64),
    /// There is none, and its writer has seen one.
    Gone,
}

impl Rules {
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&String, u64)> {
        self.documents.iter().map(|(key, (version, _))| (key, *version))
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = (&String, &str)> {
        self.documents.iter().map(|(key, (_, text))| (key, text.as_str()))
    }

    pub(crate) fn get(&self, key: &str) -> Option<(u64, &str)> {
        self.documents.get(key).map(|(version, text)| (*version, text.as_str()))
    }

    /// Writes a document, if it is still what its writer has seen.
    pub(crate) fn put(&mut self, key: &str, text: String, expected: Expected) -> Result<u64, Conflict> {
        self.check(key, expected)?;
        self.last += 1;
        self.documents.insert(key.to_owned(), (self.last, text));
        Ok(self.last)
    }

    pub(crate) fn remove(&mut self, key: &str, expected: Expected) -> Result<Option<()>, Conflict> {
        self.check(key, expected)?;
        Ok(self.documents.remove(key).map(drop))
    }

    fn check(&self, key: &str, expected: Expected) -> Result<(), Conflict> {
        let version = self.documents.get(key).map(|(version, _)| *version);
        match (expected, version) {
            (Expected::Whatever, _) | (Expected::Nothing, None) | (Expected::Any, Some(_)) => Ok(()),
            (Expected::Version(seen), Some(version)) if seen == version => Ok(()),
            (Expected::Nothing | Expected::Version(_), Some(version)) => Err(Conflict::Newer(version)),
            (Expected::Any | Expected::Version(_), None) => Err(Conflict::Gone),
        }
    }
}
