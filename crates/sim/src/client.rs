//! A client that does what Envoy does, without its traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::Name;
use pilot_xds::{Ask, Encoded, Initial, NameSet, Protocol, Request, Response, TypeUrl};

use crate::plane::{Facts, Plane};
use crate::rng::Rng;

/// A resource the client accepted.
#[derive(Clone, Debug)]
struct Held {
    resource: Arc<Encoded>,
    facts: Facts,
}

/// How a client words its refusals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// "error adding cluster c1: ..."
    NamesTheGuilty,
    /// "bad configuration"
    NamesNobody,
}

/// When a client asks for listeners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Habit {
    /// With its clusters, on every stream.
    AllAtOnce,
    /// When all its clusters have endpoints, as Envoy does; on later streams with everything else.
    ClustersFirst,
}

pub struct Client {
    protocol: Protocol,
    manner: Manner,
    habit: Habit,
    held: BTreeMap<TypeUrl, BTreeMap<Name, Held>>,
    /// Clusters that can be used: those without endpoints from the server, and those that were given some.
    usable: BTreeSet<Name>,
    /// Cluster definitions that came after the last endpoints and so are not in use yet.
    warming: BTreeSet<Name>,
    asked: BTreeMap<TypeUrl, BTreeSet<Name>>,
    last_nonce: BTreeMap<TypeUrl, String>,
    /// Clusters and routes of which this client has seen a version that it refused.
    refused: BTreeSet<Name>,
    /// The client came back with state that a state-of-the-world server cannot know of.
    unknown_past: bool,
    pub refusals: usize,
    pub received: usize,
    /// Every state in which something in use named something that was not there.
    pub dangling: Vec<String>,
}

impl Client {
    pub fn new(protocol: Protocol, manner: Manner, habit: Habit) -> Self {
        Self {
            protocol,
            manner,
            habit,
            held: BTreeMap::new(),
            usable: BTreeSet::new(),
            warming: BTreeSet::new(),
            asked: BTreeMap::new(),
            last_nonce: BTreeMap::new(),
            refused: BTreeSet::new(),
            unknown_past: false,
            refusals: 0,
            received: 0,
            dangling: Vec::new(),
        }
    }

    /// What the client says on a new stream: everything it wants and, in delta, everything it has.
    pub fn connect(&mut self) -> Vec<Request> {
        self.last_nonce.clear();
        self.unknown_past = self.protocol == Protocol::StateOfTheWorld && !self.held.is_empty();
        self.asked.entry(TypeUrl::Cluster).or_default();
        if self.habit == Habit::AllAtOnce {
            self.asked.entry(TypeUrl::Listener).or_default();
        }
        self.asked.keys().map(|t| self.first_request(*t)).collect()
    }

    fn first_request(&self, type_url: TypeUrl) -> Request {
        let mut names: BTreeSet<Name> = self.asked.get(&type_url).cloned().unwrap_or_default();
        // Who asks for everything and for something besides has to say so.
        if type_url.is_whole_state() && !names.is_empty() {
            names.insert(Name::new("*"));
        }
        let names: Arc<NameSet> = Arc::new(names.into_iter().collect());
        let ask = match self.protocol {
            Protocol::StateOfTheWorld => Ask::Names { names, returning: self.held.contains_key(&type_url) },
            Protocol::Delta => {
                let held = self.held.get(&type_url).into_iter().flatten();
                let held = held.map(|(name, h)| pilot_xds::Held {
                    name: name.clone(),
                    version: Some(h.resource.version()),
                    served: None,
                });
                let initial = Initial::Some(held.collect());
                Ask::Changes { subscribe: names, unsubscribe: vec![], initial }
            }
        };
        Request { type_url, nonce: String::new(), error: None, ask }
    }

    /// A request comes that is routed to a cluster which the client does not have: it asks for it.
    pub fn need(&mut self, rng: &mut Rng) -> Option<Request> {
        let asked = self.asked.get(&TypeUrl::Cluster)?;
        let held = self.held.get(&TypeUrl::Cluster);
        let lacks =
            |name: &&Name| !asked.contains(*name) && held.is_none_or(|held| !held.contains_key(*name));
        let needed: Vec<Name> = self.on_demand().into_iter().filter(|name| lacks(&name)).collect();
        let name = rng.pick(&needed)?.clone();
        self.asked.entry(TypeUrl::Cluster).or_default().insert(name.clone());
        Some(by_name(Some(name), vec![]))
    }

    /// The client no longer needs what it asked for. It keeps it until it is told more.
    pub fn let_go(&mut self, rng: &mut Rng) -> Option<Request> {
        let asked = self.asked.get_mut(&TypeUrl::Cluster)?;
        let all: Vec<Name> = asked.iter().cloned().collect();
        let name = rng.pick(&all)?.clone();
        asked.remove(&name);
        Some(by_name(None, vec![name]))
    }

    /// Did the client ask for it, other than by asking for everything?
    pub fn asks_for(&self, type_url: TypeUrl, name: &Name) -> bool {
        self.asked.get(&type_url).is_some_and(|asked| asked.contains(name))
    }

    /// Does a listener that the client holds name this route?
    pub fn wants_route(&self, name: &Name) -> bool {
        self.routes_named().contains(name)
    }

    pub fn names(&self, type_url: TypeUrl) -> BTreeMap<Name, String> {
        let held = self.held.get(&type_url).into_iter().flatten();
        held.map(|(name, h)| (name.clone(), h.resource.version().to_string())).collect()
    }

    /// Takes a response and answers it; names that it led to are asked for.
    pub fn receive(&mut self, response: &Response, plane: &dyn Plane) -> Vec<Request> {
        self.received += response.resources.len();
        let type_url = response.type_url;
        let mut bad = Vec::new();
        for resource in response.resources.iter() {
            // Sent before the server learned that it is no longer wanted.
            if !type_url.is_whole_state()
                && !self.asked.get(&type_url).is_some_and(|names| names.contains(resource.name()))
            {
                continue;
            }
            let facts = plane.facts(type_url, &resource.message());
            if facts.poisoned {
                bad.push(resource.name().clone());
                self.refused.insert(resource.name().clone());
            } else {
                self.accept(type_url, Held { resource: Arc::clone(resource), facts });
            }
        }
        let gone = self.gone(response, &bad);
        for name in &gone {
            self.check_leaving(type_url, name);
            self.forget(type_url, name);
        }
        self.check(type_url);
        let error = (!bad.is_empty()).then(|| match self.manner {
            Manner::NamesTheGuilty => format!(
                "cannot add {}: no good",
                bad.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(", ")
            ),
            Manner::NamesNobody => "no good".to_owned(),
        });
        self.refusals += usize::from(error.is_some());
        self.last_nonce.insert(type_url, response.nonce.clone());
        let mut requests = vec![self.answer(type_url, error)];
        requests.extend(self.follow(TypeUrl::Endpoint, self.clusters_with_endpoints()));
        requests.extend(self.follow(TypeUrl::Route, self.routes_named()));
        if self.warming.is_empty() && !self.asked.contains_key(&TypeUrl::Listener) {
            self.asked.entry(TypeUrl::Listener).or_default();
            requests.push(self.first_request(TypeUrl::Listener));
        }
        requests
    }

    /// Names that this response takes away.
    fn gone(&self, response: &Response, bad: &[Name]) -> Vec<Name> {
        let type_url = response.type_url;
        match self.protocol {
            Protocol::Delta => response.removed.clone(),
            Protocol::StateOfTheWorld if type_url.is_whole_state() => {
                let listed: BTreeSet<&Name> =
                    response.resources.iter().map(|r| r.name()).chain(bad).collect();
                let held = self.held.get(&type_url).into_iter().flatten();
                held.map(|(name, _)| name).filter(|name| !listed.contains(name)).cloned().collect()
            }
            Protocol::StateOfTheWorld => vec![],
        }
    }

    fn accept(&mut self, type_url: TypeUrl, held: Held) {
        let name = held.resource.name().clone();
        match type_url {
            TypeUrl::Cluster => {
                let same = self.held.get(&type_url).and_then(|h| h.get(&name));
                let changed = same.is_none_or(|old| old.resource.version() != held.resource.version());
                if !held.facts.wants_endpoints {
                    self.usable.insert(name.clone());
                    self.warming.remove(&name);
                } else if changed {
                    // The old definition, if there is one, stays in use until the new one has endpoints.
                    self.warming.insert(name.clone());
                }
            }
            TypeUrl::Endpoint if self.warming.remove(&name) => {
                self.usable.insert(name.clone());
            }
            _ => (),
        }
        self.held.entry(type_url).or_default().insert(name, held);
    }

    fn forget(&mut self, type_url: TypeUrl, name: &Name) {
        if let Some(held) = self.held.get_mut(&type_url) {
            held.remove(name);
        }
        if type_url == TypeUrl::Cluster {
            self.usable.remove(name);
            self.warming.remove(name);
        }
    }

    fn clusters_with_endpoints(&self) -> BTreeSet<Name> {
        let clusters = self.held.get(&TypeUrl::Cluster).into_iter().flatten();
        clusters.filter(|(_, h)| h.facts.wants_endpoints).map(|(name, _)| name.clone()).collect()
    }

    fn routes_named(&self) -> BTreeSet<Name> {
        let listeners = self.held.get(&TypeUrl::Listener).into_iter().flatten();
        let named = listeners.flat_map(|(_, h)| &h.facts.refers_to);
        named.filter(|(t, _)| *t == TypeUrl::Route).map(|(_, name)| name.clone()).collect()
    }

    /// Asks for what is named now, and no longer for what is not.
    fn follow(&mut self, type_url: TypeUrl, wanted: BTreeSet<Name>) -> Option<Request> {
        let asked = self.asked.entry(type_url).or_default();
        if *asked == wanted {
            return None;
        }
        let subscribe = Arc::new(wanted.difference(asked).cloned().collect());
        let unsubscribe: Vec<Name> = asked.difference(&wanted).cloned().collect();
        *asked = wanted.clone();
        for name in &unsubscribe {
            self.forget(type_url, name);
        }
        let nonce = self.last_nonce.get(&type_url).cloned().unwrap_or_default();
        let ask = match self.protocol {
            Protocol::StateOfTheWorld => {
                Ask::Names { names: Arc::new(wanted.into_iter().collect()), returning: false }
            }
            Protocol::Delta => Ask::Changes { subscribe, unsubscribe, initial: Initial::Some(vec![]) },
        };
        let nonce = if self.protocol == Protocol::Delta { String::new() } else { nonce };
        Some(Request { type_url, nonce, error: None, ask })
    }

    fn answer(&self, type_url: TypeUrl, error: Option<String>) -> Request {
        let ask = match self.protocol {
            Protocol::StateOfTheWorld => {
                let names = self.asked.get(&type_url).into_iter().flatten().cloned().collect();
                Ask::Names { names: Arc::new(names), returning: false }
            }
            Protocol::Delta => Ask::Changes {
                subscribe: Arc::default(),
                unsubscribe: vec![],
                initial: Initial::Some(vec![]),
            },
        };
        let nonce = self.last_nonce.get(&type_url).cloned().unwrap_or_default();
        Request { type_url, nonce, error, ask }
    }

    /// Clusters that listeners name and the client does not have: nobody would ask for them.
    pub fn missing(&self) -> Vec<Name> {
        let listeners = self.held.get(&TypeUrl::Listener).into_iter().flatten();
        let named = listeners.flat_map(|(_, held)| &held.facts.refers_to);
        let named = named.filter(|(kind, _)| *kind == TypeUrl::Cluster).map(|(_, name)| name);
        named.filter(|name| !self.usable.contains(*name)).cloned().collect()
    }

    /// Clusters that routes in use name and that are asked for when they are needed.
    fn on_demand(&self) -> BTreeSet<Name> {
        self.routes_in_use().flat_map(|(_, held)| held.facts.asks_for.iter().cloned()).collect()
    }

    /// Those that listeners name. One that the client will not have changed may name what has been gone for long, which is
    /// not the protocol's fault.
    fn routes_in_use(&self) -> impl Iterator<Item = (&Name, &Held)> {
        let named = self.routes_named();
        let routes = self.held.get(&TypeUrl::Route).into_iter().flatten();
        routes.filter(move |(name, _)| named.contains(*name) && !self.refused.contains(*name))
    }

    /// What was asked for is not taken away while requests are routed to it.
    fn check_leaving(&mut self, type_url: TypeUrl, name: &Name) {
        let is_used = type_url == TypeUrl::Cluster && self.usable.contains(name);
        if is_used && !self.unknown_past && self.on_demand().contains(name) {
            self.dangling.push(format!("cluster {name} goes while a route names it"));
        }
    }

    /// Does everything in use name only what can be used? What this client refused is not the protocol's fault.
    fn check(&mut self, received: TypeUrl) {
        self.unknown_past &= received != TypeUrl::Route;
        if self.unknown_past {
            return;
        }
        let is_lacking = |cluster: &Name| !self.usable.contains(cluster) && !self.refused.contains(cluster);
        let mut dangling = Vec::new();
        for (route, held) in self.routes_in_use() {
            let clusters = held.facts.refers_to.iter().filter(|(t, _)| *t == TypeUrl::Cluster);
            for (_, cluster) in clusters.filter(|(_, cluster)| is_lacking(cluster)) {
                dangling.push(format!("route {route} names cluster {cluster}"));
            }
        }
        self.dangling.append(&mut dangling);
    }
}

/// A change of what is asked for by name, beside everything.
fn by_name(subscribe: Option<Name>, unsubscribe: Vec<Name>) -> Request {
    let subscribe = Arc::new(subscribe.into_iter().collect());
    let ask = Ask::Changes { subscribe, unsubscribe, initial: Initial::Some(vec![]) };
    Request { type_url: TypeUrl::Cluster, nonce: String::new(), error: None, ask }
}
