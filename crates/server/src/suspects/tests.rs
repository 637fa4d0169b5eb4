use std::sync::Arc;

use pilot_base::{Labels, Name};
use pilot_config::{ReadOptions, read};
use pilot_incr::{Shard, Txn};
use pilot_model::{MeshConfig, MeshOptions, Object, Proxy, ProxyId, ProxyType};
use pilot_pipeline::Pipeline;
use pilot_xds::TypeUrl;

use super::{ROWS, Suspects};
use crate::refusal::Refusal;

const SHARD: Shard = Shard(1);
const SERVICES: usize = 1000;
const PROXIES: u64 = 300;
const LISTENER: &str = "virtualInbound";

fn objects(text: &str) -> Vec<Object> {
    let reading = read(text, "test.yaml", &ReadOptions::default()).expect("the test's own YAML");
    assert!(reading.broken.is_empty(), "{:?}\n{text}", reading.issues);
    reading.objects.into_iter().map(|(_, _, object)| object).collect()
}

fn commit(pipeline: &mut Pipeline, text: &str, more: impl FnOnce(&Pipeline, &mut Txn)) {
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    objects(text).into_iter().for_each(|object| inputs.upsert(&mut txn, SHARD, object));
    more(pipeline, &mut txn);
    pipeline.commit(txn);
}

/// Each of them is a workload of its own, and so is sent a listener of its own.
fn proxy(id: u64) -> Proxy {
    let ip = format!("10.9.{}.{}", id / 250, id % 250).parse().expect("an address");
    let label = Name::new("service.istio.io/canonical-name");
    Proxy {
        dns_domain: Name::new("shop.svc.cluster.local"),
        labels: Labels::new([(label, Name::from(format!("p{id}")))]),
        ..Proxy::new(ProxyType::Sidecar, &format!("p{id}.shop"), "shop", vec![ip])
    }
}

/// A filter was just added to everybody's listener.
fn mesh() -> Pipeline {
    let mut pipeline = Pipeline::new();
    let entry = |service: usize| {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: s{service}, namespace: shop}}, \
             spec: {{hosts: [s{service}.example], ports: [{{name: http, number: 80, protocol: HTTP}}], resolution: STATIC, \
             endpoints: [{{address: 10.1.0.1}}]}}}}"
        )
    };
    let entries: Vec<String> = (0..SERVICES).map(entry).collect();
    commit(&mut pipeline, &entries.join("\n---\n"), |pipeline, txn| {
        let inputs = pipeline.inputs();
        txn.upsert(&inputs.options, SHARD, (), MeshOptions::default());
        txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
        (0..PROXIES).for_each(|id| txn.upsert(&inputs.proxies, SHARD, ProxyId(id), Arc::new(proxy(id))));
    });
    let filter = "{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: bad, namespace: istio-system}, \
         spec: {configPatches: [{applyTo: LISTENER, match: {context: SIDECAR_INBOUND, listener: {name: virtualInbound}}, \
         patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: 5}}}]}}";
    commit(&mut pipeline, filter, |_, _| {});
    pipeline
}

fn refusal(proxy: u64) -> Vec<Refusal> {
    let (names, reason) = (vec![Name::new(LISTENER)], "no".to_owned());
    let proxy = Name::from(format!("p{proxy}.shop"));
    vec![Refusal { proxy, type_url: TypeUrl::Listener, names, more: 0, reason }]
}

#[test]
fn a_thousand_refusals_are_looked_into_bit_by_bit() {
    let pipeline = mesh();
    let mut suspects = Suspects::default();
    let cost = pipeline.behind(ProxyId(0), &Name::new(LISTENER)).looked_at;
    for id in 0..PROXIES {
        let issues = suspects.note(&pipeline, ProxyId(id), refusal(id));
        assert_eq!(issues.len(), 1, "that it refuses something is known at once: {issues:?}");
    }
    let (mut told, mut found) = (0, 0);
    while suspects.are_sought() {
        for (proxy, issues) in suspects.find(&pipeline) {
            let objects: Vec<String> = issues.iter().map(|issue| issue.object.to_string()).collect();
            assert_eq!(
                objects,
                [format!("Proxy p{}.shop", proxy.0), "EnvoyFilter istio-system/bad".to_owned()]
            );
            told += 1;
        }
        let rows = (suspects.found.len() - found) * cost;
        found = suspects.found.len();
        assert!(rows <= ROWS + cost, "{rows} rows between two commits");
    }
    assert_eq!(told, PROXIES);
    println!("{found} resources, {cost} rows for each");
    assert!(cost < 10 * SERVICES, "{cost}: no table is looked through again and again");
    assert!(found * cost > 2 * ROWS, "too little to tell");
    // What is known already is told at once.
    assert_eq!(suspects.note(&pipeline, ProxyId(7), refusal(7)).len(), 2);
    assert!(!suspects.are_sought());
}

#[test]
fn who_leaves_is_not_looked_into() {
    let pipeline = mesh();
    let mut suspects = Suspects::default();
    suspects.note(&pipeline, ProxyId(1), refusal(1));
    suspects.leave(ProxyId(1));
    assert!(!suspects.are_sought() && suspects.find(&pipeline).is_empty());
}
