//! One stream under a seed: a plane that changes, a network that delays and breaks, a client that may refuse.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use pilot_base::{Millis, Name};
use pilot_xds::{
    Ask, Commons, Event, Held, Initial, Pacing, Protocol, Request, Response, Room, Session, TypeUrl, Why,
    held_entry,
};

use crate::client::{Client, Habit, Manner};
use crate::plane::Plane;
use crate::rng::Rng;

/// What a run found wrong.
pub type Findings = Vec<String>;

/// Nothing fits, or what is short, or everything.
const ROOMS: [usize; 4] = [0, 100, 200, usize::MAX];

pub struct Stream<'a, P: Plane> {
    pub plane: &'a mut P,
    rng: Rng,
    now: Millis,
    session: Session,
    /// What streams one after the other have in common, as far as it is worth sharing.
    commons: Arc<Commons>,
    protocol: Protocol,
    pub client: Client,
    to_server: VecDeque<(Millis, Request)>,
    to_client: VecDeque<(Millis, Response)>,
    /// What is longer waits for a place and is overtaken by everything else.
    room: Room,
    /// When there is a place for it.
    turn: Option<Millis>,
    pub refusals_seen: usize,
    /// What happened, line by line, if anybody wants to know.
    pub trace: Option<Vec<String>>,
}

impl<'a, P: Plane> Stream<'a, P> {
    pub fn new(plane: &'a mut P, protocol: Protocol, manner: Manner, mut rng: Rng) -> Self {
        // Small worlds are treated like large ones, and sometimes like small ones.
        let least = rng.pick(&[1, 1, 3, usize::MAX]).copied().unwrap_or(1);
        let commons = Arc::new(Commons::with_least(least));
        let session = Session::new(protocol, plane.manifests(), Pacing::default(), Arc::clone(&commons));
        let mut size = || rng.pick(&ROOMS).copied().unwrap_or(usize::MAX);
        let room = Room { endpoints: size(), others: size() };
        let habit = rng.pick(&[Habit::AllAtOnce, Habit::ClustersFirst]).copied();
        let client = Client::new(protocol, manner, habit.unwrap_or(Habit::AllAtOnce));
        let mut stream = Self {
            plane,
            rng,
            now: 0,
            session,
            commons,
            protocol,
            client,
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            room,
            turn: None,
            refusals_seen: 0,
            trace: None,
        };
        stream.client_connects();
        stream
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>6} {}", self.now, line()));
        }
    }

    fn client_connects(&mut self) {
        for request in self.client.connect() {
            self.send_to_server(request);
        }
    }

    fn send_to_server(&mut self, request: Request) {
        let at = self.later(self.to_server.back().map(|(at, _)| *at));
        self.to_server.push_back((at, request));
    }

    fn send_to_client(&mut self, response: Response) {
        let at = self.later(self.to_client.back().map(|(at, _)| *at));
        self.to_client.push_back((at, response));
    }

    /// Messages keep their order, however long each takes.
    fn later(&mut self, last: Option<Millis>) -> Millis {
        let delay = if self.rng.chance(10) { self.rng.below(300) } else { self.rng.below(5) };
        (self.now + delay).max(last.unwrap_or(0))
    }

    /// The server does what it can do now.
    fn pump(&mut self) {
        while let Some(response) = self.session.poll_within(self.now, self.room) {
            self.send(response);
        }
        if self.turn.is_none() && self.session.holds_back() {
            self.turn = Some(self.now + self.rng.below(2_000));
        }
        let refused = |event: &Event| matches!(event, Event::Refused { .. });
        self.refusals_seen += self.session.take_events().iter().filter(|e| refused(e)).count();
    }

    /// There is a place for something large.
    fn send_large(&mut self) {
        while let Some(response) = self.session.poll(self.now) {
            let is_large = response.len(self.protocol) > self.room.of(response.type_url);
            self.send(response);
            if is_large {
                return;
            }
        }
    }

    fn send(&mut self, response: Response) {
        self.note(|| {
            format!(
                "server sends {} #{}: {:?} gone {:?}",
                response.type_url, response.nonce, response.resources, response.removed
            )
        });
        self.send_to_client(response);
    }

    pub fn change(&mut self) {
        self.plane.mutate(&mut self.rng);
        let version = self.plane.manifests().version;
        self.note(|| format!("the plane changes to {version}"));
        self.publish();
    }

    pub fn publish(&mut self) {
        self.session.update(self.plane.manifests());
        self.pump();
    }

    /// The connection breaks; what was under way is lost; the client comes back, perhaps to another server.
    pub fn reset(&mut self) {
        self.note(|| "the connection breaks".to_owned());
        self.to_server.clear();
        self.to_client.clear();
        self.turn = None;
        if self.rng.chance(50) {
            self.commons.sweep();
        }
        let (manifests, commons) = (self.plane.manifests(), Arc::clone(&self.commons));
        self.session = Session::new(self.protocol, manifests, Pacing::default(), commons);
        self.client_connects();
    }

    /// Goes to the next thing that happens by itself. Nothing else wakes the server: a forgotten wake-up shows.
    fn step(&mut self) -> bool {
        let due = |queue: &VecDeque<(Millis, Response)>| queue.front().map(|(at, _)| *at);
        let arrivals = [self.to_server.front().map(|(at, _)| *at), due(&self.to_client), self.turn];
        let Some(next) = arrivals.into_iter().chain([self.session.wake_at()]).flatten().min() else {
            return false;
        };
        self.now = self.now.max(next);
        if let Some((_, request)) = self.to_server.pop_front_if(|(at, _)| *at <= self.now) {
            self.note(|| {
                format!(
                    "server gets  {} #{} {:?} {:?}",
                    request.type_url, request.nonce, request.error, request.ask
                )
            });
            let request = self.heard(request);
            self.session.request(request);
        }
        if self.turn.take_if(|at| *at <= self.now).is_some() {
            self.send_large();
        }
        if let Some((_, response)) = self.to_client.pop_front_if(|(at, _)| *at <= self.now) {
            self.note(|| format!("client gets  {} #{}", response.type_url, response.nonce));
            let dangling = self.client.dangling.len();
            for request in self.client.receive(&response, self.plane) {
                self.send_to_server(request);
            }
            for at in dangling..self.client.dangling.len() {
                let what = self.client.dangling[at].clone();
                self.note(|| format!("DANGLING: {what}"));
            }
        }
        self.pump();
        true
    }

    /// The request as a server makes it out of what arrives.
    fn heard(&self, request: Request) -> Request {
        let names = |names: &pilot_xds::NameSet| {
            let said: Vec<&str> = names.iter().map(Name::as_str).collect();
            self.session.names(request.type_url, &said)
        };
        let ask = match &request.ask {
            Ask::Names { names: asked, returning } => {
                Ask::Names { names: names(asked), returning: *returning }
            }
            Ask::Changes { subscribe, unsubscribe, initial: Initial::Some(held) } => {
                let entry = |held: &Held| held_entry(&held.name, held.version.unwrap_or_default());
                let entries: Vec<Vec<u8>> = held.iter().map(entry).collect();
                let said: Vec<_> = held.iter().map(|held| (held.name.as_str(), held.version)).collect();
                let (t, entries) = (request.type_url, entries.iter().map(|entry| &entry[..]));
                let initial = if self.session.holds_everything(t, entries) {
                    Initial::Everything
                } else {
                    self.session.initial(t, &said)
                };
                Ask::Changes { subscribe: names(subscribe), unsubscribe: unsubscribe.clone(), initial }
            }
            told @ Ask::Changes { initial: Initial::Everything, .. } => told.clone(),
        };
        Request { ask, ..request }
    }

    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            match self.rng.below(100) {
                0..30 => self.change(),
                30..33 if self.rng.chance(30) => self.reset(),
                33..40 => self.call(),
                _ => {
                    self.step();
                }
            }
        }
    }

    /// A request comes to the client, and sometimes it is the last of its kind.
    fn call(&mut self) {
        let asks = if self.rng.chance(85) {
            self.client.need(&mut self.rng)
        } else {
            self.client.let_go(&mut self.rng)
        };
        if let Some(request) = asks {
            self.note(|| format!("client asks   {:?}", request.ask));
            self.send_to_server(request);
        }
    }

    /// Lets everything under way arrive. Tells whether it came to rest.
    pub fn settle(&mut self) -> bool {
        for _ in 0..20_000 {
            if !self.step() {
                return true;
            }
        }
        false
    }

    /// Compares what the client holds with what there is, for all it should hold.
    pub fn compare(&mut self, refused: impl Fn(&Name) -> bool) -> Findings {
        let mut findings = Findings::new();
        let manifests = self.plane.manifests();
        for type_url in [TypeUrl::Cluster, TypeUrl::Endpoint, TypeUrl::Listener, TypeUrl::Route] {
            let held = self.client.names(type_url);
            let manifest = manifests.of(type_url);
            let is_wanted = |name: &Name| match type_url {
                TypeUrl::Cluster => manifest.is_at_once(name) || self.client.asks_for(type_url, name),
                TypeUrl::Endpoint if manifests.of(TypeUrl::Cluster).at_once().is_some() => {
                    self.client.asks_for(type_url, name)
                }
                TypeUrl::Route => self.client.wants_route(name),
                _ => true,
            };
            let expected: BTreeMap<Name, String> = manifest
                .iter()
                .filter(|r| is_wanted(r.name()))
                .map(|r| (r.name().clone(), r.version().to_string()))
                .collect();
            for (name, version) in &expected {
                if held.get(name) != Some(version) && !refused(name) {
                    findings.push(format!(
                        "{type_url} {name}: client has {:?}, should have {version}",
                        held.get(name)
                    ));
                }
            }
            // What was asked for once may be kept, if it is as it is now; and so may word that nobody has it.
            let is_kept = |name: &Name, version: &String| match manifest.get(name) {
                Some(resource) => !manifest.is_at_once(name) && resource.version().to_string() == *version,
                None => {
                    let word = manifest.unserved(name, Why::InVain).filter(|_| type_url == TypeUrl::Cluster);
                    word.is_some_and(|word| word.version().to_string() == *version)
                }
            };
            let more = held.iter().filter(|(name, _)| !expected.contains_key(*name));
            for (name, _) in more.filter(|(name, version)| !is_kept(name, version)) {
                findings.push(format!("{type_url} {name}: client still has what is gone"));
            }
        }
        let missing = self.client.missing().into_iter().filter(|name| !refused(name));
        findings.extend(missing.map(|name| format!("a listener names {name}, which the client lacks")));
        findings
    }
}
