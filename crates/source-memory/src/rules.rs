//! Rules that were written, each document with a version of its own.

use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Rules {
    documents: BTreeMap<String, (u64, String)>,
    last: u64,
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

    pub(crate) fn get(&self, key: &str) -> Option<(u64, &str)> {
        self.documents.get(key).map(|(version, text)| (*version, text.as_str()))
    }

    /// Writes a document, if it is still the version that its writer expects. Zero expects none.
    pub(crate) fn put(&mut self, key: &str, text: String, expected: Option<u64>) -> Result<u64, Conflict> {
        self.check(key, expected)?;
        self.last += 1;
        self.documents.insert(key.to_owned(), (self.last, text));
        Ok(self.last)
    }

    pub(crate) fn remove(&mut self, key: &str, expected: Option<u64>) -> Result<Option<()>, Conflict> {
        self.check(key, expected)?;
        Ok(self.documents.remove(key).map(drop))
    }

    fn check(&self, key: &str, expected: Option<u64>) -> Result<(), Conflict> {
        match (expected, self.documents.get(key)) {
            (None | Some(0), None) | (None, Some(_)) => Ok(()),
            (Some(_), None) => Err(Conflict::Gone),
            (Some(expected), Some((version, _))) if expected == *version => Ok(()),
            (Some(_), Some((version, _))) => Err(Conflict::Newer(*version)),
        }
    }
}
