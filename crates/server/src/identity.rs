//! Our own identity: the authority, the certificate that we show, and whom we believe, all of it followed in files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilot_ca::{
    Authority, FilesError, Limits, Material, MaterialError, Plugged, keep_self_signed, plugged_in,
    read_certificates, read_key,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;

use crate::authenticate::Gate;
use crate::clock::unix_seconds;
use crate::metrics::Metrics;

/// Where everything is, and how long it is good.
#[derive(Clone)]
pub struct IdentityOptions {
    /// `ROOT_CA_DIR`: a CA that somebody else has made.
    pub plugged: PathBuf,
    /// Where ours is kept, if there is no other.
    pub self_signed: SelfSigned,
    /// `CITADEL_SELF_SIGNED_CA_CERT_TTL`
    pub root_lifetime: Duration,
    /// Under which name ours goes.
    pub organisation: String,
    /// `ENABLE_CA_SERVER`
    pub has_authority: bool,
    /// `ISTIO_MULTIROOT_MESH`: roots may be added while we run.
    pub multiroot: bool,
    /// Names that clients call us by.
    pub names: Vec<String>,
    pub files: Option<TlsFiles>,
    /// `--tls-min-version`
    pub only_tls13: bool,
}

/// An authority of our own.
#[derive(Clone)]
pub enum SelfSigned {
    /// In a folder, where it is made if it is not there yet.
    Folder(PathBuf),
    /// Somewhere else, under a name that people know.
    Kept { place: PathBuf, material: Material },
}

/// A certificate for us that somebody else has made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

/// Why we have no identity.
#[derive(thiserror::Error, Debug)]
pub enum IdentityError {
    #[error("{0}")]
    Files(#[from] FilesError),
    #[error("{0}: {1}")]
    Read(PathBuf, std::io::Error),
    #[error("{0}: {1}")]
    Material(PathBuf, MaterialError),
    #[error("the server's certificate: {0}")]
    Tls(#[from] rustls::Error),
    #[error(
        "{0}: the root certificate changed, which is done by adding to it, with ISTIO_MULTIROOT_MESH=true"
    )]
    OtherRoot(PathBuf),
    /// Neither an authority nor files.
    #[error(
        "there is no certificate: set ENABLE_CA_SERVER=true, or --tlsCertFile, --tlsKeyFile and --caCertFile"
    )]
    Nothing,
}

/// Who may be certified by whom.
#[derive(Clone)]
pub struct Issuance {
    pub gate: Arc<Gate>,
    pub authority: watch::Receiver<Arc<Authority>>,
    pub limits: Limits,
}

/// How often files are looked at: a rotation that was made by hand is seen while one waits for it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Our own certificate lives in memory only; it is renewed at half of this.
const OWN_LIFETIME: i64 = 90 * 24 * 3600;

pub struct Identity {
    options: IdentityOptions,
    read: Read,
    current: Current,
    authority: Option<watch::Sender<Arc<Authority>>>,
    config: watch::Sender<Arc<ServerConfig>>,
    ca_bundle: watch::Sender<Arc<str>>,
    metrics: Arc<Metrics>,
}

/// What the files say.
#[derive(Clone, PartialEq, Eq)]
struct Read {
    authority: Option<(PathBuf, Material)>,
    /// Certificate, key and roots.
    server: Option<[String; 3]>,
}

/// What was made of it.
struct Current {
    authority: Option<Arc<Authority>>,
    config: Arc<ServerConfig>,
    /// By whom our certificate is known, as PEM.
    ca_bundle: Arc<str>,
    renew_at: i64,
}

impl Identity {
    /// Reads everything, and makes an authority if there is none.
    pub fn open(options: IdentityOptions, metrics: Arc<Metrics>) -> Result<Self, IdentityError> {
        let read = Read::from_files(&options)?;
        if let Some((path, _)) = &read.authority {
            tracing::info!("the CA is the one in {}", path.display());
        }
        let current = Current::make(&options, &read, unix_seconds())?;
        let authority = current.authority.clone().map(watch::Sender::new);
        let config = watch::Sender::new(Arc::clone(&current.config));
        let ca_bundle = watch::Sender::new(Arc::clone(&current.ca_bundle));
        let identity = Self { options, read, current, authority, config, ca_bundle, metrics };
        identity.tell_expiry();
        Ok(identity)
    }

    /// What the next connection is greeted with.
    pub fn tls(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.config.subscribe()
    }

    /// PEM of who signed the certificate that we show, for who has to know us.
    pub fn ca_bundle(&self) -> watch::Receiver<Arc<str>> {
        self.ca_bundle.subscribe()
    }

    /// Nothing if we certify nobody.
    pub fn authority(&self) -> Option<watch::Receiver<Arc<Authority>>> {
        self.authority.as_ref().map(watch::Sender::subscribe)
    }

    /// Follows the files, and renews what gets old. What is wrong is told once, and what was before goes on.
    pub async fn follow(mut self) {
        let mut wrong: Option<String> = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let options = self.options.clone();
            let read = tokio::task::spawn_blocking(move || Read::from_files(&options)).await;
            let Ok(read) = read else { continue };
            match read.and_then(|read| self.take(read, unix_seconds())) {
                Ok(()) => wrong = None,
                Err(error) => {
                    let text = error.to_string();
                    if wrong.as_ref() != Some(&text) {
                        tracing::warn!("{text}; what was there before is used");
                    }
                    wrong = Some(text);
                }
            }
        }
    }

    fn take(&mut self, read: Read, now: i64) -> Result<(), IdentityError> {
        if read == self.read && now < self.current.renew_at {
            return Ok(());
        }
        let made = Current::make(&self.options, &read, now)?;
        if let (Some(new), Some(old), Some((path, _))) =
            (&made.authority, &self.current.authority, &read.authority)
        {
            let may_change = self.options.multiroot && new.includes_roots_of(old);
            if new.root() != old.root() && !may_change {
                return Err(IdentityError::OtherRoot(path.clone()));
            }
        }
        if read != self.read {
            tracing::info!("certificates have changed; the new ones are used");
        }
        if let (Some(channel), Some(authority)) = (&self.authority, &made.authority) {
            channel.send_replace(Arc::clone(authority));
        }
        self.config.send_replace(Arc::clone(&made.config));
        if made.ca_bundle != self.current.ca_bundle {
            self.ca_bundle.send_replace(Arc::clone(&made.ca_bundle));
        }
        (self.read, self.current) = (read, made);
        self.tell_expiry();
        Ok(())
    }

    fn tell_expiry(&self) {
        if let Some(authority) = &self.current.authority {
            self.metrics.ca.expires(authority.root_not_after(), authority.chain_not_after());
        }
    }
}

impl Read {
    fn from_files(options: &IdentityOptions) -> Result<Self, IdentityError> {
        let text = |path: &Path| {
            std::fs::read_to_string(path).map_err(|error| IdentityError::Read(path.to_owned(), error))
        };
        let server = match &options.files {
            Some(TlsFiles { certificate, key, ca }) => Some([text(certificate)?, text(key)?, text(ca)?]),
            None => None,
        };
        let authority = if options.has_authority { Some(authority_files(options)?) } else { None };
        Ok(Self { authority, server })
    }
}

fn authority_files(options: &IdentityOptions) -> Result<(PathBuf, Material), IdentityError> {
    if let Plugged::Present(material) = plugged_in(&options.plugged)? {
        return Ok((options.plugged.clone(), material));
    }
    let folder = match &options.self_signed {
        SelfSigned::Folder(folder) => folder,
        SelfSigned::Kept { place, material } => return Ok((place.clone(), material.clone())),
    };
    let lifetime = i64::try_from(options.root_lifetime.as_secs()).unwrap_or(i64::MAX);
    let kept = keep_self_signed(folder, &options.organisation, lifetime, unix_seconds())?;
    Ok((folder.clone(), kept))
}

impl Current {
    fn make(options: &IdentityOptions, read: &Read, now: i64) -> Result<Self, IdentityError> {
        let authority = match &read.authority {
            Some((path, material)) => Some(
                Authority::new(material, now)
                    .map_err(|error| IdentityError::Material(path.clone(), error))?,
            ),
            None => None,
        };
        let mut roots: Vec<&str> = authority.iter().map(Authority::root).collect();
        let (chain, key, renew_at) = match (&read.server, &options.files, &authority) {
            (Some([certificate, key, ca]), Some(files), _) => {
                let wrong = |path: &Path| {
                    let path = path.to_owned();
                    move |error| IdentityError::Material(path, error)
                };
                let chain = read_certificates("server's certificate", certificate)
                    .map_err(wrong(&files.certificate))?;
                let key = read_key(key).map_err(wrong(&files.key))?;
                roots.push(ca);
                (chain, key, i64::MAX)
            }
            (_, _, Some(authority)) => {
                let own = authority
                    .server_certificate(&options.names, OWN_LIFETIME, now)
                    .map_err(|error| IdentityError::Material(options.plugged.clone(), error.into()))?;
                (own.chain, own.key, now + (own.not_after - now) / 2)
            }
            _ => return Err(IdentityError::Nothing),
        };
        // The last root is the one of the certificate that was chosen.
        let ca_bundle = Arc::from(roots.last().copied().unwrap_or_default());
        let verifier = pilot_ca::client_verifier(&roots)
            .map_err(|error| IdentityError::Material(options.plugged.clone(), error))?;
        let config = server_config(options, verifier, chain, key)?;
        Ok(Self { authority: authority.map(Arc::new), config: Arc::new(config), ca_bundle, renew_at })
    }
}

fn server_config(
    options: &IdentityOptions,
    verifier: Arc<dyn rustls::server::danger::ClientCertVerifier>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let versions: &[_] = if options.only_tls13 { &[&rustls::version::TLS13] } else { rustls::ALL_VERSIONS };
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    // xDS speaks only the first; whoever asks about objects may know only the second.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // A certificate that was changed must be seen at the next connection, and callers come back rarely.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
