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
        assert!(concerned.is_whole);
        let ids: Vec<u64> = concerned.proxies.into_iter().map(|id| id.0).collect();
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

/// A world of these objects, as a cluster has them.
fn cluster(text: &str) -> Pipeline {
    let mut pipeline = Pipeline::new();
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    objects(text).into_iter().for_each(|object| inputs.upsert(&mut txn, SHARD, object));
    pipeline.commit(txn);
    pipeline
}

fn says(known: &str, written: &str) -> bool {
    let pipeline = cluster(known);
    objects(written).iter().all(|object| pipeline.says(object))
}

#[test]
fn what_others_add_to_an_object_does_not_count() {
    const ENTRY: &str = "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e},
        spec: {hosts: [e.example], resolution: DNS, ports: [{number: 80, name: http}]}}";
    const WORKLOAD: &str = "{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: w},
        spec: {address: 10.1.0.9}}";
    for (written, known) in [
        (
            "{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: a}}}".to_owned(),
            "{apiVersion: v1, kind: Namespace, metadata: {name: shop, annotations: {who: tool},
              labels: {team: a, kubernetes.io/metadata.name: shop}}}"
                .to_owned(),
        ),
        (
            "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {type: NodePort, ports: [{port: 80}]}}".to_owned(),
            "{apiVersion: v1, kind: Service, metadata: {name: s, labels: {by: tool}, annotations: {by: tool}},
              spec: {type: NodePort, clusterIP: 10.96.0.9, clusterIPs: [10.96.0.9], internalTrafficPolicy: Cluster,
              ports: [{port: 80, protocol: TCP, targetPort: 80, nodePort: 30001}]}}"
                .to_owned(),
        ),
        (
            ENTRY.to_owned(),
            ENTRY.replace("spec:", "status: {addresses: [{value: 240.240.0.1, host: e.example}]}, spec:"),
        ),
        (
            WORKLOAD.to_owned(),
            WORKLOAD.replace("spec:", "status: {conditions: [{type: Healthy, status: 'False'}]}, spec:"),
        ),
    ] {
        assert!(says(&known, &written), "{written}");
        // What was written does count, once it is gone.
        assert!(!says(&written.replace("team: a", "team: b"), &written) || !written.contains("team"));
    }
}

#[test]
fn what_was_written_counts_also_outside_of_the_spec() {
    const SERVICE: &str =
        "{apiVersion: v1, kind: Service, metadata: {name: s, annotations: {}}, spec: {ports: [{port: 80}]}}";
    const ENTRY: &str =
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, annotations: {}},
        spec: {hosts: [e.example], resolution: DNS, ports: [{number: 80, name: http}]}}";
    const POLICY: &str = "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p, annotations: {}}, spec: {}}";
    const NAMESPACE: &str = "{apiVersion: v1, kind: Namespace, metadata: {name: shop, annotations: {}}}";
    let annotated = |text: &str, annotation: &str| {
        text.replace("annotations: {}", &format!("annotations: {{{annotation}}}"))
    };
    let specified = |more: &str| SERVICE.replace("spec: {", &format!("spec: {{{more}, "));
    for (before, after) in [
        (SERVICE, specified("trafficDistribution: PreferClose")),
        (SERVICE, specified("internalTrafficPolicy: Local")),
        (SERVICE, specified("type: ExternalName, externalName: example.com")),
        (SERVICE, specified("clusterIP: None")),
        (SERVICE, specified("externalIPs: [192.0.2.1]")),
        (SERVICE, annotated(SERVICE, "networking.istio.io/traffic-distribution: PreferSameNode")),
        (SERVICE, annotated(SERVICE, "alpha.istio.io/kubernetes-serviceaccounts: x")),
        (SERVICE, annotated(SERVICE, "alpha.istio.io/canonical-serviceaccounts: x")),
        (ENTRY, annotated(ENTRY, "networking.istio.io/traffic-distribution: PreferClose")),
        (ENTRY, annotated(ENTRY, "istio.io/connect-strategy: RACE_FIRST_TCP_CONNECT")),
        (POLICY, annotated(POLICY, "istio.io/dry-run: 'true'")),
        (NAMESPACE, annotated(NAMESPACE, "networking.istio.io/traffic-distribution: PreferClose")),
        (NAMESPACE, annotated(NAMESPACE, "pilot.dev/on-demand: 'true'")),
    ] {
        assert!(says(&after, &after), "{after}");
        assert!(!says(before, &after), "{after}");
        assert!(!says(&after, before) || after.contains("externalIPs"), "{after}");
    }
}
