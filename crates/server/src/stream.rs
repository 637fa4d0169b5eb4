//! One xDS stream: a session, and what feeds it.

use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Clock, Issue, Millis, Name, ObjectRef};
use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use pilot_model::{Proxy, ProxyId};
use pilot_xds::{Ask, Event, Pacing, Protocol, Request, Session, TypeUrl};
use tokio::sync::watch;
use tonic::{Status, Streaming};

use crate::body::Outgoing;
use crate::engine::EngineHandle;
use crate::metrics::Metrics;
use crate::node;
use crate::publish::{Feed, Seat};
use crate::shared_bodies::SharedBodies;

/// What all streams share.
pub(crate) struct Hub {
    pub(crate) engine: EngineHandle,
    pub(crate) bodies: SharedBodies,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    /// Becomes true when the server is to end.
    pub(crate) ending: watch::Receiver<bool>,
}

/// Who opens a stream and says nothing does not get to keep it.
const FIRST_REQUEST: Duration = Duration::from_secs(30);

/// No proxy asks for so many names, but somebody who wants to exhaust memory does.
const MAX_NAMES: usize = 500_000;

/// Types that Istio's agent and proxies may ask for and that have no content yet; asking is no mistake.
const NOT_SERVED: [&str; 6] = [
    "type.googleapis.com/istio.v1.HealthInformation",
    "type.googleapis.com/istio.networking.nds.v1.NameTable",
    "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig",
    "type.googleapis.com/istio.workload.Address",
    "type.googleapis.com/istio.workload.Workload",
    "type.googleapis.com/istio.security.Authorization",
];

/// The two requests, as far as they say the same.
pub(crate) trait Incoming: prost::Message + Default + 'static {
    const PROTOCOL: Protocol;
    fn node(&self) -> Option<&Node>;
    fn type_url(&self) -> &str;
    fn into_request(self, type_url: TypeUrl) -> Request;
}

fn names(names: Vec<String>) -> Vec<Name> {
    names.into_iter().map(Name::from).collect()
}

impl Incoming for DiscoveryRequest {
    const PROTOCOL: Protocol = Protocol::StateOfTheWorld;

    fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    fn type_url(&self) -> &str {
        &self.type_url
    }

    fn into_request(self, type_url: TypeUrl) -> Request {
        let returning = !self.version_info.is_empty();
        Request {
            type_url,
            nonce: self.response_nonce,
            error: self.error_detail.map(|status| status.message),
            ask: Ask::Names { names: names(self.resource_names), returning },
        }
    }
}

impl Incoming for DeltaDiscoveryRequest {
    const PROTOCOL: Protocol = Protocol::Delta;

    fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    fn type_url(&self) -> &str {
        &self.type_url
    }

    fn into_request(self, type_url: TypeUrl) -> Request {
        let initial = self.initial_resource_versions.into_iter();
        Request {
            type_url,
            nonce: self.response_nonce,
            error: self.error_detail.map(|status| status.message),
            ask: Ask::Changes {
                subscribe: names(self.resource_names_subscribe),
                unsubscribe: names(self.resource_names_unsubscribe),
                initial: initial.map(|(name, version)| (name.into(), version)).collect(),
            },
        }
    }
}

/// Runs a stream to its end.
pub(crate) async fn serve<M: Incoming>(hub: Arc<Hub>, incoming: Streaming<M>, out: Outgoing) -> Status {
    let mut ending = hub.ending.clone();
    let end = async move {
        // A server that forgot to say that it ends has ended.
        let _gone = ending.wait_for(|ending| *ending).await;
    };
    tokio::select! {
        status = begin_and_run(hub, incoming, out) => status,
        () = end => Status::unavailable("the server is shutting down"),
    }
}

async fn begin_and_run<M: Incoming>(hub: Arc<Hub>, mut incoming: Streaming<M>, out: Outgoing) -> Status {
    if !hub.engine.is_ready() {
        return Status::unavailable("server is not ready to serve discovery information");
    }
    let first = match tokio::time::timeout(FIRST_REQUEST, first_message(&mut incoming)).await {
        Ok(Ok(Some(first))) => first,
        Ok(Ok(None)) => return Status::ok(""),
        Ok(Err(status)) => return status,
        Err(_) => return Status::deadline_exceeded("no request came"),
    };
    let proxy = match node::proxy(first.node()) {
        Ok(proxy) => Arc::new(proxy),
        Err(error) => {
            tracing::warn!(target: "ads", "a proxy was refused: {error}");
            return Status::invalid_argument(error.to_string());
        }
    };
    let id = hub.engine.next_id();
    let guest = Guest { engine: hub.engine.clone(), id, metrics: Arc::clone(&hub.metrics), proxy };
    guest.metrics.connected(&guest.proxy.version_text);
    let Some(Seat(seat)) = guest.engine.connect(id, Arc::clone(&guest.proxy)).await else {
        return Status::unavailable("the server is shutting down");
    };
    tracing::info!(target: "ads", "new connection for node:{}-{id}", guest.proxy.name);
    let feed = seat.borrow().clone();
    let manifests = Arc::clone(&feed.borrow());
    let session = Session::new(M::PROTOCOL, manifests, Pacing::default());
    let status =
        Stream { hub, guest, session, seat, feed, out, refused: Vec::new() }.run(first, incoming).await;
    tracing::debug!(target: "ads", "connection {id} ended: {status}");
    status
}

/// A health report may come before the proxy introduces itself.
async fn first_message<M: Incoming>(incoming: &mut Streaming<M>) -> Result<Option<M>, Status> {
    loop {
        match incoming.message().await? {
            Some(message) if message.node().is_none() && message.type_url() == NOT_SERVED[0] => {}
            message => return Ok(message),
        }
    }
}

/// A proxy that is known to the engine for as long as this exists.
struct Guest {
    engine: EngineHandle,
    id: ProxyId,
    metrics: Arc<Metrics>,
    proxy: Arc<Proxy>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.engine.disconnect(self.id);
        self.metrics.disconnected(&self.proxy.version_text);
    }
}

struct Stream {
    hub: Arc<Hub>,
    guest: Guest,
    session: Session,
    seat: watch::Receiver<Feed>,
    feed: Feed,
    out: Outgoing,
    /// What was last told about refusals.
    refused: Vec<Issue>,
}

impl Stream {
    async fn run<M: Incoming>(mut self, first: M, mut incoming: Streaming<M>) -> Status {
        if let Err(status) = self.request(first) {
            return status;
        }
        loop {
            self.send_what_is_due();
            let wake = self.session.wake_at();
            tokio::select! {
                biased;
                message = incoming.message() => match message {
                    Ok(Some(message)) => {
                        if let Err(status) = self.request(message) {
                            return status;
                        }
                    }
                    Ok(None) => return Status::ok(""),
                    Err(status) => return status,
                },
                moved = self.seat.changed() => {
                    if moved.is_err() {
                        return Status::unavailable("the server is shutting down");
                    }
                    self.feed = self.seat.borrow_and_update().clone();
                    self.update();
                }
                // An audience whose last proxy has just been moved elsewhere ends before the move is seen.
                Ok(()) = self.feed.changed() => self.update(),
                () = until(wake, self.hub.clock.now()) => {}
            }
        }
    }

    fn update(&mut self) {
        let manifests = Arc::clone(&self.feed.borrow_and_update());
        self.session.update(manifests);
    }

    fn request<M: Incoming>(&mut self, message: M) -> Result<(), Status> {
        let Some(type_url) = TypeUrl::parse(message.type_url()) else {
            return self.unknown(message.type_url());
        };
        self.session.request(message.into_request(type_url));
        if self.session.names_asked() > MAX_NAMES {
            return Err(Status::resource_exhausted(format!("more than {MAX_NAMES} names were asked for")));
        }
        let events = self.session.take_events();
        if !events.is_empty() {
            self.note(events);
        }
        Ok(())
    }

    fn unknown(&self, url: &str) -> Result<(), Status> {
        if NOT_SERVED.contains(&url) {
            tracing::debug!(target: "ads", "{} asks for {url}, which is not served", self.guest.proxy.name);
            return Ok(());
        }
        let short: String = url.chars().take(200).collect();
        tracing::warn!(target: "ads", "{} asks for the unknown type {short:?}", self.guest.proxy.name);
        Err(Status::invalid_argument(format!("unknown type URL {short:?}")))
    }

    fn send_what_is_due(&mut self) {
        let protocol = self.session.protocol();
        while let Some(response) = self.session.poll(self.hub.clock.now()) {
            let tail = response.tail(protocol);
            let shared = self.hub.bodies.of(&response, protocol, response.len(protocol) - tail.len());
            self.hub.metrics.pushed(response.type_url, tail.len() + shared.len());
            self.out.send(&tail, shared);
        }
    }

    /// Counts what the client answered, and tells what it refuses where people look.
    fn note(&mut self, events: Vec<Event>) {
        let mut reason = String::new();
        for event in events {
            match event {
                Event::Accepted(_) => {}
                Event::Stale(type_url) => self.hub.metrics.stale(type_url),
                Event::Refused { type_url, error, .. } => {
                    self.hub.metrics.refused(type_url);
                    tracing::warn!(target: "ads", "{type_url}: ACK ERROR {}-{} {error}", self.guest.proxy.name, self.guest.id);
                    reason = error;
                }
            }
        }
        let object = || ObjectRef::new("Proxy", Name::empty(), self.guest.proxy.name.clone());
        let known = |path: &str| self.refused.iter().find(|issue| issue.path == path).cloned();
        let refused: Vec<Issue> = self
            .session
            .refused()
            .map(|(type_url, name)| {
                let path = format!("{type_url} {name}");
                let issue =
                    || Issue::error(object(), path.as_str(), format!("refused by the proxy: {reason}"));
                known(&path).unwrap_or_else(issue)
            })
            .collect();
        if refused != self.refused {
            self.refused.clone_from(&refused);
            self.guest.engine.refusals(self.guest.id, refused);
        }
    }
}

async fn until(wake: Option<Millis>, now: Millis) {
    match wake {
        Some(at) => tokio::time::sleep(Duration::from_millis(at.saturating_sub(now))).await,
        None => std::future::pending().await,
    }
}
