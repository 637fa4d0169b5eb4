//! One xDS stream: a session, and what feeds it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_base::{Clock, Hash64, Micros, Millis, Name};
use pilot_ca::SpiffeId;
use pilot_model::{Proxy, ProxyId};
use pilot_xds::{Event, Pacing, Protocol, Response, Room, Session, TypeUrl};
use tokio::sync::watch;
use tonic::Status;

use crate::admission::Admission;
use crate::authenticate::{Caller, Gate};
use crate::body::Outgoing;
use crate::debug_stream::{self, DebugStreams};
use crate::engine::EngineHandle;
use crate::heard::Heard;
use crate::incoming::{Incoming, cut};
use crate::lanes::{LARGE, Lane, Lanes};
use crate::messages::{Begun, Messages};
use crate::metrics::{Method, Metrics};
use crate::node;
use crate::places;
use crate::publish::{Feed, Place, Seat};
use crate::readers::Readers;
use crate::refusal::Refusal;
use crate::registration::{Membership, Registrar, WorkloadHealth};
use crate::secret_access::{self, SecretReview, Verdict};
use crate::shared_bodies::SharedBodies;
use crate::standing::Standing;

/// What all streams share.
pub(crate) struct Hub {
    pub(crate) engine: EngineHandle,
    pub(crate) bodies: SharedBodies,
    pub(crate) lanes: Lanes,
    pub(crate) readers: Readers,
    /// Nothing if streams may begin as they come.
    pub(crate) admission: Option<Mutex<Admission>>,
    pub(crate) gate: Arc<Gate>,
    /// Nothing if there is nowhere to register workloads.
    pub(crate) registrar: Option<Arc<dyn Registrar>>,
    pub(crate) secrets: Option<Arc<dyn SecretReview>>,
    /// For people who ask over xDS what the server knows; nothing if there are no such pages.
    pub(crate) debug: Option<DebugStreams>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Arc<Metrics>,
    /// Is everything there that proxies need?
    pub(crate) serving: watch::Receiver<bool>,
    pub(crate) max_age: Option<Duration>,
    /// Becomes true when the server is to end.
    pub(crate) ending: watch::Receiver<bool>,
}

/// Who opens a stream and says nothing does not get to keep it.
const FIRST_REQUEST: Duration = Duration::from_secs(30);

/// After so long a gateway comes again whose rights nobody could tell.
const ASK_AGAIN: Millis = 60_000;

/// No proxy asks for so many names, but somebody who wants to exhaust memory does.
const MAX_NAMES_SIZE: usize = 64 << 20;

/// Endpoints of some thousand machines: more than that is no news of single ones, but everything anew.
const NEWS: usize = 1 << 20;

/// More of a reason nobody reads.
const MAX_REASON: usize = 1 << 10;
/// So many of the resources that a proxy refuses are named.
const NAMED: usize = 5;

/// How an agent tells whether its workload is well: as a request that is never answered, with an error if it is not.
const HEALTH: &str = "type.googleapis.com/istio.v1.HealthInformation";

/// Types that Istio's agent and proxies may ask for and that have no content yet; asking is no mistake.
const NOT_SERVED: [&str; 4] = [
    "type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig",
    "type.googleapis.com/istio.workload.Address",
    "type.googleapis.com/istio.workload.Workload",
    "type.googleapis.com/istio.security.Authorization",
];

/// Runs a stream to its end.
pub(crate) async fn serve<M: Incoming>(
    hub: Arc<Hub>,
    caller: Caller,
    incoming: Messages<M>,
    out: Outgoing,
) -> Status {
    let mut ending = hub.ending.clone();
    let end = async move {
        // A server that forgot to say that it ends has ended.
        let _gone = ending.wait_for(|ending| *ending).await;
    };
    tokio::select! {
        status = begin_and_run(hub, caller, incoming, out) => status,
        () = end => Status::unavailable("the server is shutting down"),
    }
}

async fn begin_and_run<M: Incoming>(
    hub: Arc<Hub>,
    caller: Caller,
    mut incoming: Messages<M>,
    out: Outgoing,
) -> Status {
    if !*hub.serving.borrow() {
        return Status::unavailable("server is not ready to serve discovery information");
    }
    if let Err(status) = admit(&hub).await {
        return status;
    }
    let identities = match hub.gate.identify(&caller).await {
        Ok(identities) => identities,
        Err(status) => return status,
    };
    let first = match tokio::time::timeout(FIRST_REQUEST, first_words(&mut incoming)).await {
        Ok(Ok(Some(first))) => first,
        Ok(Ok(None)) => return Status::ok(""),
        Ok(Err(status)) => return status,
        Err(_) => return Status::deadline_exceeded("no request came"),
    };
    let first = match (first, &hub.debug) {
        (Begun::Whole(asked), Some(debug)) if debug_stream::is_asked_for(asked.type_url()) => {
            let (standings, line) = (hub.engine.standings(), (&mut incoming, &out));
            return debug_stream::serve(debug, standings, identities.as_deref(), asked, line).await;
        }
        (first, _) => first,
    };
    let (mut proxy, first) = match introduced(first) {
        Ok(introduced) => introduced,
        Err(status) => return status,
    };
    let come_again = match prove(&hub, &mut proxy, identities.as_deref()).await {
        Ok(come_again) => come_again,
        Err(status) => return status,
    };
    let proxy = Arc::new(proxy);
    let membership = match join(&hub, &proxy, identities.as_deref()).await {
        Ok(membership) => membership,
        Err(status) => return status,
    };
    let id = hub.engine.next_id();
    let guest = Guest { engine: hub.engine.clone(), id, metrics: Arc::clone(&hub.metrics), proxy };
    let standing = hub.engine.standings().come(id, Arc::clone(&guest.proxy), hub.clock.now());
    guest.metrics.clients.connected(guest.proxy.version);
    let Some(Seat(seat)) = guest.engine.connect(id, Arc::clone(&guest.proxy)).await else {
        return Status::unavailable("the server is shutting down");
    };
    tracing::info!(target: "ads", "new connection for node:{}-{id}", guest.proxy.name);
    let Place { feed, .. } = seat.borrow().clone();
    let news = feed.borrow().clone();
    let heard = Heard::new(&news, Arc::clone(hub.engine.bill().guests()));
    let commons = Arc::clone(hub.bodies.commons());
    let place = At { version: news.manifests.version, joined: 0, unaccepted: None };
    let session = Session::new(M::PROTOCOL, news.manifests, Pacing::default(), commons);
    let too_old = hub.max_age.map(|age| hub.clock.now() + with_jitter(age, id));
    let end_at = [too_old, come_again].into_iter().flatten().min();
    let (reasons, told) = Default::default();
    let (lane, turn, keeping) = (Lane::First, None, None);
    let stream = Stream {
        hub,
        guest,
        membership,
        session,
        seat,
        feed,
        heard,
        out,
        lane,
        turn,
        keeping,
        reasons,
        told,
        end_at,
        standing,
        place,
    };
    let status = stream.run(first, incoming).await;
    tracing::debug!(target: "ads", "connection {id} ended: {status}");
    status
}

/// Whether a proxy is who it says it is, and what it may read. Tells when it is to come again, if that could not be asked.
async fn prove(
    hub: &Hub,
    proxy: &mut Proxy,
    identities: Option<&[SpiffeId]>,
) -> Result<Option<Millis>, Status> {
    let Some(identities) = identities else { return Ok(None) };
    hub.gate.authorize(proxy, identities)?;
    let (access, verdict) = secret_access::access(hub, proxy, identities).await;
    proxy.secrets = access;
    Ok((verdict == Verdict::Unknown).then(|| hub.clock.now() + ASK_AGAIN))
}

async fn admit(hub: &Hub) -> Result<(), Status> {
    let wait = match &hub.admission {
        Some(admission) => admission.lock().wait(hub.clock.now()),
        None => Some(0),
    };
    match wait {
        Some(0) => {}
        Some(wait) => tokio::time::sleep(Duration::from_millis(wait)).await,
        None => return Err(Status::resource_exhausted("too many streams begin at once: try again")),
    }
    Ok(())
}

/// A workload outside of the platform is registered before its proxy is told anything.
async fn join(
    hub: &Hub,
    proxy: &Proxy,
    identities: Option<&[SpiffeId]>,
) -> Result<Option<Box<dyn Membership>>, Status> {
    let Some(registrar) = &hub.registrar else { return Ok(None) };
    registrar.join(proxy, identities).await.map_err(|error| {
        tracing::warn!(target: "ads", "{} is not registered: {error}", proxy.name);
        error.into()
    })
}

/// A health report may come before the proxy introduces itself.
async fn first_words<M: Incoming>(incoming: &mut Messages<M>) -> Result<Option<Begun<M>>, Status> {
    loop {
        match incoming.begin().await? {
            Some(Begun::Whole(message)) if message.type_url() == HEALTH && message.node()?.is_none() => {}
            begun => return Ok(begun),
        }
    }
}

/// Who the proxy says it is, and what it said besides, as far as that was read.
fn introduced<M: Incoming>(first: Begun<M>) -> Result<(Proxy, Option<M>), Status> {
    let (node, first) = match first {
        Begun::Whole(message) => (message.node()?, Some(message)),
        Begun::Long(node) => (Some(*node), None),
    };
    let proxy = node::proxy(node.as_ref()).map_err(|error| {
        tracing::warn!(target: "ads", "a proxy was refused: {error}");
        Status::invalid_argument(error.to_string())
    })?;
    Ok((Proxy { takes_changes: M::PROTOCOL == Protocol::Delta, ..proxy }, first))
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
        self.engine.disconnect(self.id, self.proxy.name.clone());
        self.engine.standings().leave(self.id);
        self.metrics.clients.disconnected(&self.proxy);
    }
}

struct Stream {
    hub: Arc<Hub>,
    guest: Guest,
    membership: Option<Box<dyn Membership>>,
    session: Session,
    seat: watch::Receiver<Place>,
    feed: Feed,
    heard: Heard,
    out: Outgoing,
    lane: Lane,
    /// The place that is waited for, kept so that nobody loses his turn when something else happens meanwhile.
    turn: Option<Turn>,
    /// The place of what the client is reading.
    keeping: Option<(TypeUrl, places::Place)>,
    /// Why something of a type was last refused, while anything is.
    reasons: BTreeMap<TypeUrl, String>,
    /// What was last told about refusals.
    told: Vec<Refusal>,
    /// When the client is asked to come anew.
    end_at: Option<Millis>,
    standing: Arc<Standing>,
    place: At,
}

/// Which moment the client is being brought to.
struct At {
    /// That of the newest manifests, and of the move to another audience, if that was later.
    version: u64,
    joined: u64,
    /// When the first change was told that it was sent wholly and has not wholly accepted.
    unaccepted: Option<Micros>,
}

type Turn = Pin<Box<dyn Future<Output = Option<places::Place>> + Send>>;

impl Stream {
    async fn run<M: Incoming>(mut self, first: Option<M>, mut incoming: Messages<M>) -> Status {
        if let Some(Err(status)) = first.map(|first| self.request(first)) {
            return status;
        }
        loop {
            if let Some(at) = self.send_what_is_due() {
                // What was sent is handed to the connection before more is asked of the session: so a client that asks
                // without reading is not worked for.
                tokio::task::yield_now().await;
                self.hub.metrics.pushes.sent(self.hub.clock.micros().saturating_sub(at));
            }
            self.note_arrival();
            self.note_progress();
            tokio::task::coop::consume_budget().await;
            self.tell_refusals();
            let now = self.hub.clock.now();
            if self.end_at.is_some_and(|end| now >= end) {
                return Status::unavailable("the connection is old: connect anew");
            }
            let wake = [self.session.wake_at(), self.end_at].into_iter().flatten().min();
            tokio::select! {
                biased;
                message = incoming.next() => match message {
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
                    let Place { feed, moved_by } = self.seat.borrow_and_update().clone();
                    self.feed = feed;
                    if let Some(cause) = moved_by {
                        self.place.joined = cause.epoch;
                        self.heard.moved(&cause, &self.feed.borrow().causes);
                    }
                    self.update();
                }
                // An audience whose last proxy has just been moved elsewhere ends before the move is seen.
                Ok(()) = self.feed.changed() => self.update(),
                place = given(&mut self.turn) => self.send_large(place),
                () = self.standing.asked() => self.standing.answer(|type_url| self.session.held(type_url)),
                () = until(wake, now) => {}
            }
        }
    }

    fn update(&mut self) {
        let news = self.feed.borrow_and_update().clone();
        if let Some(cause) = self.heard.update(&news.causes) {
            let now = self.hub.clock.micros();
            self.hub.metrics.pushes.queued(now.saturating_sub(cause.published));
        }
        self.place.version = news.manifests.version;
        // Who came back with what it has may never be told anything of routes.
        if self.session.was_asked() && self.session.is_up_to_date() {
            self.lane = Lane::Push;
        }
        self.session.update(news.manifests);
    }

    /// A change has come to its end once the client was sent all of it.
    fn note_arrival(&mut self) {
        if self.heard.is_under_way()
            && self.session.is_up_to_date()
            && let Some(arrived) = self.heard.arrived()
        {
            self.hub.metrics.pushes.converged(self.hub.clock.micros().saturating_sub(arrived));
            self.place.unaccepted.get_or_insert(arrived);
        }
    }

    /// Writes down what the client has accepted, for whoever waits for it.
    fn note_progress(&mut self) {
        let At { version, joined, .. } = self.place;
        let newest = version.max(joined);
        // Who has all that an audience is to have has all that went before it was moved there.
        let through = TypeUrl::ALL.map(|type_url| {
            self.session.accepted(type_url).map(|moment| if moment == version { newest } else { moment })
        });
        let is_current = self.session.is_up_to_date() && through.iter().all(|at| *at == Some(newest));
        if is_current && let Some(arrived) = self.place.unaccepted.take() {
            self.hub.metrics.pushes.accepted(self.hub.clock.micros().saturating_sub(arrived));
        }
        let behind = (!is_current).then(|| self.hub.clock.now());
        if self.standing.come_to(through, behind) {
            self.guest.engine.standings().moved();
        }
    }

    fn request<M: Incoming>(&mut self, message: M) -> Result<(), Status> {
        let Some(type_url) = TypeUrl::parse(message.type_url()) else {
            if message.type_url() == HEALTH {
                self.note_health(message.error());
                return Ok(());
            }
            return self.unknown(message.type_url());
        };
        self.hub.metrics.clients.received(message.size());
        self.hub.metrics.rpc.received(Method::of(M::PROTOCOL));
        let code = message.refusal();
        let request = message.into_request(type_url, &mut self.session)?;
        self.session.request(request);
        self.standing.asked_for(type_url);
        if self.session.names_size() > MAX_NAMES_SIZE {
            return Err(Status::resource_exhausted("more names were asked for than any proxy needs"));
        }
        for event in self.session.take_events() {
            self.note(event, code);
        }
        // What is sent next is under way again.
        self.note_progress();
        Ok(())
    }

    fn note_health(&self, error: Option<&str>) {
        let health =
            error.map_or(WorkloadHealth::Healthy, |error| WorkloadHealth::Unhealthy(error.to_owned()));
        match &self.membership {
            Some(membership) => membership.health(health),
            None => tracing::debug!(
                target: "ads", "{} tells about its health, and is not registered", self.guest.proxy.name
            ),
        }
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

    /// Who has everything is told of endpoints at once, also when a machine ends on which many of them were.
    fn room(&self) -> Room {
        let endpoints = if self.lane == Lane::Push { NEWS } else { LARGE };
        Room { endpoints, others: LARGE }
    }

    /// Tells when the last of it was ready to be sent, if there was anything. What is large waits for a place, and is
    /// overtaken by what is small.
    fn send_what_is_due(&mut self) -> Option<Micros> {
        let mut sent = None;
        let mut began = self.hub.clock.micros();
        while let Some(response) = self.session.poll_within(self.hub.clock.now(), self.room()) {
            began = self.send(&response, began);
            sent = Some(began);
            if self.lane == Lane::Push && self.session.is_news(&response) {
                self.hub.lanes.told();
            }
        }
        if self.turn.is_none() && self.session.holds_back() {
            let (hub, lane) = (Arc::clone(&self.hub), self.lane);
            self.turn = Some(Box::pin(async move { hub.lanes.place(lane).await }));
        }
        self.hub.bodies.touched();
        sent
    }

    /// Sends what a place was waited for, as it is now. That of a push is kept until the client has answered.
    fn send_large(&mut self, place: Option<places::Place>) {
        self.turn = None;
        while let Some(response) = self.session.poll(self.hub.clock.now()) {
            self.send(&response, self.hub.clock.micros());
            if response.len(self.session.protocol()) > self.room().of(response.type_url) {
                let place = place.filter(|_| self.lane == Lane::Push);
                place.iter().for_each(|place| self.hub.lanes.keep(place));
                self.keeping = place.map(|place| (response.type_url, place));
                return;
            }
        }
    }

    /// Tells when it was done.
    fn send(&mut self, response: &Response, began: Micros) -> Micros {
        let protocol = self.session.protocol();
        let tail = response.tail(protocol);
        let len = response.len(protocol);
        let shared = self.hub.bodies.of(response, protocol, len - tail.len());
        self.out.send(&tail, shared);
        self.hub.metrics.rpc.sent(Method::of(protocol));
        self.heard.sent(response.type_url, &response.version, len);
        self.standing.sent(response.type_url, &response.nonce, self.hub.clock.now());
        let now = self.hub.clock.micros();
        self.hub.metrics.pushes.pushed(response.type_url, len, now.saturating_sub(began));
        tracing::debug!(
            target: "ads", "{}: PUSH for node:{}-{} resources:{} removed:{} size:{len}",
            response.type_url, self.guest.proxy.name, self.guest.id, response.resources.len(), response.removed.len()
        );
        now
    }

    fn note(&mut self, event: Event, code: i32) {
        if let Event::Accepted(answered) | Event::Refused { type_url: answered, .. } = &event {
            self.keeping.take_if(|(type_url, _)| type_url == answered);
        }
        match event {
            Event::Accepted(type_url) => {
                self.standing.answered(type_url, None);
                // Routes are what a proxy asks for last.
                if type_url == TypeUrl::Route {
                    self.lane = Lane::Push;
                }
            }
            Event::Stale(type_url) => self.hub.metrics.clients.stale(type_url),
            Event::Refused { type_url, error, .. } => {
                let (name, id) = (&self.guest.proxy.name, self.guest.id);
                tracing::warn!(target: "ads", "{type_url}: ACK ERROR {name}-{id} {error}");
                self.hub.metrics.clients.refused(type_url, name, code.into());
                let reason = cut(error, MAX_REASON);
                self.standing.answered(type_url, Some(&reason));
                self.reasons.insert(type_url, reason);
            }
        }
    }

    /// Tells what the client refuses where people look, when that has changed.
    fn tell_refusals(&mut self) {
        if self.reasons.is_empty() {
            return;
        }
        let mut by_type: BTreeMap<TypeUrl, Vec<&Name>> = BTreeMap::new();
        for (type_url, name) in self.session.refused() {
            by_type.entry(type_url).or_default().push(name);
        }
        let refusals: Vec<Refusal> = by_type.iter().map(|(t, names)| self.refusal(*t, names)).collect();
        if refusals != self.told {
            self.told.clone_from(&refusals);
            self.standing.refuses(&refusals);
            self.guest.engine.refusals(self.guest.id, refusals);
            self.guest.engine.standings().moved();
        }
        if by_type.is_empty() {
            self.reasons.clear();
        }
    }

    fn refusal(&self, type_url: TypeUrl, names: &[&Name]) -> Refusal {
        Refusal {
            proxy: self.guest.proxy.name.clone(),
            type_url,
            names: names.iter().take(NAMED).map(|name| (*name).clone()).collect(),
            more: names.len().saturating_sub(NAMED),
            reason: self.reasons.get(&type_url).cloned().unwrap_or_default(),
        }
    }
}

/// Up to a tenth more, so that proxies that came together do not leave together. The connection itself is told to take no
/// new streams when it is as old, so the stream stays a moment longer.
fn with_jitter(age: Duration, id: ProxyId) -> Millis {
    const AFTER: Millis = 500;
    let age = Millis::try_from(age.as_millis()).unwrap_or(Millis::MAX);
    let share = Hash64::of(&id.0.to_le_bytes()).0 % 100;
    age.saturating_add(AFTER).saturating_add(age / 1000 * share)
}

async fn given(turn: &mut Option<Turn>) -> Option<places::Place> {
    match turn {
        Some(turn) => turn.await,
        None => std::future::pending().await,
    }
}

async fn until(wake: Option<Millis>, now: Millis) {
    match wake {
        Some(at) => tokio::time::sleep(Duration::from_millis(at.saturating_sub(now))).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
