//! What streams cost, in allocations: counts, which are the same on every machine. What a change costs a stream must not grow
//! with the mesh, and what everybody is sent must not be worked out again for each of them.

use std::alloc::System;
use std::sync::Arc;

use pilot_base::Name;
use pilot_xds::{
    Ask, Commons, Encoded, Initial, Layer, Manifest, Manifests, NameSet, Pacing, Protocol, Request, Session,
    TypeUrl,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations of a stream that tells its client of one endpoint, and of one whose client comes and is sent everything: a
/// quarter more than they were when this was written.
const CHANGE: usize = 15;
const NEWCOMER: usize = 56;

fn resource(t: TypeUrl, name: &str, content: &str) -> (Name, Option<Arc<Encoded>>) {
    (name.into(), Some(Arc::new(Encoded::new(t, name.into(), content.as_bytes()))))
}

/// Clusters with endpoints, a listener and its routes.
struct World {
    layers: [Layer; 4],
    version: u64,
}

impl World {
    fn new(size: usize) -> Self {
        let all = |t: TypeUrl| -> Layer {
            (0..size).map(|at| resource(t, &format!("cluster-{at}"), "as it was")).collect()
        };
        let one =
            |t: TypeUrl, name: &str| -> Layer { [resource(t, name, "as it was")].into_iter().collect() };
        let layers = [
            all(TypeUrl::Cluster),
            all(TypeUrl::Endpoint),
            one(TypeUrl::Listener, "listener"),
            one(TypeUrl::Route, "route"),
        ];
        Self { layers, version: 1 }
    }

    fn change_endpoint(&mut self) {
        self.version += 1;
        let (name, endpoints) = resource(TypeUrl::Endpoint, "cluster-3", &format!("as of {}", self.version));
        self.layers[1].insert(name, endpoints);
    }

    fn manifests(&self) -> Arc<Manifests> {
        let mut manifests = Manifests { version: self.version, ..Manifests::default() };
        let types = [TypeUrl::Cluster, TypeUrl::Endpoint, TypeUrl::Listener, TypeUrl::Route];
        for (t, layer) in types.into_iter().zip(&self.layers) {
            manifests.by_type[t.index()] = Manifest::new([layer.clone()]);
        }
        Arc::new(manifests)
    }

    fn names(&self) -> Arc<NameSet> {
        Arc::new(self.layers[1].iter().map(|(name, _)| name.clone()).collect())
    }
}

fn say(session: &mut Session, type_url: TypeUrl, nonce: String, names: &Arc<NameSet>) {
    let ask = match session.protocol() {
        Protocol::StateOfTheWorld => Ask::Names { names: Arc::clone(names), returning: false },
        Protocol::Delta => {
            let subscribe = if nonce.is_empty() { Arc::clone(names) } else { Arc::default() };
            Ask::Changes { subscribe, unsubscribe: Vec::new(), initial: Initial::Some(Vec::new()) }
        }
    };
    session.request(Request { type_url, nonce, error: None, ask });
}

/// A client that asks for everything and accepts it.
fn newcomer(
    protocol: Protocol,
    world: &Arc<Manifests>,
    (names, commons): (&Arc<NameSet>, &Arc<Commons>),
) -> Session {
    let mut session = Session::new(protocol, Arc::clone(world), Pacing::default(), Arc::clone(commons));
    let (nothing, route) = (Arc::default(), Arc::new([Name::from("route")].into_iter().collect()));
    for (t, names) in [
        (TypeUrl::Cluster, &nothing),
        (TypeUrl::Endpoint, names),
        (TypeUrl::Listener, &nothing),
        (TypeUrl::Route, &route),
    ] {
        say(&mut session, t, String::new(), names);
        accept(&mut session, names);
    }
    assert!(session.is_up_to_date());
    session
}

/// Takes all that is due.
fn accept(session: &mut Session, names: &Arc<NameSet>) -> usize {
    let mut told = 0;
    while let Some(response) = session.poll(0) {
        told += response.resources.iter().count();
        say(session, response.type_url, response.nonce, names);
    }
    told
}

fn cost_of_change(protocol: Protocol, size: usize) -> usize {
    let mut world = World::new(size);
    let (names, commons) = (world.names(), Arc::default());
    let mut session = newcomer(protocol, &world.manifests(), (&names, &commons));
    let mut cost = 0;
    for _ in 0..4 {
        world.change_endpoint();
        let newest = world.manifests();
        let region = Region::new(ALLOCATOR);
        session.update(newest);
        assert_eq!(accept(&mut session, &names), 1);
        cost = region.change().allocations;
    }
    cost
}

fn cost_of_newcomer(protocol: Protocol, size: usize) -> usize {
    let world = World::new(size);
    let (names, commons, manifests) = (world.names(), Arc::default(), world.manifests());
    let _first = newcomer(protocol, &manifests, (&names, &commons));
    let region = Region::new(ALLOCATOR);
    let _second = newcomer(protocol, &manifests, (&names, &commons));
    region.change().allocations
}

// One test, because everything that runs meanwhile would be counted too.
#[test]
fn a_stream_costs_what_it_tells() {
    for protocol in [Protocol::Delta, Protocol::StateOfTheWorld] {
        let [change, change_in_large] = [100, 10_000].map(|size| cost_of_change(protocol, size));
        let [newcomer, newcomer_in_large] = [100, 10_000].map(|size| cost_of_newcomer(protocol, size));
        println!(
            "{protocol:?}: a change {change}, {change_in_large} in a mesh a hundred times as large; a newcomer {newcomer}, {newcomer_in_large}"
        );
        // A tree of names is two levels higher.
        assert!(change_in_large <= change + 4 && change <= CHANGE, "{change_in_large} instead of {change}");
        assert!(newcomer_in_large <= newcomer + 4 && newcomer <= NEWCOMER, "{newcomer_in_large}, {newcomer}");
    }
}
