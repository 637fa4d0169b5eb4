//! Who the workload is: its key and certificate, from the authority of the mesh or from files, and whom it trusts.
//!
//! ```text
//!   token ──► authority: CSR ──► certificate ─┐
//!                                             ├──► Secrets ──► sds ──► Envoy
//!   files ────────────────────────────────────┘       └─► OUTPUT_CERTS
//! ```

mod authority;
mod renewal;
mod secrets;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use pilot_ca::{Curve, SpiffeId};
use tokio::sync::watch;

use crate::Env;
use crate::backoff::Chance;
use crate::clock::unix_seconds;
use crate::control_plane::{CHAIN_FILE, KEY_FILE, ROOT_FILE};
use crate::grpc::Upstream;
use crate::metrics::Metrics;
use authority::Authority;
use renewal::{Grace, Renewal};
pub(crate) use secrets::{Secret, SecretError, Secrets};

/// Where files of certificates are mounted. Relative, as in Istio.
const MOUNTED: &str = "./etc/certs";
const CREDENTIALS: &str = "./var/run/secrets/workload-spiffe-credentials";
/// However long there is to wait, the clock of the machine may have been set meanwhile.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// The node says so too, and the control plane then has files asked for at another socket.
pub(crate) const SERVED_BY_OTHERS: &str = "ISTIO_META_file-credential";
const DEFAULT_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The files of one identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CertificateFiles {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) root: PathBuf,
}

impl CertificateFiles {
    fn of(folder: &str) -> Self {
        let file = |name: &str| PathBuf::from(folder).join(name);
        Self { chain: file(CHAIN_FILE), key: file(KEY_FILE), root: file(ROOT_FILE) }
    }

    fn all_exist(&self) -> bool {
        [&self.chain, &self.key, &self.root].into_iter().all(|path| path.is_file())
    }
}

/// Where key and certificate are written.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Output {
    folder: PathBuf,
    /// In Kubernetes other containers read them.
    mode: u32,
}

/// What was decided before anything is asked for.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) id: SpiffeId,
    curve: Curve,
    ttl: Duration,
    grace: Grace,
    signer: String,
    /// Files that take the place of the authority, if they are there.
    files: CertificateFiles,
    output: Option<Output>,
    /// Is the authority left out, whatever there is?
    pub(crate) only_files: bool,
}

impl Settings {
    pub(crate) fn read(env: &Env, namespace: &str) -> anyhow::Result<Self> {
        let word = |name: &str, instead: &'static str| env.get(name).unwrap_or(instead).to_owned();
        let (domain, account) = (word("TRUST_DOMAIN", "cluster.local"), word("SERVICE_ACCOUNT", "default"));
        let id = SpiffeId::new(&domain, namespace, &account).with_context(|| {
            format!("TRUST_DOMAIN \"{domain}\", namespace \"{namespace}\" and SERVICE_ACCOUNT \"{account}\" make no identity")
        })?;
        if let Some(fetcher) = env.get("CREDENTIAL_FETCHER_TYPE").filter(|kind| *kind != "JWT") {
            bail!("CREDENTIAL_FETCHER_TYPE {fetcher} is not supported; leave it out for tokens in files");
        }
        if let Some(provider) = env.get("CA_PROVIDER").filter(|name| *name != "Citadel") {
            bail!("CA_PROVIDER {provider} is not supported; leave it out for Istio's certificate service");
        }
        let mounted = CertificateFiles::of(CREDENTIALS);
        let has_credentials = mounted.all_exist();
        let ratio = |name: &str, instead: f64| env.number::<f64>(name).unwrap_or(instead);
        Ok(Self {
            id,
            curve: curve(env)?,
            ttl: env.span("SECRET_TTL").unwrap_or(DEFAULT_TTL),
            grace: Grace::new(
                ratio("SECRET_GRACE_PERIOD_RATIO", 0.5),
                ratio("SECRET_GRACE_PERIOD_RATIO_JITTER", 0.01),
            ),
            signer: word("ISTIO_META_CERT_SIGNER", ""),
            files: if has_credentials { mounted } else { CertificateFiles::of(MOUNTED) },
            output: env.get("OUTPUT_CERTS").map(|folder| Output {
                folder: folder.into(),
                mode: if env.get("KUBERNETES_SERVICE_HOST").is_some() { 0o644 } else { 0o600 },
            }),
            only_files: has_credentials
                || env.flag("FILE_MOUNTED_CERTS") == Some(true)
                || env.get(SERVED_BY_OTHERS) == Some("true"),
        })
    }
}

/// Keys are of elliptic curves. RSA, Istio's default, is as good for every peer and takes far longer to make.
fn curve(env: &Env) -> anyhow::Result<Curve> {
    match env.get("ECC_SIGNATURE_ALGORITHM") {
        None | Some("ECDSA") => {}
        Some(other) => bail!("ECC_SIGNATURE_ALGORITHM {other} is not supported; ECDSA is"),
    }
    match env.get("ECC_CURVE") {
        None | Some("P256") => Ok(Curve::P256),
        Some("P384") => Ok(Curve::P384),
        Some(other) => bail!("ECC_CURVE {other} is not supported; P256 and P384 are"),
    }
}

/// Has certificates renewed and files followed, until it is dropped. `roots` are more roots of the mesh, as the control plane
/// tells them.
pub(crate) async fn run(
    settings: Settings,
    upstream: Option<Upstream>,
    secrets: Arc<Secrets>,
    roots: watch::Receiver<Vec<String>>,
    metrics: Arc<Metrics>,
) {
    let authority = upstream.filter(|_| !settings.only_files).map(|upstream| Authority {
        upstream,
        ttl: settings.ttl,
        signer: settings.signer.clone(),
        metrics: Arc::clone(&metrics),
    });
    let following = Arc::clone(&secrets).follow_files();
    match authority {
        None => {
            tokio::join!(following, follow_roots(&secrets, roots));
        }
        Some(authority) => {
            tokio::join!(following, renew(&settings, &authority, &secrets, roots));
        }
    }
}

async fn follow_roots(secrets: &Secrets, mut roots: watch::Receiver<Vec<String>>) {
    while roots.changed().await.is_ok() {
        let more = roots.borrow_and_update().clone();
        secrets.set_more_roots(more);
    }
}

async fn renew(
    settings: &Settings,
    authority: &Authority,
    secrets: &Secrets,
    mut roots: watch::Receiver<Vec<String>>,
) {
    let mut renewal = Renewal::new(settings.grace, unix_seconds());
    let mut roots_end = false;
    let mut told = String::new();
    loop {
        let wait = renewal.wait(unix_seconds());
        tokio::select! {
            () = tokio::time::sleep(wait.min(LONGEST_SLEEP)) => {}
            changed = roots.changed(), if !roots_end => match changed {
                Err(_) => roots_end = true,
                Ok(()) => {
                    let more = roots.borrow_and_update().clone();
                    secrets.set_more_roots(more);
                    renewal.force(unix_seconds());
                }
            },
        }
        let now = unix_seconds();
        if !renewal.wait(now).is_zero() {
            continue;
        }
        match authority.certify(&settings.id, settings.curve).await {
            Ok(issued) => {
                tracing::info!(id = %settings.id, valid_seconds = issued.expires - now, "new certificate");
                told.clear();
                renewal.issued((now, issued.expires), Chance::draw(), Chance::draw());
                secrets.set_issued(issued);
            }
            Err(error) => {
                let pause = renewal.failed(unix_seconds(), Chance::draw()).as_secs();
                let (server, text) = (authority.upstream.name(), error.to_string());
                // Where nobody certifies, this goes on for ever, and once is enough.
                if text == told {
                    tracing::debug!(server, again_in_seconds = pause, "still no certificate: {text}");
                } else {
                    tracing::warn!(server, again_in_seconds = pause, "no certificate: {text}");
                }
                told = text;
            }
        }
    }
}
