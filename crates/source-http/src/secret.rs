//! Who we are, as a header says it. Tokens are replaced while we run: one that stands in a file is read again when it is
//! refused.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use data_encoding::BASE64;
use http::HeaderValue;
use http::header::HeaderName;

/// A header that says who we are, such as a token.
#[derive(Clone)]
pub struct Secret {
    pub(crate) name: HeaderName,
    pub(crate) value: HeaderValue,
    /// Where it stands, and how it is said.
    file: Option<Arc<(PathBuf, Form)>>,
}

/// What becomes of a text in a file.
#[derive(Clone)]
enum Form {
    /// It stands behind a word that the server wants there.
    Behind(String),
    /// It is `user:password`.
    Login,
}

impl Secret {
    /// Nothing if the value cannot stand in a header.
    pub fn new(name: &'static str, value: &str) -> Option<Self> {
        Some(Self { name: HeaderName::from_static(name), value: header(value)?, file: None })
    }

    /// What stands in a file, behind a word that the server wants there; nothing if that cannot stand in a header.
    pub fn read(name: &'static str, before: &str, path: &Path) -> std::io::Result<Option<Self>> {
        Self::of(name, path, Form::Behind(before.to_owned()))
    }

    /// The `user:password` that stands in a file, as servers want to read it.
    pub fn login(path: &Path) -> std::io::Result<Option<Self>> {
        Self::of("authorization", path, Form::Login)
    }

    fn of(name: &'static str, path: &Path, form: Form) -> std::io::Result<Option<Self>> {
        let secret = Self::new(name, &said(&form, path)?);
        let file = Arc::new((path.to_owned(), form));
        Ok(secret.map(|secret| Self { file: Some(file), ..secret }))
    }

    /// As its file says it now, if that can be read.
    fn again(&self) -> Option<HeaderValue> {
        let (path, form) = &**self.file.as_ref()?;
        header(&said(form, path).ok()?)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: …", self.name)
    }
}

fn said(form: &Form, path: &Path) -> std::io::Result<String> {
    let text = std::fs::read_to_string(path)?;
    Ok(match form {
        Form::Behind(before) => format!("{before}{}", text.trim()),
        Form::Login => format!("Basic {}", BASE64.encode(text.trim().as_bytes())),
    })
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
