//! What is kept, in bytes of live allocations: counts, which are the same on every machine. Memory is most of what a large mesh
//! costs, and a table or a key that grows is seen nowhere else.

use std::alloc::System;
use std::sync::Arc;

use pilot_base::Name;
use pilot_config::{ReadOptions, read};
use pilot_incr::{Shard, Txn};
use pilot_model::{MeshConfig, MeshOptions, Proxy, ProxyId, ProxyType};
use pilot_pipeline::Pipeline;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SHARD: Shard = Shard(1);
const SERVICES: usize = 1000;
const PER_NAMESPACE: usize = 20;

/// A service of ten endpoints that nobody asks for; the same once somebody does; one more proxy of the same kind; the first
/// one of another namespace: a tenth more than they were when this was written.
const SERVICE: usize = 15_000;
const SERVED: usize = 26_000;
const PROXY: usize = 4_200;
const NAMESPACE: usize = 92_000;

/// Services as Kubernetes names them, of which each third has rules.
fn service(service: usize) -> String {
    let (namespace, host) = (format!("n{}", service / PER_NAMESPACE), format!("s{service}"));
    let host = format!("{host}.{namespace}.svc.cluster.local");
    let endpoints: Vec<String> = (0..10)
        .map(|i| {
            format!(
                "{{address: 10.{i}.{}.{}, labels: {{version: v{}}}}}",
                service / 250,
                service % 250,
                i % 2
            )
        })
        .collect();
    let head = |kind: &str| {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: {kind}, metadata: {{name: s{service}, namespace: {namespace}}}, spec:"
        )
    };
    let mut text = format!(
        "{} {{hosts: [{host}], ports: [{{name: http, number: 80, protocol: HTTP}}], resolution: STATIC, endpoints: [{}]}}}}",
        head("ServiceEntry"),
        endpoints.join(", ")
    );
    if service.is_multiple_of(3) {
        text += &format!(
            "\n---\n{} {{hosts: [{host}], http: [{{route: [{{destination: {{host: {host}, subset: v0}}}}]}}]}}}}\n---\n\
             {} {{host: {host}, subsets: [{{name: v0, labels: {{version: v0}}}}, {{name: v1, labels: {{version: v1}}}}]}}}}",
            head("VirtualService"),
            head("DestinationRule")
        );
    }
    text
}

fn live() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated - stats.bytes_deallocated
}

fn mesh(services: usize) -> Pipeline {
    let mut pipeline = Pipeline::new();
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    txn.upsert(&inputs.options, SHARD, (), MeshOptions::default());
    txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
    for at in 0..services {
        let reading = read(&service(at), "test.yaml", &ReadOptions::default()).expect("the test's own YAML");
        assert!(reading.broken.is_empty(), "{:?}", reading.issues);
        reading.objects.into_iter().for_each(|(_, _, object)| inputs.upsert(&mut txn, SHARD, object));
    }
    pipeline.commit(txn);
    pipeline
}

fn join(pipeline: &mut Pipeline, id: u64, namespace: &str) {
    let ip = format!("10.99.0.{id}").parse().expect("an address");
    let proxy = Proxy {
        dns_domain: Name::new(&format!("{namespace}.svc.cluster.local")),
        ..Proxy::new(ProxyType::Sidecar, &format!("p{id}.{namespace}"), namespace, vec![ip])
    };
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    txn.upsert(&inputs.proxies, SHARD, ProxyId(id), Arc::new(proxy));
    pipeline.commit(txn);
}

// One test, because everything that runs meanwhile would be counted too.
#[test]
fn what_is_kept_has_a_limit() {
    // What is made once for all meshes is no part of one.
    join(&mut mesh(3), 1, "n0");
    let empty = live();
    let mut pipeline = mesh(SERVICES);
    let idle = live() - empty;
    let mut join = |id, namespace| {
        let before = live();
        join(&mut pipeline, id, namespace);
        live().saturating_sub(before)
    };
    let first = join(1, "n0");
    // The second one makes room that others use.
    join(2, "n0");
    let more = join(3, "n0");
    let other = join(4, "n1");
    let (service, served) = (idle / SERVICES, (idle + first) / SERVICES);
    println!("bytes: a service {service}, served {served}, a proxy {more}, a namespace {other}");
    assert!(service <= SERVICE, "{service}: a service used to take less");
    assert!(served <= SERVED, "{served}: a service that somebody is served used to take less");
    assert!(more <= PROXY, "{more}: a proxy used to take less");
    assert!(other <= NAMESPACE, "{other}: a proxy of another namespace used to take less");
}
