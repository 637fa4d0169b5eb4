use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pilot_base::Clock;
use pilot_ca::messages::{CREATE_CERTIFICATE, CertificateRequest, CertificateResponse, SERVICE};
use pilot_ca::{Authority, CaError, Limits, Order};
use prost_types::value::Kind;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::authenticate::{Caller, Gate};
use crate::clock::unix_seconds;
use crate::metrics::{Call, Method, Metrics};

/// Istio's certificate service: whoever proves who he is gets a certificate that says so.
#[derive(Clone)]
pub(crate) struct CertificateService {
    pub(crate) gate: Arc<Gate>,
    pub(crate) authority: watch::Receiver<Arc<Authority>>,
    pub(crate) limits: Limits,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl NamedService for CertificateService {
    const NAME: &'static str = SERVICE;
}

/// Requests have some kilobytes: a key and a signature.
const MAX_REQUEST: usize = 256 << 10;

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl CertificateService {
    async fn create(
        self,
        request: Request<CertificateRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        self.metrics.ca.asked();
        self.metrics.rpc.received(Method::CreateCertificate);
        let (headers, extensions, request) = request.into_parts();
        let caller = Caller::of(&extensions, &headers.into_headers());
        let Ok(Some(identities)) = self.gate.identify(&caller).await else {
            self.metrics.ca.not_authenticated();
            return Err(Status::unauthenticated("request authenticate failure"));
        };
        let names: Vec<String> = identities.iter().map(ToString::to_string).collect();
        if impersonates(&request) {
            self.metrics.ca.not_authenticated();
            tracing::warn!("{} asks for a certificate of somebody else, which nobody may", names.join(", "));
            return Err(Status::unauthenticated("request impersonation authentication failure"));
        }
        if names.is_empty() {
            self.metrics.ca.nobody();
            return Err(Status::unauthenticated("request authenticate failure"));
        }
        let authority = Arc::clone(&self.authority.borrow());
        let (ttl, now) = (request.validity_duration, unix_seconds());
        let order = Order { csr: &request.csr, names: &names, ttl, now };
        match authority.sign(&order, self.limits) {
            Ok(cert_chain) => {
                self.metrics.ca.issued();
                self.metrics.rpc.sent(Method::CreateCertificate);
                tracing::debug!("a certificate for {}", names.join(", "));
                Ok(Response::new(CertificateResponse { cert_chain }))
            }
            Err(error) => {
                self.metrics.ca.not_signed(error.kind());
                tracing::warn!("no certificate for {}: {error}", names.join(", "));
                let text = format!("CSR signing error ({error})");
                Err(match error {
                    CaError::NotReady | CaError::CertGen(_) => Status::internal(text),
                    CaError::Csr(_) | CaError::Ttl { .. } => Status::invalid_argument(text),
                })
            }
        }
    }
}

/// Only nodes that are trusted may do that, and there are none outside Kubernetes.
fn impersonates(request: &CertificateRequest) -> bool {
    let field = request.metadata.as_ref().and_then(|all| all.fields.get("ImpersonatedIdentity"));
    let is_given = |kind: &Kind| !matches!(kind, Kind::StringValue(text) if text.is_empty());
    field.and_then(|value| value.kind.as_ref()).is_some_and(is_given)
}

impl UnaryService<CertificateRequest> for CertificateService {
    type Response = CertificateResponse;
    type Future = Answer<Result<Response<CertificateResponse>, Status>>;

    fn call(&mut self, request: Request<CertificateRequest>) -> Self::Future {
        Box::pin(self.clone().create(request))
    }
}

impl tower::Service<http::Request<Body>> for CertificateService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        let call = Call::begin(&self.metrics, &self.clock, Method::CreateCertificate);
        Box::pin(async move {
            if request.uri().path() != CREATE_CERTIFICATE {
                return Ok(Status::unimplemented(format!("{SERVICE} has only CreateCertificate")).into_http());
            }
            let codec: ProstCodec<CertificateResponse, CertificateRequest> = ProstCodec::default();
            let response =
                Grpc::new(codec).max_decoding_message_size(MAX_REQUEST).unary(service, request).await;
            // An error is in the headers, and without one there is a message.
            call.ended(Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code()));
            Ok(response)
        })
    }
}
