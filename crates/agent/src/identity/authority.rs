//! Asks Istio's certificate service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf as _;
use pilot_ca::messages::{CREATE_CERTIFICATE, CertificateRequest, CertificateResponse};
use pilot_ca::{Curve, MaterialError, SigningRequest, SpiffeId};
use prost::Message as _;
use prost_types::{Struct, Value, value::Kind};
use tokio::time::Instant;

use super::secrets::Issued;
use crate::backoff::{Backoff, Chance};
use crate::grpc::{Arriving, Call, Code, ConnectError, Outgoing, Status, Upstream};
use crate::metrics::Metrics;

/// Within one try, as Istio's clients do.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(3_200);
/// A CA that has to ask others first may take a while.
const PATIENCE: Duration = Duration::from_secs(30);
/// Chains are a few kilobytes.
const LARGEST: usize = 4 << 20;
const SIGNER: &str = "CertSigner";

/// Why there is no certificate.
#[derive(thiserror::Error, Debug)]
pub(super) enum AuthorityError {
    #[error("{0}")]
    Call(#[from] ConnectError),
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Slow,
    #[error("the answer cannot be used: {0}")]
    Answer(String),
    #[error("cannot make a request: {0}")]
    Request(String),
}

impl From<MaterialError> for AuthorityError {
    fn from(error: MaterialError) -> Self {
        Self::Answer(error.to_string())
    }
}

impl AuthorityError {
    /// Could the same request succeed a moment later?
    fn may_pass(&self) -> bool {
        let Self::Call(error) = self else { return matches!(self, Self::Slow) };
        matches!(
            error.status().code,
            Code::Cancelled
                | Code::DeadlineExceeded
                | Code::ResourceExhausted
                | Code::Aborted
                | Code::Internal
                | Code::Unavailable
        )
    }
}

pub(super) struct Authority {
    pub(super) upstream: Upstream,
    pub(super) ttl: Duration,
    pub(super) signer: String,
    pub(super) metrics: Arc<Metrics>,
}

impl Authority {
    /// A new key each time.
    pub(super) async fn certify(&self, id: &SpiffeId, curve: Curve) -> Result<Issued, AuthorityError> {
        let request =
            SigningRequest::new(id, curve).map_err(|error| AuthorityError::Request(error.to_string()))?;
        let metrics = &self.metrics.identity;
        let started = Instant::now();
        metrics.requested();
        let answered = self.persevere(&request.csr).await;
        metrics.took(started.elapsed());
        let issued = answered.and_then(|texts| issued(&texts, request.key));
        match &issued {
            Ok(issued) => metrics.expires(issued.expires),
            Err(_) => metrics.failed(),
        }
        issued
    }

    async fn persevere(&self, csr: &str) -> Result<Vec<String>, AuthorityError> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        for _ in 1..TRIES {
            match self.ask(csr).await {
                Err(error) if error.may_pass() => {
                    tracing::debug!("no certificate yet: {error}");
                    backoff.failed();
                    self.metrics.identity.retried();
                    tokio::time::sleep(backoff.pause(Chance::draw())).await;
                }
                decided => return decided,
            }
        }
        self.ask(csr).await
    }

    async fn ask(&self, csr: &str) -> Result<Vec<String>, AuthorityError> {
        let signer = Value { kind: Some(Kind::StringValue(self.signer.clone())) };
        let request = CertificateRequest {
            csr: csr.to_owned(),
            validity_duration: i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX),
            metadata: Some(Struct { fields: BTreeMap::from([(SIGNER.to_owned(), signer)]) }),
        };
        let asked = self.exchange(Outgoing::once(request.encode_to_vec().into()));
        tokio::time::timeout(PATIENCE, asked).await.map_err(|_| AuthorityError::Slow)?
    }

    async fn exchange(&self, request: Outgoing) -> Result<Vec<String>, AuthorityError> {
        let connection = self.upstream.connect().await?;
        let Call { body, connection: _open } =
            self.upstream.call(connection, CREATE_CERTIFICATE, request).await?;
        let mut arriving = Arriving::new(body, LARGEST);
        let failed = |status: Option<Status>| {
            let status = status.unwrap_or_else(|| Status::new(Code::Unknown, "there was no answer"));
            AuthorityError::Call(ConnectError::Status(status))
        };
        let message = arriving.next().await.map_err(failed)?.ok_or_else(|| failed(None))?;
        let length = message.remaining();
        let response = CertificateResponse::decode(message).map_err(|error| {
            AuthorityError::Answer(format!("{length} bytes are not a certificate: {error}"))
        })?;
        Ok(response.cert_chain)
    }
}

/// The certificate, what stands between it and the root, and at the end the root.
fn issued(texts: &[String], key: String) -> Result<Issued, AuthorityError> {
    let [_, .., root] = texts else {
        return Err(AuthorityError::Answer(format!(
            "it has {} texts, not a certificate and a root",
            texts.len()
        )));
    };
    let mut chain = String::new();
    for text in texts {
        chain.push_str(text);
        if !text.ends_with('\n') {
            chain.push('\n');
        }
    }
    pilot_ca::check_pair(&chain, &key)?;
    let expires = pilot_ca::expiry(&chain)?;
    Ok(Issued { chain, key, root: root.clone(), expires })
}
