//! Where an authority is kept.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::UnixSeconds;
use crate::material::{Material, MaterialError};

/// Nobody's certificates are as large, but somebody may have put another file there.
const MAX_FILE: u64 = 1 << 20;

/// Why the files of an authority are of no use.
#[derive(thiserror::Error, Debug)]
pub enum FilesError {
    #[error("{0}: {1}")]
    Read(PathBuf, io::Error),
    #[error("{folder} has {there} but not {missing}: put all files of one layout there, or none")]
    Incomplete { folder: PathBuf, there: &'static str, missing: &'static str },
    #[error("{0}: cannot keep a self-signed CA there: {1}; name a folder that can be written")]
    Write(PathBuf, io::Error),
    #[error("{0}: {1}")]
    Material(PathBuf, MaterialError),
}

/// What stands in a folder for CAs of others.
pub enum Plugged {
    Absent,
    Present(Material),
}

/// Istio's own names, and those of Kubernetes' secrets for TLS: certificate, key, chain and root.
const LAYOUTS: [[&str; 4]; 2] = [
    ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem"],
    ["tls.crt", "tls.key", "tls.crt", "ca.crt"],
];

/// A CA that somebody else has made, in either layout.
pub fn plugged_in(folder: &Path) -> Result<Plugged, FilesError> {
    for names in LAYOUTS {
        let mut texts = Vec::with_capacity(names.len());
        for name in names {
            texts.push((name, read(&folder.join(name))?));
        }
        let there = texts.iter().find(|(_, text)| text.is_some());
        let missing = texts.iter().find(|(_, text)| text.is_none());
        match (there, missing) {
            (None, _) => {}
            (Some((there, _)), Some((missing, _))) => {
                return Err(FilesError::Incomplete { folder: folder.to_owned(), there, missing });
            }
            (Some(_), None) => {
                let mut texts = texts.into_iter().filter_map(|(_, text)| text);
                let mut next = || texts.next().unwrap_or_default();
                let (certificate, key, chain, root) = (next(), next(), next(), next());
                return Ok(Plugged::Present(Material { certificate, key, chain, root }));
            }
        }
    }
    Ok(Plugged::Absent)
}

/// The CA that is kept in a folder; it is made if it is not there yet. Servers that start together end up with the same.
pub fn keep_self_signed(
    folder: &Path,
    organisation: &str,
    lifetime: UnixSeconds,
    now: UnixSeconds,
) -> Result<Material, FilesError> {
    if let Some(kept) = kept(folder)? {
        return Ok(kept);
    }
    let made = Material::self_signed(organisation, lifetime, now)
        .map_err(|error| FilesError::Material(folder.to_owned(), error))?;
    match write(folder, &made) {
        Ok(()) => Ok(made),
        Err(error) => match kept(folder)? {
            // Another server was faster.
            Some(kept) => Ok(kept),
            None => Err(FilesError::Write(folder.to_owned(), error)),
        },
    }
}

fn kept(folder: &Path) -> Result<Option<Material>, FilesError> {
    let [certificate, key, ..] = LAYOUTS[0];
    match (read(&folder.join(certificate))?, read(&folder.join(key))?) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            Ok(Some(Material { root: certificate.clone(), certificate, key, chain: String::new() }))
        }
        (Some(_), None) => {
            Err(FilesError::Incomplete { folder: folder.to_owned(), there: certificate, missing: key })
        }
        (None, Some(_)) => {
            Err(FilesError::Incomplete { folder: folder.to_owned(), there: key, missing: certificate })
        }
    }
}

/// Both files appear at once, with the folder, so that none is ever without the other.
fn write(folder: &Path, material: &Material) -> io::Result<()> {
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent)?;
    let for_owner = fs::Permissions::from_mode(0o700);
    let scratch = tempfile::Builder::new().prefix(".ca-").permissions(for_owner).tempdir_in(parent)?;
    let [certificate, key, ..] = LAYOUTS[0];
    for (name, text) in [(certificate, &material.certificate), (key, &material.key)] {
        let path = scratch.path().join(name);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
    }
    fs::rename(scratch.path(), folder)?;
    fs::File::open(parent)?.sync_all()
}

/// Nothing if there is no such file.
fn read(path: &Path) -> Result<Option<String>, FilesError> {
    let failed = |error| FilesError::Read(path.to_owned(), error);
    let size = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        metadata => metadata.map_err(failed)?.len(),
    };
    if size > MAX_FILE {
        return Err(failed(io::Error::other("it is too large to be a certificate or key")));
    }
    fs::read_to_string(path).map(Some).map_err(failed)
}

#[cfg(test)]
mod tests;
