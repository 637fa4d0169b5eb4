//! A hundred broken objects among a thousand good ones: each is told with its name, and what proxies are sent is what they
//! would be sent without them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use pilot_base::{Issue, Name};
use pilot_config::{ReadOptions, read};
use pilot_incr::{Shard, Txn};
use pilot_model::{Interception, MeshConfig, MeshOptions, Proxy, ProxyId, ProxyType};
use pilot_pipeline::Pipeline;
use pilot_xds::TypeUrl;

const SHARD: Shard = Shard(1);
const GOOD: usize = 1_000;

fn good() -> String {
    let mut text = String::new();
    for i in 0..GOOD / 2 {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "---\n{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: good-{i}}}, spec: {{\
             hosts: [good-{i}.com], resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], \
             endpoints: [{{address: 10.1.{}.{}}}]}}}}\n---\n\
             {{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {{name: good-{i}}}, spec: {{\
             hosts: [good-{i}.com], http: [{{route: [{{destination: {{host: good-{i}.com}}}}]}}]}}}}\n",
            i / 250,
            i % 250
        );
    }
    text
}

/// Mistakes of every kind, each of which speaks of hosts that good objects speak of too.
const MISTAKES: [(&str, &str, &str, &str); 20] = [
    ("networking.istio.io/v1", "VirtualService", "hosts: [good-1.com]", "spec"),
    (
        "networking.istio.io/v1",
        "VirtualService",
        "hosts: [good-1.com], http: [{match: [{uri: {regex: '['}}], route: [{destination: {host: good-1.com}}]}]",
        "uri",
    ),
    ("networking.istio.io/v1", "VirtualService", "hosts: [good-1.com], http: [{}]", "spec.http[0]"),
    (
        "networking.istio.io/v1",
        "VirtualService",
        "hosts: [good-1.com], http: [{timeout: soon, route: [{destination: {host: good-1.com}}]}]",
        "timeout",
    ),
    (
        "networking.istio.io/v1",
        "VirtualService",
        "hosts: [good-1.com], http: [{route: [{weight: -1, destination: {host: good-1.com}}]}]",
        "weight",
    ),
    (
        "networking.istio.io/v1",
        "VirtualService",
        "hosts: ['good 1'], http: [{route: [{destination: {host: good-1.com}}]}]",
        "hosts",
    ),
    (
        "networking.istio.io/v1",
        "VirtualService",
        "hosts: [good-1.com], tcp: [{match: [{destinationSubnets: [300.0.0.0/8]}], route: [{destination: {host: good-1.com}}]}]",
        "destinationSubnets",
    ),
    (
        "networking.istio.io/v1",
        "DestinationRule",
        "host: good-1.com, subsets: [{name: v1}, {name: v1}]",
        "subsets",
    ),
    (
        "networking.istio.io/v1",
        "DestinationRule",
        "host: good-1.com, trafficPolicy: {outlierDetection: {interval: 1us}}",
        "outlierDetection",
    ),
    ("networking.istio.io/v1", "DestinationRule", "host: ''", "host"),
    (
        "networking.istio.io/v1",
        "ServiceEntry",
        "hosts: [bad.com], resolution: STATIC, ports: [{number: 99999, name: http, protocol: HTTP}]",
        "ports",
    ),
    ("networking.istio.io/v1", "ServiceEntry", "hosts: [], resolution: STATIC", "hosts"),
    (
        "networking.istio.io/v1",
        "Gateway",
        "servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*']}]",
        "tls",
    ),
    ("networking.istio.io/v1", "Sidecar", "egress: [{hosts: [nonsense]}]", "hosts"),
    (
        "networking.istio.io/v1alpha3",
        "EnvoyFilter",
        "configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {no_such_field: 1}}}]",
        "no_such_field",
    ),
    (
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "rules: [{when: [{key: nonsense, values: [x]}]}]",
        "when",
    ),
    ("security.istio.io/v1", "RequestAuthentication", "jwtRules: [{issuer: ''}]", "issuer"),
    ("security.istio.io/v1", "PeerAuthentication", "portLevelMtls: {8080: {mode: STRICT}}", "portLevelMtls"),
    (
        "telemetry.istio.io/v1",
        "Telemetry",
        "tracing: [{randomSamplingPercentage: 101}]",
        "randomSamplingPercentage",
    ),
    ("extensions.istio.io/v1alpha1", "WasmPlugin", "url: 'gopher://x'", "url"),
];

fn broken() -> String {
    let mut text = String::new();
    for round in 0..5 {
        for (i, (version, kind, spec, _)) in MISTAKES.iter().enumerate() {
            let _ = write!(
                text,
                "---\n{{apiVersion: {version}, kind: {kind}, metadata: {{name: bad-{i}-{round}}}, spec: {{{spec}}}}}\n"
            );
        }
    }
    text
}

/// Everything a proxy is sent for these texts, and what is said to be wrong with them.
fn run(texts: &[String]) -> (BTreeMap<(TypeUrl, Name), String>, Vec<Issue>) {
    let mut pipeline = Pipeline::new();
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    txn.upsert(&inputs.options, SHARD, (), MeshOptions::default());
    txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
    let proxy = Proxy {
        interception: Interception::Redirect,
        ..Proxy::new(ProxyType::Sidecar, "p.default", "default", vec![[10, 9, 9, 9].into()])
    };
    txn.upsert(&inputs.proxies, SHARD, ProxyId(1), Arc::new(proxy));
    let mut issues = Vec::new();
    for text in texts {
        let reading = read(text, "world.yaml", &ReadOptions::default()).expect("YAML");
        reading.objects.into_iter().for_each(|(_, _, object)| inputs.upsert(&mut txn, SHARD, object));
        issues.extend(reading.issues);
    }
    pipeline.commit(txn);
    issues.extend(pipeline.issues().cloned());
    let manifests = pipeline.manifests_of(ProxyId(1)).expect("a connected proxy");
    let of = |kind: TypeUrl| {
        let resources: Vec<_> = manifests.of(kind).iter().collect();
        resources.into_iter().map(move |r| ((kind, r.name().clone()), r.version().to_string()))
    };
    (TypeUrl::ALL.into_iter().flat_map(of).collect(), issues)
}

#[test]
fn a_hundred_broken_objects_change_nothing_for_a_thousand_good_ones() {
    let (clean, none) = run(&[good()]);
    assert!(none.is_empty(), "{none:?}");
    let (mixed, issues) = run(&[good(), broken()]);
    assert!(clean.len() > GOOD / 2, "{}", clean.len());
    assert_eq!(mixed, clean);
    let blamed: BTreeSet<&str> = issues.iter().map(|issue| issue.object.name.as_str()).collect();
    for (i, (_, kind, spec, field)) in MISTAKES.iter().enumerate() {
        for round in 0..5 {
            let name = format!("bad-{i}-{round}");
            assert!(blamed.contains(name.as_str()), "{kind} {{{spec}}} was not told");
            let told =
                |issue: &&Issue| issue.object.name == name.as_str() && issue.to_string().contains(field);
            assert!(
                issues.iter().any(|issue| told(&issue)),
                "{kind} {{{spec}}}: {field} is not named: {issues:?}"
            );
        }
    }
    assert!(blamed.iter().all(|name| name.starts_with("bad-")), "{blamed:?}");
}
