//! Who we are, as a header says it. Tokens are replaced while we run: one that stands in a file is read again when it is
//! refused.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use http::header::HeaderName;

/// A header that says who we are, such as a token.
#[derive(Clone)]
pub struct Secret {
    pub(crate) name: HeaderName,
    pub(crate) value: HeaderValue,
    /// Where it stands, and what a server wants to read before it.
    file: Option<Arc<(PathBuf, String)>>,
}

impl Secret {
    /// Nothing if the value cannot stand in a header.
    pub fn new(name: &'static str, value: &str) -> Option<Self> {
        Some(Self { name: HeaderName::from_static(name), value: header(value)?, file: None })
    }

    /// What stands in a file, behind a word that the server wants there; nothing if that cannot stand in a header.
    pub fn read(name: &'static str, before: &str, path: &Path) -> std::io::Result<Option<Self>> {
        let secret = Self::new(name, &said(before, path)?);
        let file = Arc::new((path.to_owned(), before.to_owned()));
        Ok(secret.map(|secret| Self { file: Some(file), ..secret }))
    }

    /// As its file says it now, if that can be read.
    fn again(&self) -> Option<HeaderValue> {
        let (path, before) = &**self.file.as_ref()?;
        header(&said(before, path).ok()?)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: …", self.name)
    }
}

fn said(before: &str, path: &Path) -> std::io::Result<String> {
    Ok(format!("{before}{}", std::fs::read_to_string(path)?.trim()))
}

fn header(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value.trim()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// What all copies of a client say of themselves.
#[derive(Clone)]
pub(crate) struct Known(Arc<Mutex<Option<Secret>>>);

impl Known {
    pub(crate) fn new(secret: Option<Secret>) -> Self {
        Self(Arc::new(Mutex::new(secret)))
    }

    pub(crate) fn now(&self) -> Option<Secret> {
        self.lock().clone()
    }

    /// Is there another one by now than the one that was refused? Several may be refused before the first of them looks.
    pub(crate) fn renew(&self, refused: Option<&Secret>) -> bool {
        let mut known = self.lock();
        let Some(secret) = known.as_mut() else { return false };
        if let Some(value) = secret.again() {
            secret.value = value;
        }
        refused.is_none_or(|refused| refused.value != secret.value)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Secret>> {
        // Nothing that is done here can be left half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
