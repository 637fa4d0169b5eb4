use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// Files that say whom to trust and who we are; empty where the system's roots and nobody will do.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub roots: Option<PathBuf>,
    /// A certificate and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Why TLS cannot be spoken.
#[derive(thiserror::Error, Debug)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// A file has no certificate or no key in it.
    #[error("{} has no {what} in PEM form", path.display())]
    Pem { path: PathBuf, what: &'static str },
    /// Certificate and key cannot be used.
    #[error("{0}")]
    Use(#[from] rustls::Error),
}

impl TlsFiles {
    /// `protocols` are what is spoken inside, in the names that servers are told.
    pub(crate) fn connector(&self, protocols: &[&[u8]]) -> Result<TlsConnector, TlsError> {
        let mut roots = RootCertStore::empty();
        match &self.roots {
            Some(path) => {
                for certificate in certificates(path)? {
                    roots.add(certificate)?;
                }
            }
            // A root of the system that cannot be read is one less; who needs it learns that from the handshake.
            None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match &self.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let bytes = read(key)?;
                let key = PrivateKeyDer::from_pem_slice(&bytes)
                    .map_err(|_| TlsError::Pem { path: key.clone(), what: "key" })?;
                builder.with_client_auth_cert(certificates(certificate)?, key)?
            }
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| TlsError::Read { path: path.clone(), error })
}

fn certificates(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path)?;
    let all: Vec<_> = CertificateDer::pem_slice_iter(&bytes).filter_map(Result::ok).collect();
    if all.is_empty() {
        return Err(TlsError::Pem { path: path.clone(), what: "certificate" });
    }
    Ok(all)
}
