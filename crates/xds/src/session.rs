use std::cell::OnceCell;
use std::sync::Arc;

use pilot_base::{Hash64, Millis, Name};

use crate::owed::{Owed, Owing};
use crate::request::{Ask, Held, Initial, Protocol, Request};
use crate::response::Response;
use crate::watch::{Gone, Plan, Verdict, Watch};
use crate::{Commons, Encoded, Manifests, NameSet, Parts, TypeUrl, quirks};

/// How fast a session goes. Simulation and tests have their own.
#[derive(Clone, Copy, Debug)]
pub struct Pacing {
    pub patience: Millis,
    pub listener_interval: Millis,
}

impl Default for Pacing {
    fn default() -> Self {
        Self { patience: quirks::PATIENCE, listener_interval: quirks::LISTENER_INTERVAL }
    }
}

/// How long a response may be that is sent before somebody has made room for it.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Word of endpoints that are gone is more urgent than anything else.
    pub endpoints: usize,
    pub others: usize,
}

impl Room {
    pub const ALL: Self = Self { endpoints: usize::MAX, others: usize::MAX };

    pub fn of(self, type_url: TypeUrl) -> usize {
        if type_url == TypeUrl::Endpoint { self.endpoints } else { self.others }
    }
}

/// What happened on a stream that somebody else should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Accepted(TypeUrl),
    /// A client refused a response. `resources` are those to blame, empty while that is being found out.
    Refused {
        type_url: TypeUrl,
        error: String,
        resources: Vec<Name>,
    },
    /// An answer to a response that is not the last one.
    Stale(TypeUrl),
}

/// One stream.
///
/// Several moments of the mesh are kept. New clusters come from `latest`. Listeners and routes come from `up`, the newest
/// moment whose clusters stand at the client with endpoints. A cluster goes only when no moment has it from which the
/// client may still hold a listener or a route. So at no time does the client hold a route to a cluster that it does not
/// have.
///
/// A client that comes back with things of its own is asked nothing about them: until it has accepted our clusters, `up`
/// is unknown and it gets no new listeners and routes; until it has accepted those, it keeps its clusters.
pub struct Session {
    protocol: Protocol,
    pacing: Pacing,
    commons: Arc<Commons>,
    latest: Arc<Manifests>,
    up: Option<Arc<Manifests>>,
    /// Have our clusters ever stood at the client? Before, `up` is only hoped for.
    clusters_stood: bool,
    /// The moments from which the client may hold something, for each type; `None` if that cannot be known.
    past: [Option<Vec<Arc<Manifests>>>; TypeUrl::ALL.len()],
    /// The moment at which each type stands at the client.
    stands: [Option<Arc<Manifests>>; TypeUrl::ALL.len()],
    watches: [Option<Watch>; TypeUrl::ALL.len()],
    /// The names that the client said last, all at once, and how it wrote them.
    said: [Option<(Hash64, Arc<NameSet>)>; TypeUrl::ALL.len()],
    nonces: u64,
    /// Clusters that were sent on this stream and not yet followed by endpoints.
    owed: Owing,
    /// The moment for which it was last looked who of them is still owed, if nobody of them may wake up.
    owed_at: Option<Arc<Manifests>>,
    /// Until when listeners and routes wait for new clusters to be given endpoints.
    warm_by: Millis,
    polled_at: Millis,
    /// Did a moment move during this poll? Then other types may have something to send.
    moved: bool,
    /// Types of which something is due that there was no room for.
    held_back: [bool; TypeUrl::ALL.len()],
    /// Since when the client waits for room, and for how long it did before. Time stands still meanwhile: a client that
    /// was not sent what it should let go of is not slow.
    waits_since: Option<Millis>,
    waited: Millis,
    events: Vec<Event>,
}

impl Protocol {
    /// Is there anything in the plan that this protocol has words for?
    fn can_say(self, type_url: TypeUrl, plan: &Plan) -> bool {
        match self {
            Self::StateOfTheWorld if !type_url.is_whole_state() => !plan.changed.is_empty(),
            _ => !plan.is_empty(),
        }
    }
}

impl Session {
    pub fn new(protocol: Protocol, manifests: Arc<Manifests>, pacing: Pacing, commons: Arc<Commons>) -> Self {
        Self {
            protocol,
            pacing,
            commons,
            up: Some(Arc::clone(&manifests)),
            latest: manifests,
            clusters_stood: false,
            past: std::array::from_fn(|_| Some(Vec::new())),
            stands: Default::default(),
            watches: Default::default(),
            said: Default::default(),
            nonces: 0,
            owed: Owing::default(),
            owed_at: None,
            warm_by: 0,
            polled_at: 0,
            moved: false,
            held_back: Default::default(),
            waits_since: None,
            waited: 0,
            events: Vec::new(),
        }
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// There is something newer. Call [`poll`](Self::poll) afterwards.
    pub fn update(&mut self, manifests: Arc<Manifests>) {
        self.latest = manifests;
    }

    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Names as the client said them; those that name something are the copy that everybody shares.
    pub fn names(&self, type_url: TypeUrl, said: &[&str]) -> Arc<NameSet> {
        let latest = self.latest.of(type_url);
        let lookup = OnceCell::new();
        self.commons.names(said, |text| {
            let known = if self.commons.is_many(said.len()) {
                lookup.get_or_init(|| self.commons.lookup(latest)).get(text)
            } else {
                latest.get(text)
            };
            known.map_or_else(|| Name::new(text), |resource| resource.name().clone())
        })
    }

    /// The names that the client said last of a type, if it wrote them just like this. Who finds other names with the same hash
    /// deceives only itself.
    pub fn names_last_said(&self, type_url: TypeUrl, written: Hash64) -> Option<Arc<NameSet>> {
        let said = self.said[type_url.index()].as_ref().filter(|(hash, _)| *hash == written);
        said.map(|(_, names)| Arc::clone(names))
    }

    pub fn note_names(&mut self, type_url: TypeUrl, written: Hash64, names: Arc<NameSet>) {
        self.said[type_url.index()] = Some((written, names));
    }

    /// Does the client, which says these [entries](crate::held_entry), hold all that there is of a type, and nothing else, in
    /// the versions of now? That is [`Initial::Everything`] in a request that follows at once.
    pub fn holds_everything<'a>(
        &self,
        type_url: TypeUrl,
        said: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> bool {
        let latest = self.latest.of(type_url);
        said.len() > 0 && latest.at_once().is_none() && self.commons.digest(latest).is_said_by(said)
    }

    /// What the client says that it holds, for a request that follows at once. A version is missing that is not of our
    /// making.
    pub fn initial(&self, type_url: TypeUrl, said: &[(&str, Option<Hash64>)]) -> Initial {
        let latest = self.latest.of(type_url);
        // Nearly all requests say nothing of the kind, and finding a few is no reason to walk through everything.
        let lookup = self.commons.is_many(said.len()).then(|| self.commons.lookup(latest));
        let held = |(text, version): &(&str, Option<Hash64>)| {
            let served = lookup.as_ref().map_or_else(|| latest.get(text), |lookup| lookup.get(text)).cloned();
            let name = served.as_ref().map_or_else(|| Name::new(text), |resource| resource.name().clone());
            Held { name, version: *version, served }
        };
        Initial::Some(said.iter().map(held).collect())
    }

    /// Does a response bring a client something new that it can call? That what it asks for is gone is none.
    pub fn is_news(&self, response: &Response) -> bool {
        let latest = self.latest.of(response.type_url);
        matches!(response.type_url, TypeUrl::Cluster | TypeUrl::Endpoint)
            && response.resources.iter().any(|resource| latest.contains(resource.name()))
    }

    /// Has the client ever asked for anything?
    pub fn was_asked(&self) -> bool {
        self.watches.iter().any(Option::is_some)
    }

    /// Has the client been sent everything that is newest, as far as it asked for it?
    pub fn is_up_to_date(&self) -> bool {
        TypeUrl::ALL.into_iter().all(|t| self.was_sent(t, &self.latest))
    }

    /// The newest moment that the client has accepted, as far as it asked for things of a type; nothing while something of
    /// the type is under way. What it refused counts as answered: see [`refused`](Self::refused).
    pub fn accepted(&self, type_url: TypeUrl) -> Option<u64> {
        if self.stands_at(type_url, &self.latest) {
            return Some(self.latest.version);
        }
        let is_quiet = self.watch(type_url).is_some_and(Watch::is_quiet);
        self.stands[type_url.index()].as_ref().filter(|_| is_quiet).map(|moment| moment.version)
    }

    /// What the client has accepted of a type, in order of names.
    pub fn held(&self, type_url: TypeUrl) -> Vec<Arc<Encoded>> {
        self.watch(type_url).map(Watch::held).unwrap_or_default()
    }

    /// Resources that the client refuses as they are now.
    pub fn refused(&self) -> impl Iterator<Item = (TypeUrl, &Name)> {
        let watched = TypeUrl::ALL.into_iter().filter_map(|t| Some((t, self.watch(t)?)));
        watched.flat_map(|(type_url, watch)| watch.refused().map(move |name| (type_url, name)))
    }

    /// How much memory the names take that the client asked for one by one, about.
    pub fn names_size(&self) -> usize {
        self.watches.iter().flatten().map(Watch::names_size).sum()
    }

    /// The client said something. Call [`poll`](Self::poll) afterwards.
    pub fn request(&mut self, request: Request) {
        let Request { type_url, nonce, error, ask } = request;
        let watch = self.watches[type_url.index()].get_or_insert_with(|| Watch::new(type_url));
        // A client may make up a nonce for its first request of a type; there is nothing it could be an answer to.
        if watch.is_introduced() && !nonce.is_empty() {
            let verdict = watch.answered(&nonce, error.as_deref());
            // Without a response in flight this is how state-of-the-world clients tell new names.
            let known = watch.last_nonce().is_empty() || nonce == watch.last_nonce();
            if verdict == Verdict::Stale && (watch.in_flight() || !known) {
                self.events.push(Event::Stale(type_url));
                // A newer request with the whole list will follow the answer to what is in flight. Changes are said
                // only once, whatever the nonce.
                if matches!(ask, Ask::Names { .. }) {
                    return;
                }
            }
            self.note_verdict(type_url, verdict, error);
        }
        self.note_ask(type_url, ask);
    }

    fn note_verdict(&mut self, type_url: TypeUrl, verdict: Verdict, error: Option<String>) {
        let resources = match verdict {
            Verdict::Stale => return,
            Verdict::Accepted => {
                self.events.push(Event::Accepted(type_url));
                self.note_past(type_url);
                return;
            }
            Verdict::Refused(resources) => resources,
            Verdict::Searching => Vec::new(),
        };
        if type_url == TypeUrl::Cluster {
            // What the client will not have it need not be given endpoints for.
            self.owed.pay(resources.iter());
            if !self.clusters_stood {
                self.up = None;
            }
        }
        self.events.push(Event::Refused { type_url, error: error.unwrap_or_default(), resources });
    }

    fn note_ask(&mut self, type_url: TypeUrl, ask: Ask) {
        let at = type_url.index();
        let is_first = self.watch(type_url).is_some_and(|watch| !watch.is_introduced());
        if is_first && ask.is_return() && !self.clusters_stood {
            self.client_returns();
        }
        let Some(watch) = &mut self.watches[at] else { return };
        match ask {
            Ask::Names { names, .. } => {
                // Of what is under way the client may still take something, should it want it again.
                if !watch.set_names(&names) && !watch.in_flight() {
                    self.watches[at] = None;
                    self.stands[at] = None;
                    self.past[at] = Some(Vec::new());
                }
            }
            Ask::Changes { subscribe, unsubscribe, initial } => {
                watch.change_names(&subscribe, &unsubscribe);
                let latest = self.latest.of(type_url);
                match initial {
                    Initial::Everything if is_first => watch.set_everything(latest, &self.commons),
                    Initial::Some(held) if is_first && !held.is_empty() => watch.set_initial(held, latest),
                    Initial::Everything | Initial::Some(_) => (),
                }
            }
        }
        if type_url == TypeUrl::Endpoint {
            self.repeat_owed();
        }
    }

    /// The next response, if there is one to send now. Call until there is none.
    pub fn poll(&mut self, now: Millis) -> Option<Response> {
        if let Some(since) = self.waits_since.take() {
            self.waited += now.saturating_sub(since);
        }
        self.held_back = Default::default();
        self.poll_within(now, Room::ALL)
    }

    /// The next response that is no longer than `room`. What is longer is held back, and is worked out when there is room
    /// for it: so it is the newest then. Meanwhile other types go on, as far as they do not count on it.
    pub fn poll_within(&mut self, now: Millis, room: Room) -> Option<Response> {
        self.polled_at = self.waits_since.unwrap_or(now).saturating_sub(self.waited);
        let response = self.next(self.polled_at, room);
        if self.holds_back() {
            self.waits_since.get_or_insert(now);
        }
        response
    }

    fn next(&mut self, now: Millis, room: Room) -> Option<Response> {
        loop {
            self.moved = false;
            self.advance(now);
            if let Some(response) = TypeUrl::ALL.into_iter().find_map(|t| self.send(t, now, room)) {
                return Some(response);
            }
            self.advance(now);
            // Types that had nothing to send may have cleared the way for others.
            if !self.moved {
                return None;
            }
        }
    }

    /// Is something due that needs more room? Then [`poll`](Self::poll) has it.
    pub fn holds_back(&self) -> bool {
        self.held_back.contains(&true)
    }

    /// When [`poll`](Self::poll) should be called again though nothing happened.
    pub fn wake_at(&self) -> Option<Millis> {
        if self.waits_since.is_some() {
            return None;
        }
        let listener = self.watch(TypeUrl::Listener).filter(|w| !w.in_flight()).and_then(|w| w.last_sent);
        let behind = self.up.as_ref().is_some_and(|up| !self.stands_at(TypeUrl::Listener, up));
        let pace = listener.filter(|_| behind).map(|at| at + self.pacing.listener_interval);
        let warm = self.waits_for_endpoints().then_some(self.warm_by);
        let overstay = self.watches.iter().flatten().flat_map(Watch::overstay_since);
        let removals = overstay.map(|since| since + self.pacing.patience);
        // What is due and was not done waits for the client, not for time.
        let next = [pace, warm].into_iter().flatten().chain(removals).filter(|at| *at > self.polled_at).min();
        next.map(|at| at + self.waited)
    }

    /// The client has things that we do not know of.
    fn client_returns(&mut self) {
        self.up = None;
        self.past[TypeUrl::Listener.index()] = None;
        self.past[TypeUrl::Route.index()] = None;
        // Clusters may have been sent before that was known.
        self.owed.turn_all(Owed::New);
        self.warm_by = self.polled_at + self.pacing.patience;
    }

    /// The client holds this type as of the moment at which it stands: wholly, or with older things among it. Only of
    /// what can name clusters is that ever asked.
    fn note_past(&mut self, type_url: TypeUrl) {
        if !matches!(type_url, TypeUrl::Listener | TypeUrl::Route) {
            return;
        }
        // What it refused it goes on holding as it was.
        let wholly = self.watch(type_url).is_some_and(|watch| watch.is_clean() && !watch.is_refusing());
        let Some(moment) = self.stands[type_url.index()].clone() else { return };
        let past = &mut self.past[type_url.index()];
        let is_last =
            past.as_ref().and_then(|past| past.last()).is_some_and(|last| Arc::ptr_eq(last, &moment));
        match past {
            Some(past) if is_last && (past.len() == 1 || !wholly) => (),
            _ if wholly => {
                *past = Some(vec![moment]);
                self.moved = true;
            }
            // Only the clusters of a past moment are ever asked for.
            Some(past) if past.last().is_some_and(|last| same_clusters(last, &moment)) => {
                past.pop();
                past.push(moment);
            }
            // Each keeps all that there was alive, and who goes on refusing something could gather any number of them.
            Some(moments) if moments.len() >= MOST_MOMENTS => *past = None,
            Some(past) => past.push(moment),
            None => (),
        }
    }

    fn watch(&self, type_url: TypeUrl) -> Option<&Watch> {
        self.watches[type_url.index()].as_ref()
    }

    fn target(&self, type_url: TypeUrl) -> Option<&Arc<Manifests>> {
        match type_url {
            // While it is being found out which cluster is bad, good ones come and go.
            TypeUrl::Listener | TypeUrl::Route
                if self.watch(TypeUrl::Cluster).is_some_and(Watch::is_searching) =>
            {
                None
            }
            // What they name would come after them.
            TypeUrl::Listener | TypeUrl::Route if self.held_back[..type_url.index()].contains(&true) => None,
            TypeUrl::Listener | TypeUrl::Route => self.up.as_ref(),
            _ => Some(&self.latest),
        }
    }

    /// Does the client hold this type as of that moment? A type nobody asked for stands everywhere.
    fn stands_at(&self, type_url: TypeUrl, moment: &Arc<Manifests>) -> bool {
        self.watch(type_url).is_none_or(Watch::is_quiet) && self.was_sent(type_url, moment)
    }

    /// Has the client been sent this type as of that moment, whether it has answered or not?
    fn was_sent(&self, type_url: TypeUrl, moment: &Arc<Manifests>) -> bool {
        let Some(watch) = self.watch(type_url).filter(|watch| watch.wants_any()) else { return true };
        let stands = self.stands[type_url.index()].as_ref();
        !watch.is_searching() && stands.is_some_and(|at| at.of(type_url).same(moment.of(type_url)))
    }

    fn advance(&mut self, now: Millis) {
        if now >= self.warm_by {
            self.owed.turn(Owed::New, Owed::First);
        }
        self.forget_owed(now);
        match self.watch(TypeUrl::Cluster) {
            None => self.set_up(Arc::clone(&self.latest)),
            Some(clusters) if clusters.is_quiet() && !self.waits_for_endpoints() => {
                if let Some(at) = self.stands[TypeUrl::Cluster.index()].clone() {
                    self.set_up(at);
                    self.clusters_stood = true;
                }
            }
            Some(_) => (),
        }
    }

    /// A cluster that is gone, or is told its endpoints in another way, is owed none.
    fn forget_owed(&mut self, now: Millis) {
        let Some(at) = &self.stands[TypeUrl::Cluster.index()] else { return };
        if self.owed_at.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, at)) {
            return;
        }
        let clusters = self.watches[TypeUrl::Cluster.index()].as_ref();
        let (mut woken, mut asleep) = (false, false);
        self.owed.retain(|name, owed| {
            let wanted = at.of(TypeUrl::Cluster).contains(name) && at.of(TypeUrl::Endpoint).contains(name);
            match *owed {
                Owed::Asleep if wanted => {
                    *owed = Owed::New;
                    woken = true;
                    true
                }
                _ if wanted => true,
                Owed::Changed => false,
                Owed::First | Owed::New | Owed::Asleep => {
                    *owed = Owed::Asleep;
                    let stays = clusters.is_some_and(|clusters| clusters.holds(name));
                    asleep |= stays;
                    stays
                }
            }
        });
        self.owed_at = (!asleep).then(|| Arc::clone(at));
        if woken {
            self.warm_by = now + self.pacing.patience;
            self.repeat_owed();
        }
    }

    fn set_up(&mut self, moment: Arc<Manifests>) {
        self.moved |= !self.up.as_ref().is_some_and(|up| Arc::ptr_eq(up, &moment));
        self.up = Some(moment);
    }

    fn send(&mut self, type_url: TypeUrl, now: Millis, room: Room) -> Option<Response> {
        let at = type_url.index();
        if self.held_back[at] {
            return None;
        }
        let moment = Arc::clone(self.target(type_url)?);
        loop {
            let watch = self.watch(type_url).filter(|watch| !watch.in_flight())?;
            if self.stands_at(type_url, &moment) && !watch.overstays() {
                self.stands[at] = Some(moment);
                self.note_past(type_url);
                return None;
            }
            if type_url == TypeUrl::Listener && self.paced(watch, now) {
                return None;
            }
            let leaving = Leaving { session: self, type_url, now };
            let plan = watch.plan(moment.of(type_url), now, &leaving, &self.commons);
            let watch = self.watches[at].as_mut()?;
            if !self.protocol.can_say(type_url, &plan) && !watch.answer_due {
                let more_to_do = watch.settle(plan);
                self.stands[at] = Some(Arc::clone(&moment));
                self.note_past(type_url);
                if more_to_do {
                    continue;
                }
                return None;
            }
            let whole = self.protocol == Protocol::StateOfTheWorld && type_url.is_whole_state();
            let response = Response {
                type_url,
                version: moment.version.to_string(),
                nonce: (self.nonces + 1).to_string(),
                resources: if whole { watch.whole_state(&plan, &self.commons) } else { plan.changed.clone() },
                removed: plan.removed.clone(),
            };
            if response.len(self.protocol) > room.of(type_url) {
                self.held_back[at] = true;
                return None;
            }
            self.depart(&response, plan, &moment, now);
            return Some(response);
        }
    }

    fn depart(&mut self, response: &Response, plan: Plan, moment: &Arc<Manifests>, now: Millis) {
        let type_url = response.type_url;
        let at = type_url.index();
        self.nonces += 1;
        let watch = self.watches[at].as_mut().expect("only a type that is watched is sent");
        let sent = match type_url {
            TypeUrl::Cluster if plan.is_everything && self.owed.is_empty() => Sent::Everything,
            TypeUrl::Cluster => {
                let is_new = |name: &Name| !watch.surely_holds(name);
                Sent::Clusters(plan.changed.iter().map(|r| (r.name().clone(), is_new(r.name()))).collect())
            }
            TypeUrl::Endpoint if plan.is_everything => Sent::Everything,
            TypeUrl::Endpoint => Sent::Endpoints(plan.changed.clone()),
            _ => Sent::Other,
        };
        watch.depart(plan, response.nonce.clone(), now);
        self.stands[at] = Some(Arc::clone(moment));
        self.note_past(type_url);
        match (type_url, sent) {
            (TypeUrl::Endpoint, Sent::Everything) => self.owed.pay_all(moment),
            (_, Sent::Endpoints(changed)) => self.owed.pay(changed.iter().map(|r| r.name())),
            (_, Sent::Everything) => self.all_clusters_sent(moment, now),
            (_, Sent::Clusters(changed)) => self.clusters_sent(changed, now),
            (_, Sent::Other) => (),
        }
    }

    /// What a new client, which asks for endpoints before it asks for anything that would name their clusters, cannot use
    /// yet.
    fn unusable(&self) -> Owed {
        let waits = self.watch(TypeUrl::Endpoint).is_some() || self.clusters_stood || self.up.is_none();
        if waits { Owed::New } else { Owed::First }
    }

    fn all_clusters_sent(&mut self, moment: &Arc<Manifests>, now: Millis) {
        self.warm_by = now + self.pacing.patience;
        self.owed.owe_all(moment, self.unusable());
        self.owed_at.clone_from(&self.stands[TypeUrl::Cluster.index()]);
        self.repeat_owed();
    }

    /// Endpoints follow their clusters, and what refers to a new cluster waits until it has some.
    fn clusters_sent(&mut self, changed: Vec<(Name, bool)>, now: Millis) {
        if !self.waits_for_endpoints() {
            self.warm_by = now + self.pacing.patience;
        }
        let none_was_owed = self.owed.is_empty();
        let unusable = self.unusable();
        // What could not be used before a change cannot be used after it.
        for (name, is_new) in changed {
            if self.latest.of(TypeUrl::Endpoint).contains(&name) {
                let owed = if is_new { unusable } else { Owed::Changed };
                let after = |before: Owed| if before == Owed::Asleep { unusable } else { before.max(owed) };
                self.owed.owe(name, owed, after);
            }
        }
        if none_was_owed {
            self.owed_at.clone_from(&self.stands[TypeUrl::Cluster.index()]);
        }
        self.repeat_owed();
    }

    fn repeat_owed(&mut self) {
        // Who has nothing is sent everything.
        let endpoints = &mut self.watches[TypeUrl::Endpoint.index()];
        if let Some(watch) = endpoints.as_mut().filter(|watch| !watch.has_nothing()) {
            let due = self.owed.iter().filter(|(_, owed)| *owed != Owed::Asleep);
            due.for_each(|(name, _)| watch.repeat(name));
        }
    }

    fn waits_for_endpoints(&self) -> bool {
        self.owed.is_waited_for()
    }

    /// Listeners are not pushed again and again; but who asked is answered.
    fn paced(&self, watch: &Watch, now: Millis) -> bool {
        let answer = watch.answer_due || watch.owes_names();
        !answer && watch.last_sent.is_some_and(|at| now < at + self.pacing.listener_interval)
    }

    /// Can a listener or route that the client holds, or is about to get, name this cluster?
    fn may_be_named(&self, cluster: &Name) -> bool {
        let has = |moment: &Arc<Manifests>| moment.of(TypeUrl::Cluster).contains(cluster);
        let in_past = |t: TypeUrl| self.past[t.index()].as_ref().is_none_or(|past| past.iter().any(has));
        self.up.as_ref().is_none_or(has) || in_past(TypeUrl::Listener) || in_past(TypeUrl::Route)
    }
}

/// Of a client that holds things from more moments than this it is taken as unknown what they are: clusters then stay for
/// as long as for a client that came back.
const MOST_MOMENTS: usize = 8;

fn same_clusters(one: &Manifests, other: &Manifests) -> bool {
    one.of(TypeUrl::Cluster).same(other.of(TypeUrl::Cluster))
}

/// Which names of a type may leave, and what stands in for those that may not.
struct Leaving<'a> {
    session: &'a Session,
    type_url: TypeUrl,
    now: Millis,
}

impl Gone for Leaving<'_> {
    fn may_go(&self, name: &Name, since: Millis) -> bool {
        let session = self.session;
        let free = match self.type_url {
            TypeUrl::Cluster => !session.may_be_named(name),
            // A cluster that stays, for whatever reason, is never left without endpoints.
            TypeUrl::Endpoint => {
                return !session.watch(TypeUrl::Cluster).is_some_and(|clusters| clusters.holds(name));
            }
            // A listener that the client will not have changed goes on using its old routes, for as long as that takes.
            TypeUrl::Route if session.watch(TypeUrl::Listener).is_some_and(Watch::is_refusing) => {
                return false;
            }
            TypeUrl::Route => session.up.as_ref().is_some_and(|up| session.stands_at(TypeUrl::Listener, up)),
            _ => true,
        };
        free || self.now >= since + session.pacing.patience
    }

    /// A cluster that had to stay still needs its endpoints. A client that asks for clusters when a request needs them may
    /// hold a route to one that has just gone, and is given it as it was. A listener needs its route only if an older one, of which we
    /// know nothing, would serve in its place; a new listener waits without harm.
    fn stand_in(&self, name: &Name) -> Option<Arc<Encoded>> {
        let session = self.session;
        let stands = |t: TypeUrl| session.stands[t.index()].as_ref();
        let on_demand = session.latest.of(TypeUrl::Cluster).at_once().is_some();
        if on_demand && matches!(self.type_url, TypeUrl::Cluster | TypeUrl::Endpoint) {
            let routes = session.past[TypeUrl::Route.index()].iter().flatten();
            let mut moments = session.up.iter().chain(stands(TypeUrl::Cluster)).chain(routes);
            return moments.find_map(|moment| moment.of(self.type_url).get(name)).cloned();
        }
        let moments = match self.type_url {
            TypeUrl::Endpoint => [session.up.as_ref(), stands(TypeUrl::Cluster)],
            TypeUrl::Route if session.past[TypeUrl::Route.index()].is_none() => {
                [stands(TypeUrl::Listener), None]
            }
            _ => [None, None],
        };
        moments.into_iter().flatten().find_map(|moment| moment.of(self.type_url).get(name)).cloned()
    }
}

/// What was sent, as far as others need to know.
enum Sent {
    Everything,
    /// With whether each is new to the client.
    Clusters(Vec<(Name, bool)>),
    Endpoints(Parts),
    Other,
}
