//! What a change costs, in rows and in allocations: counts, which are the same on every machine. They must not grow with the
//! mesh, and a change of ours that makes the hot paths more expensive must be one that was meant.

use std::alloc::System;
use std::sync::Arc;

use pilot_base::Name;
use pilot_config::{ReadOptions, read};
use pilot_incr::{Shard, Txn};
use pilot_model::{MeshConfig, MeshOptions, Object, Proxy, ProxyId, ProxyType};
use pilot_pipeline::Pipeline;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SHARD: Shard = Shard(1);
const PER_NAMESPACE: usize = 20;

/// Allocations of a changed endpoint, of a changed route, of a service that comes and goes, and of a proxy that comes: a tenth
/// more than they were when this was written.
const ENDPOINT: usize = 305;
const ROUTE: usize = 540;
const SERVICE: [usize; 2] = [770, 330];
const PROXY: usize = 160;

#[derive(Clone, Copy, PartialEq, Debug)]
struct Cost {
    rows: u64,
    allocations: usize,
}

/// An entry with ten endpoints, of which one has an address that can be changed.
fn entry(service: usize, last: u8) -> String {
    let endpoints: Vec<String> = (0..9).map(|i| format!("{{address: 10.1.{i}.{}}}", service % 250)).collect();
    format!(
        "{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: s{service}, namespace: n{}}}, \
         spec: {{hosts: [s{service}.example], ports: [{{name: http, number: 80, protocol: HTTP}}], resolution: STATIC, \
         endpoints: [{}, {{address: 10.2.0.{last}}}]}}}}",
        service / PER_NAMESPACE,
        endpoints.join(", ")
    )
}

fn rule(service: usize, timeout: u8) -> String {
    format!(
        "{{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {{name: s{service}, namespace: n{}}}, \
         spec: {{hosts: [s{service}.example], http: [{{timeout: {timeout}s, route: [{{destination: {{host: s{service}.example}}}}]}}]}}}}",
        service / PER_NAMESPACE
    )
}

fn objects(text: &str) -> Vec<Object> {
    let reading = read(text, "test.yaml", &ReadOptions::default()).expect("the test's own YAML");
    assert!(reading.broken.is_empty(), "{:?}\n{text}", reading.issues);
    reading.objects.into_iter().map(|(_, _, object)| object).collect()
}

fn mesh(services: usize, proxies: u64) -> Pipeline {
    let mut pipeline = Pipeline::new();
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    txn.upsert(&inputs.options, SHARD, (), MeshOptions::default());
    txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
    for service in 0..services {
        objects(&entry(service, 1)).into_iter().for_each(|object| inputs.upsert(&mut txn, SHARD, object));
    }
    for id in 0..proxies {
        txn.upsert(&inputs.proxies, SHARD, ProxyId(id), Arc::new(proxy(id)));
    }
    pipeline.commit(txn);
    pipeline
}

fn proxy(id: u64) -> Proxy {
    let ip = format!("10.9.{}.{}", id / 250, id % 250).parse().expect("an address");
    Proxy {
        dns_domain: Name::new("n0.svc.cluster.local"),
        ..Proxy::new(ProxyType::Sidecar, &format!("p{id}.n0"), "n0", vec![ip])
    }
}

fn rows(pipeline: &Pipeline) -> u64 {
    pipeline.stats().iter().map(|table| table.computed).sum()
}

/// What it costs to change something back and forth.
fn cost(pipeline: &mut Pipeline, text: impl Fn(u8) -> String) -> Cost {
    let mut last = Cost { rows: 0, allocations: 0 };
    // The first rounds make room that later ones use again.
    for round in 0..6 {
        let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
        objects(&text(2 + round % 2)).into_iter().for_each(|object| inputs.upsert(&mut txn, SHARD, object));
        let before = rows(pipeline);
        let region = Region::new(ALLOCATOR);
        let changes = pipeline.commit(txn);
        let allocations = region.change().allocations;
        assert!(!changes.manifests.is_empty(), "somebody is told");
        last = Cost { rows: rows(pipeline) - before, allocations };
    }
    last
}

/// What it costs that a service comes, and that it goes.
fn costs_of_service(services: usize, proxies: u64) -> [Cost; 2] {
    let mut pipeline = mesh(services, proxies);
    let mut costs = [Cost { rows: 0, allocations: 0 }; 2];
    // The first rounds make room that later ones use again.
    for _ in 0..3 {
        for (cost, comes) in costs.iter_mut().zip([true, false]) {
            let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
            for object in objects(&entry(services, 1)) {
                if comes {
                    inputs.upsert(&mut txn, SHARD, object);
                } else {
                    inputs.remove(&mut txn, SHARD, object.key());
                }
            }
            let before = rows(&pipeline);
            let region = Region::new(ALLOCATOR);
            pipeline.commit(txn);
            let allocations = region.change().allocations;
            *cost = Cost { rows: rows(&pipeline) - before, allocations };
        }
    }
    costs
}

/// What it costs that a proxy comes which is sent what another one is sent already.
fn cost_of_proxy(pipeline: &mut Pipeline, id: u64) -> Cost {
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    txn.upsert(&inputs.proxies, SHARD, ProxyId(id), Arc::new(proxy(id)));
    let before = rows(pipeline);
    let region = Region::new(ALLOCATOR);
    pipeline.commit(txn);
    let allocations = region.change().allocations;
    Cost { rows: rows(pipeline) - before, allocations }
}

// One test, because everything that runs meanwhile would be counted too.
#[test]
fn a_change_costs_what_it_changes() {
    let endpoint = |services, proxies| cost(&mut mesh(services, proxies), |last| entry(7, last));
    let route = |services, proxies| cost(&mut mesh(services, proxies), |timeout| rule(7, timeout));
    let (small, large, crowded) = (endpoint(100, 5), endpoint(1000, 5), endpoint(100, 500));
    println!(
        "endpoint: {small:?}, ten times the services {large:?}, a hundred times the proxies {crowded:?}"
    );
    assert_eq!(small.rows, large.rows, "services do not matter to an endpoint");
    assert_eq!(small.rows, crowded.rows, "proxies of one audience do not matter");
    // Maps that share what they have in common have a level more, which is copied on the way.
    assert!(large.allocations <= small.allocations + 40, "{small:?} {large:?}");
    assert!(crowded.allocations <= small.allocations + 40, "{small:?} {crowded:?}");
    assert!(small.allocations <= ENDPOINT, "{small:?}: an endpoint used to cost less");
    let (small, large, crowded) = (route(100, 5), route(1000, 5), route(100, 500));
    println!("route: {small:?}, ten times the services {large:?}, a hundred times the proxies {crowded:?}");
    assert_eq!(small.rows, large.rows, "services do not matter to a route");
    assert_eq!(small.rows, crowded.rows, "proxies of one audience do not matter");
    assert!(large.allocations <= small.allocations + 40, "{small:?} {large:?}");
    assert!(small.allocations <= ROUTE, "{small:?}: a route used to cost less");
    let (small, large, crowded) =
        (costs_of_service(100, 5), costs_of_service(1000, 5), costs_of_service(100, 500));
    println!(
        "service comes and goes: {small:?}, ten times the services {large:?}, a hundred times the proxies {crowded:?}"
    );
    for (at, most) in SERVICE.into_iter().enumerate() {
        let (small, large, crowded) = (small[at], large[at], crowded[at]);
        assert_eq!(small.rows, large.rows, "other services do not matter to one that comes or goes");
        assert_eq!(small.rows, crowded.rows, "proxies of one audience do not matter");
        assert!(large.allocations <= small.allocations + 80, "{small:?} {large:?}");
        assert!(small.allocations <= most, "{small:?}: a service used to cost less");
    }
    let comes = |services, proxies| cost_of_proxy(&mut mesh(services, proxies), proxies);
    let (small, large, crowded) = (comes(100, 5), comes(1000, 5), comes(100, 500));
    println!("proxy: {small:?}, ten times the services {large:?}, a hundred times the proxies {crowded:?}");
    assert!(small.rows < 100, "{small:?}: what it is sent is there already");
    assert_eq!(small.rows, large.rows, "services do not matter to a proxy that comes");
    assert_eq!(small.rows, crowded.rows, "nor do other proxies");
    assert!(large.allocations <= small.allocations + 40, "{small:?} {large:?}");
    assert!(small.allocations <= PROXY, "{small:?}: a proxy used to cost less");
}
