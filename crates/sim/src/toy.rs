//! A plane of made-up resources: small enough that a thousand seeds reach its corners.

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::Name;
use pilot_xds::{Encoded, Layer, Manifest, Manifests, TypeUrl};

use crate::plane::{Facts, Plane, Width};
use crate::rng::Rng;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cluster {
    version: u64,
    endpoints: u64,
    wants_endpoints: bool,
    poisoned: bool,
    kept_back: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Route {
    version: u64,
    targets: Vec<u64>,
    poisoned: bool,
}

/// Routes name clusters, listeners name routes; only what exists is ever named.
pub struct Toy {
    clusters: BTreeMap<u64, Cluster>,
    routes: BTreeMap<u64, Route>,
    listeners: BTreeMap<u64, (u64, Option<u64>)>,
    version: u64,
    poison: bool,
    width: Width,
    cache: Option<Arc<Manifests>>,
}

const CLUSTERS: u64 = 12;
const ROUTES: u64 = 4;
const LISTENERS: u64 = 5;

impl Toy {
    pub fn new(rng: &mut Rng, width: Width) -> Self {
        let mut toy = Self {
            clusters: BTreeMap::new(),
            routes: BTreeMap::new(),
            listeners: BTreeMap::new(),
            version: 0,
            poison: rng.chance(40),
            width,
            cache: None,
        };
        for _ in 0..rng.below(30) {
            toy.mutate(rng);
        }
        toy
    }

    /// Makes every resource one that clients accept.
    pub fn heal(&mut self) {
        for cluster in self.clusters.values_mut().filter(|c| c.poisoned) {
            cluster.poisoned = false;
            cluster.version += 1;
        }
        for route in self.routes.values_mut().filter(|r| r.poisoned) {
            route.poisoned = false;
            route.version += 1;
        }
        self.changed();
    }

    fn keeps_back(&self, id: u64) -> bool {
        self.width == Width::OnDemand && self.clusters.get(&id).is_some_and(|cluster| cluster.kept_back)
    }

    fn sent_at_once(&self, mut clusters: Layer) -> Layer {
        for (id, _) in self.clusters.iter().filter(|(_, cluster)| cluster.kept_back) {
            clusters.remove(&Name::from(format!("c{id}")));
        }
        clusters
    }

    fn changed(&mut self) {
        self.version += 1;
        self.cache = None;
    }

    fn mutate_cluster(&mut self, rng: &mut Rng) {
        let id = rng.below(CLUSTERS);
        let poisoned = self.poison && rng.chance(10);
        match self.clusters.get_mut(&id) {
            Some(_) if rng.chance(25) => {
                self.clusters.remove(&id);
                for route in self.routes.values_mut().filter(|route| route.targets.contains(&id)) {
                    route.targets.retain(|t| *t != id);
                    route.version += 1;
                }
            }
            Some(cluster) if rng.chance(50) => cluster.endpoints += 1,
            Some(cluster) => {
                cluster.version += 1;
                cluster.poisoned = poisoned;
                if rng.chance(10) {
                    cluster.wants_endpoints = !cluster.wants_endpoints;
                }
                if rng.chance(20) {
                    cluster.kept_back = !cluster.kept_back;
                }
            }
            None => {
                let (wants_endpoints, kept_back) = (rng.chance(80), rng.chance(60));
                let version = self.version;
                let new = Cluster { version, endpoints: 0, wants_endpoints, poisoned, kept_back };
                self.clusters.insert(id, new);
            }
        }
    }

    fn mutate_route(&mut self, rng: &mut Rng) {
        let id = rng.below(ROUTES);
        if rng.chance(15) {
            self.routes.remove(&id);
            for (version, route) in self.listeners.values_mut().filter(|(_, route)| *route == Some(id)) {
                *route = None;
                *version += 1;
            }
            return;
        }
        let existing: Vec<u64> = self.clusters.keys().copied().collect();
        let targets = (0..rng.below(4)).filter_map(|_| rng.pick(&existing).copied()).collect();
        let poisoned = self.poison && rng.chance(10);
        self.routes.insert(id, Route { version: self.version, targets, poisoned });
    }

    fn mutate_listener(&mut self, rng: &mut Rng) {
        let id = rng.below(LISTENERS);
        if rng.chance(30) {
            self.listeners.remove(&id);
            return;
        }
        let existing: Vec<u64> = self.routes.keys().copied().collect();
        self.listeners.insert(id, (self.version, rng.pick(&existing).copied()));
    }
}

/// A resource of the toy is a line of text: `poison`, `eds`, then `type:name` for each reference, where `odcds` stands for
/// a cluster that is asked for when it is needed.
fn encode(type_url: TypeUrl, name: &str, text: &str) -> (Name, Option<Arc<Encoded>>) {
    (Name::new(name), Some(Arc::new(Encoded::new(type_url, Name::new(name), text.as_bytes()))))
}

impl Plane for Toy {
    fn mutate(&mut self, rng: &mut Rng) {
        match rng.below(10) {
            0..6 => self.mutate_cluster(rng),
            6..9 => self.mutate_route(rng),
            _ => self.mutate_listener(rng),
        }
        self.changed();
    }

    fn manifests(&mut self) -> Arc<Manifests> {
        if let Some(manifests) = &self.cache {
            return Arc::clone(manifests);
        }
        let clusters: Layer = self
            .clusters
            .iter()
            .map(|(id, c)| {
                let eds = if c.wants_endpoints { "eds" } else { "" };
                let poison = if c.poisoned { "poison" } else { "" };
                encode(TypeUrl::Cluster, &format!("c{id}"), &format!("v{} {eds} {poison}", c.version))
            })
            .collect();
        let endpoints: Layer = self
            .clusters
            .iter()
            .filter(|(_, c)| c.wants_endpoints)
            .map(|(id, c)| encode(TypeUrl::Endpoint, &format!("c{id}"), &format!("v{}", c.endpoints)))
            .collect();
        let routes: Layer = self
            .routes
            .iter()
            .map(|(id, route)| {
                let word = |t: &u64| if self.keeps_back(*t) { "odcds" } else { "cds" };
                let targets: Vec<String> =
                    route.targets.iter().map(|t| format!("{}:c{t}", word(t))).collect();
                let poison = if route.poisoned { "poison" } else { "" };
                let text = format!("v{} {} {poison}", route.version, targets.join(" "));
                encode(TypeUrl::Route, &format!("r{id}"), &text)
            })
            .collect();
        let listeners: Layer = self
            .listeners
            .iter()
            .map(|(id, (version, route))| {
                let route = route.map(|r| format!("rds:r{r}")).unwrap_or_default();
                encode(TypeUrl::Listener, &format!("l{id}"), &format!("v{version} {route}"))
            })
            .collect();
        let mut manifests = Manifests { version: self.version, ..Manifests::default() };
        for (type_url, layer) in [
            (TypeUrl::Cluster, clusters),
            (TypeUrl::Endpoint, endpoints),
            (TypeUrl::Listener, listeners),
            (TypeUrl::Route, routes),
        ] {
            let at_once = layer.clone();
            let manifest = Manifest::new([layer]);
            manifests.by_type[type_url as usize] = match self.width {
                Width::OnDemand if type_url == TypeUrl::Cluster => {
                    manifest.with_at_once([self.sent_at_once(at_once)])
                }
                Width::OnDemand | Width::Everything => manifest,
            };
        }
        let manifests = Arc::new(manifests);
        self.cache = Some(Arc::clone(&manifests));
        manifests
    }

    fn facts(&self, _type_url: TypeUrl, message: &[u8]) -> Facts {
        let text = String::from_utf8_lossy(message);
        let mut facts = Facts::default();
        for word in text.split_whitespace() {
            match word.split_once(':') {
                Some(("cds", name)) => facts.refers_to.push((TypeUrl::Cluster, Name::new(name))),
                Some(("odcds", name)) => facts.asks_for.push(Name::new(name)),
                Some(("rds", name)) => facts.refers_to.push((TypeUrl::Route, Name::new(name))),
                _ => {
                    facts.wants_endpoints |= word == "eds";
                    facts.poisoned |= word == "poison";
                }
            }
        }
        facts
    }
}
