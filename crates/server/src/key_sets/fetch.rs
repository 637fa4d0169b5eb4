//! One question to an issuer. It blocks, so it belongs on a thread where that is allowed.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Cidr, Clock, Name};
use pilot_model::KeySource;
use ureq::http::Uri;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::KeyOptions;
use super::schedule::Patience;

/// Key sets of large issuers have some tens of thousands of bytes; each proxy is sent all of them.
const MOST_BYTES: u64 = 1024 * 1024;

/// Why no keys came.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("{0}")]
    Http(#[from] ureq::Error),
    #[error("the answer has no keys that Envoy could use: {0}")]
    Unusable(String),
    #[error("{0} does not tell a jwks_uri")]
    NoUri(String),
    /// The log has the panic. It is not told here, as its text is another each time.
    #[error("asking broke off, which is a mistake in Pilot; its log tells more")]
    Broken,
}

#[derive(Clone)]
pub(super) struct Client {
    agent: ureq::Agent,
    clock: Arc<dyn Clock>,
}

impl Client {
    pub(super) fn new(options: &KeyOptions, extra_roots: &Path, clock: Arc<dyn Clock>) -> Self {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&roots(extra_roots)))
            .disable_verification(options.trust_anybody)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        // Connections are not kept: the next question comes in minutes.
        let config = ureq::Agent::config_builder().tls_config(tls).max_idle_connections(0).build();
        let resolver = Guard { blocked: options.blocked.clone(), inner: DefaultResolver::default() };
        Self { agent: ureq::Agent::with_parts(config, DefaultConnector::default(), resolver), clock }
    }

    /// The text of a key set, as it came.
    pub(super) fn keys(&self, source: &KeySource, patience: Patience) -> Result<Name, FetchError> {
        let began = self.clock.now();
        let wait = || {
            let spent = Duration::from_millis(self.clock.now().saturating_sub(began));
            patience.request.min(patience.question.saturating_sub(spent))
        };
        let uri = match source {
            KeySource::Uri(uri) => uri.to_string(),
            KeySource::Issuer(issuer) => self.discover(issuer, wait())?,
        };
        let text = self.get(&uri, wait())?;
        // Proxies would refuse the listener that it comes with.
        pilot_config::usable_keys(&text).map_err(FetchError::Unusable)?;
        Ok(text.into())
    }

    fn discover(&self, issuer: &str, wait: Duration) -> Result<String, FetchError> {
        let uri = pilot_config::discovery_uri(issuer);
        let page = self.get(&uri, wait)?;
        pilot_config::told_jwks_uri(&page).ok_or(FetchError::NoUri(uri))
    }

    fn get(&self, uri: &str, wait: Duration) -> Result<String, FetchError> {
        let request = self.agent.get(uri).config().timeout_global(Some(wait)).build();
        Ok(request.call()?.body_mut().with_config().limit(MOST_BYTES).read_to_string()?)
    }
}

/// Those of the system, and those that somebody has mounted.
fn roots(extra: &Path) -> Vec<Certificate<'static>> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!("roots of the system: {error}");
    }
    let mut roots: Vec<_> =
        found.certs.iter().map(|der| Certificate::from_der(der.as_ref()).to_owned()).collect();
    // Not being there is the usual case.
    if let Ok(pem) = std::fs::read(extra) {
        for item in parse_pem(&pem) {
            match item {
                Ok(PemItem::Certificate(certificate)) => roots.push(certificate),
                Ok(_) => {}
                Err(error) => tracing::warn!("{}: {error}", extra.display()),
            }
        }
    }
    roots
}

/// Keeps policies from making the server call where it must not.
#[derive(Debug)]
struct Guard {
    blocked: Vec<Cidr>,
    inner: DefaultResolver,
}

impl Resolver for Guard {
    fn resolve(
        &self,
        uri: &Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        let mut allowed = self.empty();
        for address in found.iter().filter(|address| !self.is_blocked(address.ip())) {
            allowed.push(*address);
        }
        if allowed.is_empty() {
            let host = uri.host().unwrap_or_default();
            return Err(ureq::Error::Other(
                format!("{host} is at an address that BLOCKED_CIDRS_IN_JWKS_URIS forbids").into(),
            ));
        }
        Ok(allowed)
    }
}

impl Guard {
    fn is_blocked(&self, ip: IpAddr) -> bool {
        self.blocked.iter().any(|block| block.contains(ip.to_canonical()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Client, KeySource, Patience};
    use crate::clock::SystemClock;
    use crate::key_sets::KeyOptions;
    use pilot_base::Clock;
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn all_requests_of_a_question_share_its_time() {
        let issuer = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = issuer.local_addr().unwrap();
        // It tells where its keys are, late, and nothing else.
        let page = format!(r#"{{"jwks_uri": "http://{at}/keys"}}"#);
        let serving = std::thread::spawn(move || {
            let (mut first, _) = issuer.accept().unwrap();
            let _request = first.read(&mut [0; 1024]).unwrap();
            std::thread::sleep(Duration::from_millis(500));
            write!(first, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{page}", page.len()).unwrap();
            let (mut second, _) = issuer.accept().unwrap();
            // Until the client has given up.
            second.read_to_string(&mut String::new()).unwrap_or_default()
        });
        let options = KeyOptions { refresh: Duration::ZERO, trust_anybody: false, blocked: Vec::new() };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let client = Client::new(&options, "nowhere".as_ref(), Arc::clone(&clock));
        let patience = Patience { request: Duration::from_secs(30), question: Duration::from_secs(1) };
        let began = clock.now();
        let answer = client.keys(&KeySource::Issuer(format!("http://{at}").into()), patience);
        assert!(answer.unwrap_err().to_string().contains("timeout"));
        assert!(clock.now() - began < 10_000);
        serving.join().unwrap();
    }
}
