//! Secrets for Envoy, at a socket, as Istio's agent serves them.

mod place;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;

use crate::clock::unix_seconds;
use crate::grpc::{self, Answer, Arriving, Asked, Code, Rope, Socket, Status, framed};
use crate::identity::{Secret, SecretError, Secrets};
use crate::wire::{self, AnyMessage, OwnResponse, Protocol};
pub(crate) use place::Place;

const SERVICE: &str = "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets";
/// A name or a few.
const LARGEST_REQUEST: usize = 1 << 20;
/// A list of certificates that were taken back, which Envoy reads itself.
const REVOKED: &str = "/var/run/secrets/istio/crl/ca-crl.pem";

/// Serves until it is dropped.
pub(crate) async fn serve(socket: Socket, secrets: Arc<Secrets>) {
    grpc::serve(socket, move |asked| answer(Arc::clone(&secrets), asked)).await;
}

async fn answer(secrets: Arc<Secrets>, Asked { path, body, answer }: Asked) {
    if path != SERVICE {
        let message = format!("only {SERVICE} is served, not {path}");
        return answer.end(Status::new(Code::Unimplemented, message)).await;
    }
    let mut stream = Stream { names: Vec::new(), sent: Vec::new(), count: 0, told: String::new() };
    let status = tokio::select! {
        status = stream.run(&secrets, Arriving::new(body, LARGEST_REQUEST), &answer) => status,
        () = answer.closed() => Status::new(Code::Cancelled, "the client ended its stream"),
    };
    answer.end(status).await;
}

/// Envoy has one for each secret.
struct Stream {
    names: Vec<String>,
    sent: Vec<Secret>,
    count: u64,
    /// What was last said about a secret that is not there.
    told: String,
}

impl Stream {
    async fn run(&mut self, secrets: &Secrets, mut arriving: Arriving, answer: &Answer) -> Status {
        let mut changes = secrets.changes();
        loop {
            tokio::select! {
                next = arriving.next() => match next {
                    Ok(Some(message)) => {
                        if let Err(status) = self.asked(&message) {
                            return status;
                        }
                    }
                    Ok(None) => return Status::ok(),
                    Err(status) => return status.unwrap_or_else(Status::ok),
                },
                changed = changes.changed() => {
                    if changed.is_err() {
                        return Status::new(Code::Unavailable, "the agent is ending");
                    }
                }
            }
            if let Some(response) = self.due(secrets)
                && answer.send(framed(Rope::from(response))).await.is_none()
            {
                return Status::new(Code::Cancelled, "the client has gone");
            }
        }
    }

    fn asked(&mut self, message: &Rope) -> Result<(), Status> {
        let request = wire::request(message, Protocol::StateOfTheWorld)
            .map_err(|_| Status::new(Code::InvalidArgument, "this is not a discovery request"))?;
        if request.refused {
            tracing::warn!(names = ?self.names, "Envoy refuses a secret; its log says why");
        }
        if request.names != self.names {
            self.names = request.names;
            self.sent.clear();
        }
        Ok(())
    }

    /// A response, if there is something new. Until there is a secret nothing is said, and Envoy waits.
    fn due(&mut self, secrets: &Secrets) -> Option<Bytes> {
        let mut found = Vec::new();
        for name in &self.names {
            match secrets.get(name) {
                Ok(secret) => found.push(secret),
                Err(error) => {
                    let text = format!("secret {name} cannot be served: {error}");
                    if error == SecretError::NotYet {
                        tracing::debug!("{text}");
                    } else if text != self.told {
                        tracing::warn!("{text}");
                    }
                    self.told = text;
                    return None;
                }
            }
        }
        self.told.clear();
        if found.is_empty() || found == self.sent {
            return None;
        }
        self.count += 1;
        let resources = self.names.iter().zip(&found).map(|(name, secret)| encoded(name, secret)).collect();
        let response = OwnResponse {
            version: format!("{}/{}", unix_seconds(), self.count),
            resources,
            type_url: wire::SECRETS.to_owned(),
            nonce: self.count.to_string(),
            removed: Vec::new(),
        };
        self.sent = found;
        Some(response.encode_to_vec().into())
    }
}

fn encoded(name: &str, secret: &Secret) -> Bytes {
    let text = |text: &str| {
        Some(DataSource { filename: None, inline: Some(Bytes::copy_from_slice(text.as_bytes())) })
    };
    let mut message = SecretMessage { name: name.to_owned(), ..SecretMessage::default() };
    match secret {
        Secret::Pair { chain, key } => {
            message.certificate = Some(TlsCertificate { chain: text(chain), key: text(key) });
        }
        Secret::Roots(roots) => {
            let revoked = std::path::Path::new(REVOKED).exists();
            let crl = revoked.then(|| DataSource { filename: Some(REVOKED.to_owned()), inline: None });
            message.validation = Some(ValidationContext { trusted_ca: text(roots), crl });
        }
    }
    let any = AnyMessage { type_url: wire::SECRETS.to_owned(), value: message.encode_to_vec().into() };
    any.encode_to_vec().into()
}

/// `envoy.extensions.transport_sockets.tls.v3.Secret`
#[derive(Clone, PartialEq, prost::Message)]
struct SecretMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    certificate: Option<TlsCertificate>,
    #[prost(message, optional, tag = "4")]
    validation: Option<ValidationContext>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TlsCertificate {
    #[prost(message, optional, tag = "1")]
    chain: Option<DataSource>,
    #[prost(message, optional, tag = "2")]
    key: Option<DataSource>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ValidationContext {
    #[prost(message, optional, tag = "1")]
    trusted_ca: Option<DataSource>,
    #[prost(message, optional, tag = "7")]
    crl: Option<DataSource>,
}

/// One of the two.
#[derive(Clone, PartialEq, prost::Message)]
struct DataSource {
    #[prost(string, optional, tag = "1")]
    filename: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    inline: Option<Bytes>,
}
