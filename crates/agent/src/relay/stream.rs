//! One stream of a client, and the one to the control plane that belongs to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf as _, Bytes};
use hyper::body::Incoming;
use tokio::sync::mpsc;

use super::Relay;
use super::errands::{Fate, StreamErrands};
use super::snapshot::Recorder;
use crate::grpc::{Answer, Arriving, Call, Code, Outgoing, Rope, Status, framed};
use crate::metrics::Ended;
use crate::wire::{self, Protocol};

/// Far more than the configuration of any proxy. gRPC's libraries stop at 4 MiB unless they are told otherwise.
const LARGEST_RESPONSE: usize = 512 << 20;
/// What a client says that it has is a line for each resource.
const LARGEST_REQUEST: usize = 64 << 20;
/// Requests wait here without anybody waiting for them, or both ends could come to wait for each other. A control plane that
/// does not read this much is broken.
const MOST_WAITING: usize = 64 << 20;

/// Requests on their way to the control plane.
#[derive(Clone)]
struct Requests {
    pieces: mpsc::UnboundedSender<Bytes>,
    waiting: Arc<AtomicUsize>,
}

impl Requests {
    fn new() -> (Self, Outgoing) {
        let (pieces, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let outgoing = Outgoing::counted(receiver, Arc::clone(&waiting));
        (Self { pieces, waiting }, outgoing)
    }

    fn send(&self, message: Rope) -> Result<(), Status> {
        let length = message.remaining();
        if self.waiting.load(Ordering::Relaxed).saturating_add(length) > MOST_WAITING {
            let message =
                format!("the control plane reads no requests, and {MOST_WAITING} bytes are waiting");
            return Err(Status::new(Code::ResourceExhausted, message));
        }
        for piece in framed(message) {
            self.waiting.fetch_add(piece.len(), Ordering::Relaxed);
            // The stream that it belonged to is told of its end otherwise.
            let _gone = self.pieces.send(piece);
        }
        Ok(())
    }
}

/// Runs a stream until either side ends it, and says how.
pub(super) async fn run(relay: &Relay, protocol: Protocol, body: Incoming, answer: &Answer) -> Status {
    tokio::select! {
        status = converse(relay, protocol, body, answer) => status,
        () = answer.closed() => {
            tracing::debug!("the client ended its stream");
            relay.metrics.envoy_ended(Ended::Cancelled);
            Status::new(Code::Cancelled, "the client ended its stream")
        }
    }
}

async fn converse(relay: &Relay, protocol: Protocol, body: Incoming, answer: &Answer) -> Status {
    let mut arriving = Arriving::new(body, LARGEST_REQUEST);
    let server = relay.upstream.name();
    tokio::time::sleep(relay.pause()).await;
    let connection = match relay.upstream.connect().await {
        Ok(connection) => connection,
        Err(error) => {
            relay.with_backoff(crate::backoff::Backoff::failed);
            relay.metrics.istiod_connection_failures.inc();
            tracing::warn!(server, "no connection to the control plane: {error}");
            return match &relay.keeper {
                Some(keeper) => keeper.serve(relay, (protocol, arriving), answer, error.status()).await,
                None => error.status(),
            };
        }
    };
    let (requests, outgoing) = Requests::new();
    let recorder = relay.keeper.as_ref().map(|keeper| keeper.recorder(protocol));
    let downward = async {
        let called = relay.upstream.call(connection, protocol.path(), outgoing).await;
        let status = match called {
            Ok(call) => {
                tracing::info!(server, ?protocol, "stream to the control plane");
                responses(relay, protocol, call, answer, (&requests, recorder.as_ref())).await
            }
            Err(error) => error.status(),
        };
        ended_upstream(relay, &server, status)
    };
    let upward = async {
        let errands = relay.errands.on_stream(protocol);
        let status = upward(relay, errands, &mut arriving, (&requests, recorder.as_ref())).await;
        ended_downstream(relay, &status);
        status
    };
    tokio::select! {
        status = downward => status,
        status = upward => status,
    }
}

fn ended_upstream(relay: &Relay, server: &str, status: Status) -> Status {
    match status.code {
        Code::Ok | Code::Cancelled => {
            tracing::info!(server, %status, "the control plane ended the stream");
            relay.metrics.istiod_ended(Ended::Cancelled);
        }
        _ => {
            tracing::warn!(server, %status, "stream to the control plane failed");
            relay.with_backoff(crate::backoff::Backoff::failed);
            relay.metrics.istiod_ended(Ended::Failed);
        }
    }
    status
}

fn ended_downstream(relay: &Relay, status: &Status) {
    match status.code {
        Code::Ok | Code::Cancelled | Code::Unavailable => relay.metrics.envoy_ended(Ended::Cancelled),
        _ => {
            tracing::warn!(%status, "stream of the client failed");
            relay.metrics.envoy_ended(Ended::Failed);
        }
    }
}

/// From the client to the control plane.
async fn upward(
    relay: &Relay,
    mut errands: StreamErrands,
    arriving: &mut Arriving,
    (requests, recorder): (&Requests, Option<&Recorder>),
) -> Status {
    let protocol = errands.protocol();
    let mut health = relay.health.clone();
    let mut probes_end = false;
    loop {
        let next = tokio::select! {
            next = arriving.next() => next,
            changed = health.changed(), if !probes_end => {
                probes_end = changed.is_err();
                let message = health.borrow_and_update().as_ref().and_then(|event| errands.on_health(event));
                if let Some(message) = message
                    && let Err(status) = relay.count_and_send(requests, message.into())
                {
                    return status;
                }
                continue;
            }
        };
        let message = match next {
            Ok(Some(message)) => message,
            Ok(None) => return Status::ok(),
            Err(status) => return status.unwrap_or_else(Status::ok),
        };
        let Ok(request) = wire::request(&message, protocol) else {
            return Status::new(Code::InvalidArgument, "this is not a discovery request");
        };
        tracing::debug!(type_url = request.type_url, refused = request.refused, "request");
        let own = errands.on_request(&request, health.borrow().as_ref());
        if let Some(recorder) = recorder {
            recorder.on_request(&request);
        }
        let sent = std::iter::once(message)
            .chain(own.into_iter().map(Rope::from))
            .try_for_each(|message| relay.count_and_send(requests, message));
        if let Err(status) = sent {
            return status;
        }
    }
}

impl Relay {
    fn count_and_send(&self, requests: &Requests, message: Rope) -> Result<(), Status> {
        self.metrics.xds_proxy_requests.inc();
        requests.send(message)
    }
}

/// From the control plane to the client.
async fn responses(
    relay: &Relay,
    protocol: Protocol,
    call: Call,
    answer: &Answer,
    (requests, recorder): (&Requests, Option<&Recorder>),
) -> Status {
    let Call { body, connection: _open } = call;
    let mut arriving = Arriving::new(body, LARGEST_RESPONSE);
    loop {
        let message = match arriving.next().await {
            Ok(Some(message)) => message,
            Ok(None) => return Status::new(Code::Unavailable, "the control plane ended without a word"),
            Err(status) => return status.unwrap_or_else(Status::ok),
        };
        let Ok(response) = wire::response(&message) else {
            let message =
                format!("{} sent something that is not a discovery response", relay.upstream.name());
            return Status::new(Code::Internal, message);
        };
        relay.with_backoff(crate::backoff::Backoff::succeeded);
        relay.metrics.xds_proxy_responses.inc();
        tracing::debug!(type_url = response.type_url, bytes = message.remaining(), "response");
        match relay.errands.on_response(protocol, &response, &message) {
            Fate::Drop | Fate::Taken(None) => {}
            Fate::Taken(Some(reply)) => {
                if let Some(recorder) = recorder {
                    recorder.on_own(&response, &message);
                }
                if let Err(status) = relay.count_and_send(requests, reply.into()) {
                    return status;
                }
            }
            Fate::Forward => {
                if let Some(recorder) = recorder {
                    recorder.on_response(&response, &message);
                }
                if answer.send(framed(message)).await.is_none() {
                    return Status::new(Code::Cancelled, "the client has gone");
                }
            }
        }
    }
}
