//! One host in several registries.
#![allow(clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;

use pilot_base::Name;
use pilot_config::{ReadOptions, read};
use pilot_envoy_api::envoy::config::core::v3::address::Address;
use pilot_envoy_api::envoy::config::endpoint::v3::ClusterLoadAssignment;
use pilot_envoy_api::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use pilot_incr::{Shard, Txn};
use pilot_model::{
    MeshConfig, MeshOptions, Object, Proxy, ProxyId, ProxyType, RegistryMerge, RegistryOrigin,
};
use pilot_pipeline::Pipeline;
use pilot_xds::TypeUrl;
use prost::Message as _;

const REGISTRIES: [&str; 3] = ["consul", "eureka", "zookeeper"];

/// A service as the registry of a rank tells it.
fn service(rank: u16, addresses: &[&str]) -> Object {
    service_with(rank, addresses, "")
}

/// With more said of each instance.
fn service_with(rank: u16, addresses: &[&str], more: &str) -> Object {
    let name = REGISTRIES[usize::from(rank) - 1];
    let endpoints: Vec<String> = addresses
        .iter()
        .map(|address| {
            format!("{{address: {address}, locality: r{rank}/z, network: n{rank}, ports: {{port-80: 8080}}{more}}}")
        })
        .collect();
    let text = format!(
        "{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: shop.{name}, namespace: default}}, \
         spec: {{hosts: [shop.mesh], ports: [{{name: port-80, number: 80, protocol: HTTP}}], resolution: STATIC, \
         location: MESH_INTERNAL, endpoints: [{}]}}}}",
        endpoints.join(", ")
    );
    let reading = read(&text, "test.yaml", &ReadOptions::default()).expect("the test's own YAML");
    let (_, _, object) = reading.objects.into_iter().next().expect("one object");
    let Object::ServiceEntry(mut config) = object else { panic!("not a ServiceEntry") };
    config.spec.registry = Some(RegistryOrigin { name: Name::new(name), rank });
    Object::ServiceEntry(config)
}

fn started(registry_merge: RegistryMerge) -> Pipeline {
    let mut pipeline = Pipeline::new();
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    txn.upsert(&inputs.options, Shard(0), (), MeshOptions { registry_merge, ..MeshOptions::default() });
    txn.upsert(&inputs.mesh, Shard(0), (), MeshConfig::default());
    let proxy = Proxy {
        dns_domain: Name::new("default.svc.cluster.local"),
        ..Proxy::new(
            ProxyType::Sidecar,
            "p.default",
            "default",
            vec!["10.9.0.1".parse().expect("an address")],
        )
    };
    txn.upsert(&inputs.proxies, Shard(0), ProxyId(1), Arc::new(proxy));
    pipeline.commit(txn);
    pipeline
}

fn tell(pipeline: &mut Pipeline, rank: u16, addresses: &[&str]) {
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    inputs.upsert(&mut txn, Shard(u32::from(rank)), service(rank, addresses));
    pipeline.commit(txn);
}

/// The addresses that Envoy is told, with the region of each.
fn sent(pipeline: &Pipeline) -> BTreeMap<String, String> {
    let manifests = pipeline.manifests_of(ProxyId(1)).expect("the proxy is known");
    let all = manifests.of(TypeUrl::Endpoint).iter();
    let read =
        all.map(|resource| ClusterLoadAssignment::decode(&resource.message()[..]).expect("our own bytes"));
    let found = read.filter(|assignment| assignment.cluster_name == "outbound|80||shop.mesh");
    let mut out = BTreeMap::new();
    for group in found.flat_map(|assignment| assignment.endpoints) {
        let region = group.locality.clone().unwrap_or_default().region;
        for endpoint in group.lb_endpoints {
            let Some(HostIdentifier::Endpoint(endpoint)) = endpoint.host_identifier else { continue };
            let Some(Address::SocketAddress(at)) = endpoint.address.and_then(|address| address.address)
            else {
                continue;
            };
            out.insert(at.address, region.clone());
        }
    }
    out
}

fn addresses(pipeline: &Pipeline) -> Vec<String> {
    sent(pipeline).into_keys().collect()
}

/// What each endpoint says of TLS.
fn tls_modes(pipeline: &Pipeline) -> BTreeMap<String, String> {
    let manifests = pipeline.manifests_of(ProxyId(1)).expect("the proxy is known");
    let all = manifests.of(TypeUrl::Endpoint).iter();
    let read =
        all.map(|resource| ClusterLoadAssignment::decode(&resource.message()[..]).expect("our own bytes"));
    let found = read.filter(|assignment| assignment.cluster_name == "outbound|80||shop.mesh");
    let mut out = BTreeMap::new();
    for endpoint in found.flat_map(|assignment| assignment.endpoints).flat_map(|group| group.lb_endpoints) {
        let said = endpoint.metadata.unwrap_or_default();
        let matched = said.filter_metadata.get("envoy.transport_socket_match");
        let mode = matched.and_then(|fields| fields.fields.get("tlsMode")).map(|mode| format!("{mode:?}"));
        let Some(HostIdentifier::Endpoint(at)) = endpoint.host_identifier else { continue };
        out.insert(format!("{:?}", at.address), mode.unwrap_or_default());
    }
    out
}

#[test]
fn a_service_of_three_registries_is_known_by_the_accounts_of_all_and_each_instance_says_whether_it_has_a_sidecar()
 {
    let mut pipeline = started(RegistryMerge::Union);
    for (rank, mode) in [(1, "istio"), (2, "istio"), (3, "disabled")] {
        let more = format!(", serviceAccount: account-{rank}, labels: {{security.istio.io/tlsMode: {mode}}}");
        let object = service_with(rank, &[&format!("10.0.{rank}.1")], &more);
        let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
        inputs.upsert(&mut txn, Shard(u32::from(rank)), object);
        pipeline.commit(txn);
    }
    let manifests = pipeline.manifests_of(ProxyId(1)).expect("the proxy is known");
    let clusters = manifests.of(TypeUrl::Cluster);
    let cluster = clusters.get("outbound|80||shop.mesh").expect("the cluster of the service");
    let text = String::from_utf8_lossy(&cluster.message()[..]).into_owned();
    for rank in 1..=3 {
        let identity = format!("spiffe://cluster.local/ns/default/sa/account-{rank}");
        assert!(text.contains(&identity), "{identity}");
    }
    let modes: Vec<(String, String)> = tls_modes(&pipeline).into_iter().collect();
    assert_eq!(modes.len(), 3);
    for (rank, (address, mode)) in (1..).zip(&modes) {
        assert!(address.contains(&format!("10.0.{rank}.1")), "{address}");
        assert_eq!(mode.contains("istio"), rank < 3, "{address}: {mode}");
    }
}

#[test]
fn a_union_has_the_instances_of_all_with_their_localities() {
    let mut pipeline = started(RegistryMerge::Union);
    tell(&mut pipeline, 1, &["10.0.1.1"]);
    tell(&mut pipeline, 2, &["10.0.2.1"]);
    tell(&mut pipeline, 3, &["10.0.3.1"]);
    let regions: Vec<(String, String)> = sent(&pipeline).into_iter().collect();
    let expected = [("10.0.1.1", "r1"), ("10.0.2.1", "r2"), ("10.0.3.1", "r3")];
    assert_eq!(regions, expected.map(|(address, region)| (address.to_owned(), region.to_owned())));
    assert_eq!(pipeline.issues().count(), 0);
}

#[test]
fn by_priority_a_later_registry_serves_while_the_earlier_ones_have_nothing() {
    let mut pipeline = started(RegistryMerge::Priority);
    tell(&mut pipeline, 2, &["10.0.2.1"]);
    assert_eq!(addresses(&pipeline), ["10.0.2.1"]);
    tell(&mut pipeline, 1, &["10.0.1.1", "10.0.1.2"]);
    assert_eq!(addresses(&pipeline), ["10.0.1.1", "10.0.1.2"]);
    tell(&mut pipeline, 1, &[]);
    assert_eq!(addresses(&pipeline), ["10.0.2.1"]);
    assert_eq!(pipeline.issues().count(), 0);
}

#[test]
fn a_conflict_is_reported_and_the_first_registry_counts() {
    let mut pipeline = started(RegistryMerge::Conflict);
    tell(&mut pipeline, 1, &["10.0.1.1"]);
    tell(&mut pipeline, 2, &["10.0.2.1"]);
    assert_eq!(addresses(&pipeline), ["10.0.1.1"]);
    let issues: Vec<String> = pipeline.issues().map(ToString::to_string).collect();
    assert_eq!(issues.len(), 1);
    let told = "shop.mesh is also registered as shop.consul, which comes first and counts";
    assert!(
        issues[0].starts_with("eureka: error: ServiceEntry default/shop.eureka") && issues[0].contains(told),
        "{issues:?}"
    );
}

#[test]
fn a_host_that_two_registries_have_at_other_ports_is_told() {
    let mut pipeline = started(RegistryMerge::Union);
    tell(&mut pipeline, 1, &["10.0.1.1"]);
    let Object::ServiceEntry(mut config) = service(2, &["10.0.2.1"]) else { panic!("not a ServiceEntry") };
    let put = |pipeline: &mut Pipeline, object: Object| {
        let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
        inputs.upsert(&mut txn, Shard(2), object);
        pipeline.commit(txn);
    };
    config.spec.ports[0].number = 9082;
    put(&mut pipeline, Object::ServiceEntry(config));
    let issues: Vec<String> = pipeline.issues().map(ToString::to_string).collect();
    let told = "shop.mesh is called at port 9082 here and at port 80 as shop.consul, so no rule reaches both";
    assert!(
        issues.len() == 1 && issues[0].starts_with("eureka: warning") && issues[0].contains(told),
        "{issues:?}"
    );
    put(&mut pipeline, service(2, &["10.0.2.1"]));
    assert_eq!(pipeline.issues().count(), 0);
}
