//! Whom an object concerns: those whose configuration looked at it, and nobody else.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use pilot_base::Labels;
use pilot_config::{ReadOptions, read};
use pilot_incr::{Shard, Txn};
use pilot_model::{ConfigId, Kind, MeshConfig, MeshOptions, Object, Proxy, ProxyId, ProxyType};
use pilot_pipeline::Pipeline;

const SHARD: Shard = Shard(1);

const WORLD: &str = "
{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: open, namespace: a},
 spec: {hosts: [open.example], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.1.0.1}]}}
---
{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: own, namespace: b},
 spec: {hosts: [own.example], exportTo: [.], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.1.0.2}]}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: open, namespace: a},
 spec: {hosts: [open.example], http: [{timeout: 1s, route: [{destination: {host: open.example}}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: own, namespace: b},
 spec: {host: own.example, trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}}}
---
{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: picky, namespace: a},
 spec: {selector: {matchLabels: {app: one}}, action: DENY, rules: [{to: [{operation: {paths: [/no]}}]}]}}
---
{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: patch, namespace: b},
 spec: {configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 5s}}}]}}
---
{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: narrow, namespace: b}, spec: {egress: [{hosts: [./*]}]}}
---
{apiVersion: networking.istio.io/v1, kind: WorkloadGroup, metadata: {name: nobody, namespace: a}, spec: {template: {serviceAccount: x}}}
";

fn objects(text: &str) -> Vec<Object> {
    let reading = read(text, "test.yaml", &ReadOptions::default()).unwrap();
    assert!(reading.broken.is_empty(), "{:?}", reading.issues);
    reading.objects.into_iter().map(|(_, _, object)| object).collect()
}

/// Two proxies in `a`, which differ by their label, and one in `b`, which sees only its own namespace.
fn world() -> Pipeline {
    let mut pipeline = Pipeline::new();
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    txn.upsert(&inputs.options, SHARD, (), MeshOptions::default());
    txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
    objects(WORLD).into_iter().for_each(|object| inputs.upsert(&mut txn, SHARD, object));
    for (id, app, namespace) in [(1, "one", "a"), (2, "two", "a"), (3, "one", "b")] {
        let ip = [10, 9, 0, u8::try_from(id).unwrap()].into();
        let proxy = Proxy {
            dns_domain: format!("{namespace}.svc.cluster.local").into(),
            labels: Labels::new([("app", app)]),
            ..Proxy::new(ProxyType::Sidecar, &format!("p{id}.{namespace}"), namespace, vec![ip])
        };
        txn.upsert(&inputs.proxies, SHARD, ProxyId(id), Arc::new(proxy));
    }
    pipeline.commit(txn);
    pipeline
}

#[test]
fn an_object_concerns_those_who_looked_at_it() {
    let pipeline = world();
    for (kind, namespace, name, expected) in [
        (Kind::ServiceEntry, "a", "open", &[1, 2][..]),
        (Kind::ServiceEntry, "b", "own", &[3]),
        (Kind::VirtualService, "a", "open", &[1, 2]),
        (Kind::DestinationRule, "b", "own", &[3]),
        (Kind::AuthorizationPolicy, "a", "picky", &[1]),
        (Kind::EnvoyFilter, "b", "patch", &[3]),
        (Kind::Sidecar, "b", "narrow", &[3]),
        (Kind::WorkloadGroup, "a", "nobody", &[]),
        (Kind::VirtualService, "a", "missing", &[]),
    ] {
        let concerned = pipeline.concerned(&(kind, ConfigId::new(namespace, name)));
        let ids: Vec<u64> = concerned.into_iter().map(|id| id.0).collect();
        assert_eq!(ids, expected, "{kind} {namespace}/{name}");
    }
}

#[test]
fn an_object_is_known_by_what_it_says() {
    let mut pipeline = world();
    for object in objects(WORLD) {
        assert!(pipeline.says(&object), "{:?}", object.key());
        assert_eq!(pipeline.changed_at(&object.key()), Some(1));
    }
    let changed = objects(&WORLD.replace("timeout: 1s", "timeout: 2s"));
    let others: Vec<_> = changed.iter().filter(|object| !pipeline.says(object)).map(Object::key).collect();
    assert_eq!(others, [(Kind::VirtualService, ConfigId::new("a", "open"))]);
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    changed.iter().for_each(|object| inputs.upsert(&mut txn, SHARD, object.clone()));
    pipeline.commit(txn);
    for object in &changed {
        let epoch = if others.contains(&object.key()) { 2 } else { 1 };
        assert!(pipeline.says(object));
        assert_eq!(pipeline.changed_at(&object.key()), Some(epoch), "{:?}", object.key());
    }
}
