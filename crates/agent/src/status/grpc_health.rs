//! Asks the health service of gRPC. Its one question and one answer are a few bytes each.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method};
use prost::Message;

use crate::exchange::{ExchangeError, Limit, Received, Sent, Target};

const PATH: &str = "/grpc.health.v1.Health/Check";
const SERVING: i32 = 1;
const UNIMPLEMENTED: &str = "12";
/// An answer has seven bytes.
const LARGEST: usize = 4 << 10;
const PREFIX: usize = 5;

#[derive(Debug, thiserror::Error)]
pub(crate) enum HealthError {
    #[error("{0}")]
    Exchange(#[from] ExchangeError),
    /// There is such a service, and it is not well.
    #[error("the gRPC health service says that it does not serve")]
    NotServing,
    #[error("the server has no gRPC health service (grpc.health.v1.Health)")]
    Unimplemented,
    #[error("the gRPC health service answers with status {status}: {message}")]
    Status { status: String, message: String },
    #[error("the answer is not one of gRPC's")]
    Nonsense,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

pub(crate) async fn check(
    target: &Target,
    service: &str,
    user_agent: Option<&HeaderValue>,
) -> Result<(), HealthError> {
    let message = HealthCheckRequest { service: service.to_owned() }.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    let body: Vec<u8> = std::iter::once(0).chain(length).chain(message).collect();
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    if let Some(agent) = user_agent {
        headers.insert(USER_AGENT, agent.clone());
    }
    let sent = Sent {
        method: Method::POST,
        path: PATH.to_owned(),
        authority: authority(target),
        headers,
        body: Bytes::from(body),
    };
    judge(&target.exchange(sent, Limit::Refuse(LARGEST)).await?)
}

fn authority(target: &Target) -> String {
    match target.host.parse() {
        Ok(ip) => std::net::SocketAddr::new(ip, target.port).to_string(),
        Err(_) => format!("{}:{}", target.host, target.port),
    }
}

fn judge(received: &Received) -> Result<(), HealthError> {
    let text = |name: &str| {
        let value = received.trailers.get(name).or_else(|| received.headers.get(name));
        value.and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    match text("grpc-status").as_deref() {
        Some("0") => (),
        Some(UNIMPLEMENTED) => return Err(HealthError::Unimplemented),
        Some(status) => {
            let message = text("grpc-message").unwrap_or_default();
            return Err(HealthError::Status { status: status.to_owned(), message });
        }
        None => return Err(HealthError::Nonsense),
    }
    let message = received.body.get(PREFIX..).ok_or(HealthError::Nonsense)?;
    match HealthCheckResponse::decode(message) {
        Ok(response) if response.status == SERVING => Ok(()),
        Ok(_) => Err(HealthError::NotServing),
        Err(_) => Err(HealthError::Nonsense),
    }
}
