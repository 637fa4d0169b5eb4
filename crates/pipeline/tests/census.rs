//! What operators watch is counted as it changes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pilot_config::{ReadOptions, read};
use pilot_incr::{Shard, Txn};
use pilot_model::{MeshConfig, MeshOptions};
use pilot_pipeline::{Census, Pipeline};

const SHARD: Shard = Shard(1);

const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {ports: [{name: http, port: 80}, {name: tcp, port: 90}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: cart-1, namespace: shop, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.0.0.1], conditions: {ready: true}}, {addresses: [10.0.0.2], conditions: {ready: false, terminating: false}}]
";

const RULES: &str = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: one, namespace: shop}
spec: {hosts: [cart], http: [{route: [{destination: {host: cart}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: two, namespace: shop}
spec: {hosts: [cart], http: [{route: [{destination: {host: cart}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: one, namespace: shop}
spec: {host: cart, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: two, namespace: shop}
spec: {host: cart, subsets: [{name: v2, labels: {version: v2}}]}
";

fn started() -> Pipeline {
    let mut pipeline = Pipeline::new();
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    txn.upsert(&inputs.options, SHARD, (), MeshOptions::default());
    txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
    pipeline.commit(txn);
    pipeline
}

fn told(pipeline: &mut Pipeline, text: &str) {
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    let reading = read(text, "world.yaml", &ReadOptions::default()).unwrap();
    inputs.replace(&mut txn, SHARD, reading.objects.into_iter().map(|(_, _, object)| object).collect());
    pipeline.commit(txn);
}

#[test]
fn what_is_lacking_and_what_is_said_twice_is_counted_as_it_comes_and_goes() {
    let mut pipeline = started();
    assert_eq!(pipeline.census(), Census::default());
    told(&mut pipeline, SERVICES);
    let services =
        Census { services: 1, ports_without_endpoints: 1, endpoints_not_ready: 1, ..Census::default() };
    assert_eq!(pipeline.census(), services);
    told(&mut pipeline, &format!("{SERVICES}---{RULES}"));
    assert_eq!(pipeline.census(), Census { contested_hosts: 1, repeated_subsets: 1, ..services });
    assert_eq!(pipeline.virtual_services(), 2);
    told(&mut pipeline, "");
    assert_eq!(pipeline.census(), Census::default());
}

#[test]
fn a_commit_names_the_objects_that_it_was_about() {
    let mut pipeline = started();
    told(&mut pipeline, SERVICES);
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    let reading = read(&RULES.replace("v2", "v3"), "world.yaml", &ReadOptions::default()).unwrap();
    reading.objects.into_iter().for_each(|(_, _, object)| inputs.upsert(&mut txn, SHARD, object));
    let objects: Vec<String> = pipeline.commit(txn).objects.iter().map(ToString::to_string).collect();
    let expected = [
        "VirtualService shop/one",
        "VirtualService shop/two",
        "DestinationRule shop/one",
        "DestinationRule shop/two",
    ];
    assert_eq!(objects, expected);
}
