use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response, header};
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;

use crate::authenticate::Caller;
use crate::body::StreamBody;
use crate::incoming::{DeltaRequest, Incoming, SotwRequest};
use crate::messages::Messages;
use crate::metrics::{Call, Method};
use crate::stream::{Hub, serve};

/// The aggregated discovery service, on the level of HTTP: so that what is sent may share its bytes.
#[derive(Clone)]
pub(crate) struct Ads {
    pub(crate) hub: Arc<Hub>,
    /// The largest request that is read.
    pub(crate) max_request: usize,
}

impl NamedService for Ads {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl Ads {
    fn answer<M: Incoming>(&self, request: Request<Body>) -> Response<Body> {
        let caller = Caller::of(request.extensions(), request.headers());
        let incoming = Messages::<M>::new(request.into_body(), self.max_request, self.hub.readers.clone());
        let hub = Arc::clone(&self.hub);
        let call = Call::begin(&hub.metrics, &hub.clock, Method::of(M::PROTOCOL));
        let body = StreamBody::new(|out| {
            Box::pin(async move {
                let status = serve(hub, caller, incoming, out).await;
                call.ended(status.code());
                status
            })
        });
        let mut response = Response::new(Body::new(body));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}

impl tower::Service<Request<Body>> for Ads {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        let response = match method {
            "StreamAggregatedResources" => self.answer::<SotwRequest>(request),
            "DeltaAggregatedResources" => self.answer::<DeltaRequest>(request),
            other => Status::unimplemented(format!("{} has no method {other}", Self::NAME)).into_http(),
        };
        ready(Ok(response))
    }
}
