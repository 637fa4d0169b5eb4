//! Who calls: what a caller shows, who can make something of it, and what follows for his streams.

mod oidc;

use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;

use http::{Extensions, HeaderMap, header};
use pilot_ca::SpiffeId;
use pilot_model::Proxy;
use tokio::sync::watch;
use tonic::Status;

use crate::engine::{EngineHandle, TrustDomains};
use crate::key_sets::KeyOptions;
use crate::tls::Peer;

pub use oidc::{JwtRule, JwtRuleError};

/// What a caller shows of himself.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Nothing if the connection has no TLS.
    peer: Option<Peer>,
    token: Option<String>,
    cluster: Option<String>,
}

impl Caller {
    pub(crate) fn of(extensions: &Extensions, headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let shown = text(header::AUTHORIZATION.as_str());
        let token = shown.and_then(|v| v.strip_prefix("Bearer ").or_else(|| v.strip_prefix("Istio ")));
        Self {
            peer: extensions.get::<Peer>().cloned(),
            token: token.map(|token| token.trim().to_owned()),
            cluster: text("clusterid").map(str::to_owned),
        }
    }

    /// A token that came as `authorization: Bearer …`.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// The cluster that the caller says it is in.
    pub fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    fn address(&self) -> String {
        let address = self.peer.as_ref().and_then(|peer| peer.address);
        address.map_or_else(|| "a caller".to_owned(), |address| address.to_string())
    }
}

/// What somebody can make of a caller.
pub type Identified<'a> = Pin<Box<dyn Future<Output = Result<Vec<SpiffeId>, String>> + Send + 'a>>;

/// One way of proving who one is. The error tells why it was not possible, for our log.
pub trait Authenticator: Send + Sync {
    fn name(&self) -> &'static str;
    fn identify<'a>(&'a self, caller: &'a Caller) -> Identified<'a>;
}

/// How strict it is.
#[derive(Clone, Copy, Debug)]
pub struct AuthOptions {
    /// `XDS_AUTH`
    pub xds_auth: bool,
    /// `XDS_AUTH_PLAINTEXT`
    pub plaintext: bool,
    /// `PILOT_ENABLE_XDS_IDENTITY_CHECK`
    pub identity_check: bool,
}

/// Asks one after the other; the first who knows the caller is believed.
pub struct Gate {
    authenticators: Vec<Arc<dyn Authenticator>>,
    options: AuthOptions,
}

impl Gate {
    pub fn new(authenticators: Vec<Arc<dyn Authenticator>>, options: AuthOptions) -> Self {
        Self { authenticators, options }
    }

    /// Istio's order: client certificates, then tokens of issuers that the mesh trusts. Tokens of Kubernetes come third.
    pub fn authenticators(
        engine: &EngineHandle,
        rule: Option<JwtRule>,
        keys: &KeyOptions,
    ) -> Vec<Arc<dyn Authenticator>> {
        let trust = engine.trust_domains();
        let mut all: Vec<Arc<dyn Authenticator>> = vec![Arc::new(ClientCertificate { trust })];
        all.extend(rule.map(|rule| Self::token_authenticator(engine, rule, keys)));
        all
    }

    pub fn token_authenticator(
        engine: &EngineHandle,
        rule: JwtRule,
        keys: &KeyOptions,
    ) -> Arc<dyn Authenticator> {
        Arc::new(oidc::Oidc::new(rule, engine.trust_domains(), keys, Arc::clone(engine.clock())))
    }

    /// Nothing if nobody is asked who he is.
    pub(crate) async fn identify(&self, caller: &Caller) -> Result<Option<Vec<SpiffeId>>, Status> {
        if !self.options.xds_auth || (caller.peer.is_none() && !self.options.plaintext) {
            return Ok(None);
        }
        self.ask(caller).await.map(Some)
    }

    /// Who it is, however he calls.
    pub(crate) async fn ask(&self, caller: &Caller) -> Result<Vec<SpiffeId>, Status> {
        let mut why = String::new();
        for authenticator in &self.authenticators {
            match authenticator.identify(caller).await {
                Ok(identities) => return Ok(identities),
                Err(error) => {
                    let _written = write!(why, "{}: {error}; ", authenticator.name());
                }
            }
        }
        tracing::warn!(target: "ads", "{} is not let in: {}", caller.address(), why.trim_end_matches("; "));
        Err(Status::unauthenticated("authentication failure"))
    }

    /// Is a proxy who it says it is?
    pub(crate) fn authorize(&self, proxy: &Proxy, identities: &[SpiffeId]) -> Result<(), Status> {
        let (namespace, account) = (proxy.namespace.as_str(), proxy.service_account.as_str());
        let is_it = |id: &SpiffeId| {
            (namespace.is_empty() || id.namespace == namespace)
                && (account.is_empty() || id.service_account == account)
        };
        if !self.options.identity_check || identities.iter().any(is_it) {
            return Ok(());
        }
        let known: Vec<String> = identities.iter().map(ToString::to_string).collect();
        let known = known.join(", ");
        tracing::warn!(target: "ads", "{known} says it is {namespace}/{account}, and is not let in");
        Err(Status::permission_denied(format!(
            "authorization failed: no identities ([{known}]) matched {namespace}/{account}"
        )))
    }
}

/// The certificate that was shown in the handshake, where it was verified.
struct ClientCertificate {
    trust: watch::Receiver<TrustDomains>,
}

impl Authenticator for ClientCertificate {
    fn name(&self) -> &'static str {
        "ClientCertAuthenticator"
    }

    fn identify<'a>(&'a self, caller: &'a Caller) -> Identified<'a> {
        let shown = caller.peer.as_ref().and_then(|peer| peer.identities.as_ref());
        let found = shown.ok_or_else(|| "no client certificate is presented".to_owned()).and_then(|all| {
            let trust = self.trust.borrow();
            let ours: Vec<SpiffeId> =
                all.iter().filter(|id| trust.include(&id.trust_domain)).cloned().collect();
            if ours.is_empty() {
                return Err(format!("the certificate names nobody in trust domain {}", trust.own));
            }
            Ok(ours)
        });
        Box::pin(std::future::ready(found))
    }
}
