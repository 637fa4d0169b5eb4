//! The licence to be incremental: after any changes, proxies are sent what they would be sent by a Pilot that had just
//! started; and whatever the rules say, what they are sent is whole.

mod kube;
mod more;
mod on_demand;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pilot_base::{Labels, Name};
use pilot_config::{ReadOptions, read};
use pilot_envoy_api::envoy::config::cluster::v3::Cluster;
use pilot_envoy_api::envoy::config::listener::v3::{Filter, Listener, filter};
use pilot_envoy_api::envoy::config::route::v3::RouteConfiguration;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3 as http;
use pilot_incr::{Shard, Txn};
use pilot_model::{
    Interception, Locality, MeshConfig, MeshOptions, Object, ObjectKey, Proxy, ProxyId, ProxyType,
    SecretAccess,
};
use pilot_pipeline::Pipeline;
use pilot_xds::{Manifests, TypeUrl};
use proptest::prelude::*;
use prost::Message as _;

const SHARD: Shard = Shard(1);
const NAMESPACES: [&str; 3] = ["a", "b", "istio-system"];

/// One thing that may be there or not, in one of several forms.
#[derive(Clone, Debug)]
enum Thing {
    Object(String),
    Proxy(u64, Arc<Proxy>),
}

fn objects(text: &str) -> Vec<Object> {
    let reading = read(text, "test.yaml", &ReadOptions::default()).expect("the test's own YAML");
    assert!(reading.broken.is_empty(), "{:?}\n{text}", reading.issues);
    let mut objects: Vec<Object> = reading.objects.into_iter().map(|(_, _, object)| object).collect();
    // Some workloads are outside of another cluster.
    let is_far =
        |object: &&mut Object| matches!(object, Object::WorkloadEntry(entry) if entry.id.name == "w2");
    objects.iter_mut().filter(is_far).for_each(|object| object.move_to(&Name::new("east")));
    objects
}

fn pick<T: Copy + std::fmt::Debug + 'static>(from: &'static [T]) -> impl Strategy<Value = T> {
    prop::sample::select(from)
}

fn export() -> impl Strategy<Value = &'static str> {
    pick(&["", "exportTo: ['*']", "exportTo: ['.']", "exportTo: [b]"])
}

/// Only services can be kept from everybody.
fn service_export() -> impl Strategy<Value = &'static str> {
    pick(&["", "exportTo: ['*']", "exportTo: ['.']", "exportTo: [b]", "exportTo: ['~']"])
}

fn host() -> impl Strategy<Value = &'static str> {
    pick(&[
        "s1",
        "s2",
        "s1.a",
        "s1.a.svc.cluster.local",
        "s2.b.svc.cluster.local",
        "e1.com",
        "e2.com",
        "none.com",
    ])
}

fn service() -> impl Strategy<Value = String> {
    let port = pick(&["http, port: 80", "http, port: 81", "tcp, port: 80", "x, port: 80", "grpc, port: 82"]);
    let address = pick(&["10.0.0.1", "10.0.0.2", "None"]);
    (pick(&NAMESPACES), pick(&["s1", "s2"]), port, address).prop_map(|(namespace, name, port, address)| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: {namespace}}}, \
             spec: {{clusterIP: {address}, ports: [{{name: {port}}}]}}}}"
        )
    })
}

fn slice() -> impl Strategy<Value = String> {
    let address = pick(&["10.1.0.1", "10.1.0.2", "10.1.0.3"]);
    (pick(&NAMESPACES), pick(&["s1", "s2"]), pick(&["http", "x"]), address).prop_map(
        |(namespace, name, port, address)| {
            format!(
                "{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4, \
                 metadata: {{name: {name}-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: {name}}}}}, \
                 ports: [{{name: {port}, port: 8080}}], endpoints: [{{addresses: [{address}]}}]}}"
            )
        },
    )
}

fn entry() -> impl Strategy<Value = String> {
    let hosts = pick(&["e1.com", "e2.com", "'*.com'", "s1.a", "s1.a.svc.cluster.local"]);
    let port = pick(&[
        "http, number: 80, protocol: HTTP",
        "t, number: 80, protocol: TCP",
        "x, number: 81, protocol: ''",
    ]);
    let addresses = pick(&[
        "",
        "addresses: [10.0.0.1],",
        "addresses: [10.0.0.0/16],",
        "addresses: [10.9.9.9, 10.9.9.8],",
    ]);
    let endpoints = pick(&[
        "resolution: STATIC, endpoints: [{address: 10.1.0.1, serviceAccount: sa, locality: r1/z1}]",
        "resolution: STATIC, endpoints: [{address: 10.1.0.9, serviceAccount: sa, locality: r1/z1}]",
        "resolution: DNS, endpoints: [{address: x.com, labels: {app: x}}, {address: 10.1.0.1, locality: r2}]",
        "resolution: STATIC, workloadSelector: {labels: {app: w}}",
    ]);
    (pick(&NAMESPACES), hosts, port, (addresses, endpoints, service_export())).prop_map(
        |(namespace, host, port, (addresses, endpoints, export))| {
            let comma = if export.is_empty() { "" } else { "," };
            let addresses = if endpoints.contains("DNS") { "" } else { addresses };
            format!(
                "{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: entry, namespace: {namespace}}}, \
                 spec: {{hosts: [{host}], {addresses} ports: [{{name: {port}}}], {endpoints}{comma} {export}}}}}"
            )
        },
    )
}

fn workload_entry() -> impl Strategy<Value = String> {
    let name = pick(&["w1", "w2"]);
    let address = pick(&["10.1.0.1", "10.1.0.2", "10.1.0.8"]);
    (pick(&NAMESPACES), name, address, pick(&["w", "x"])).prop_map(|(namespace, name, address, app)| {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {{name: {name}, namespace: {namespace}}}, \
             spec: {{address: {address}, labels: {{app: {app}}}}}}}"
        )
    })
}

fn virtual_service() -> impl Strategy<Value = String> {
    let hosts = pick(&["s1", "s2", "e1.com", "'*.com'", "s1.a", "none.com", "s1, none.com"]);
    let wanted = pick(&[
        "",
        "match: [{sourceNamespace: b}],",
        "match: [{sourceLabels: {app: x}}],",
        "match: [{headers: {h: {exact: v}}}, {uri: {prefix: /p}}],",
    ]);
    let gateways = pick(&["", "", "gateways: [gw],", "gateways: [a/gw, gw, mesh],"]);
    let kind = pick(&["http", "http", "delegate", "tcp"]);
    (pick(&NAMESPACES), pick(&["v1", "v2"]), hosts, (wanted, gateways), (kind, host(), export())).prop_map(
        |(namespace, name, hosts, (wanted, gateways), (kind, to, export))| {
            let comma = if export.is_empty() { "" } else { "," };
            let rules = match kind {
                "tcp" => {
                    let wanted = if wanted.contains("source") { wanted } else { "" };
                    format!("tcp: [{{{wanted} route: [{{destination: {{host: {to}}}}}]}}]")
                }
                "delegate" => format!("http: [{{{wanted} delegate: {{name: leaf, namespace: a}}}}]"),
                _ => format!("http: [{{{wanted} route: [{{destination: {{host: {to}}}}}]}}]"),
            };
            format!(
                "{{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {{name: {name}, namespace: {namespace}}}, \
                 spec: {{hosts: [{hosts}], {gateways} {rules}{comma} {export}}}}}"
            )
        },
    )
}

/// Something for others to leave routes to.
fn delegate() -> impl Strategy<Value = String> {
    (pick(&["", "match: [{uri: {prefix: /p}}],"]), host(), export()).prop_map(|(wanted, to, export)| {
        let comma = if export.is_empty() { "" } else { "," };
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {{name: leaf, namespace: a}}, \
             spec: {{http: [{{{wanted} route: [{{destination: {{host: {to}}}}}]}}]{comma} {export}}}}}"
        )
    })
}

fn gateway() -> impl Strategy<Value = String> {
    let servers = pick(&[
        "{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}",
        "{port: {number: 80, name: http-2, protocol: HTTP}, hosts: [./e1.com, b/e2.com], tls: {httpsRedirect: true}}",
        "{port: {number: 80, name: tcp, protocol: TCP}, hosts: ['*']}",
        "{port: {number: 443, name: https, protocol: HTTPS}, hosts: [e1.com], tls: {mode: SIMPLE, credentialName: c}}",
        "{port: {number: 443, name: tls, protocol: TLS}, hosts: ['*.com'], tls: {mode: PASSTHROUGH}}",
        "{port: {number: 443, name: auto, protocol: TLS}, hosts: ['*.local'], tls: {mode: AUTO_PASSTHROUGH}}",
    ]);
    (pick(&NAMESPACES), pick(&["gw", "gw-2"]), prop::collection::vec(servers, 1..3), pick(&["", "app: x"]))
        .prop_map(|(namespace, name, servers, selector)| {
            let mut servers = servers;
            servers.sort_unstable();
            servers.dedup();
            format!(
                "{{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {{name: {name}, namespace: {namespace}}}, \
                 spec: {{selector: {{{selector}}}, servers: [{}]}}}}",
                servers.join(", ")
            )
        })
}

fn connection_rule() -> impl Strategy<Value = String> {
    let rules = pick(&[
        "tcp: [{route: [{destination: {host: s1}}]}]",
        "tls: [{match: [{sniHosts: [e1.com]}], route: [{destination: {host: e1.com}}]}]",
        "tls: [{match: [{sniHosts: [e2.com]}], route: [{destination: {host: e2.com}}]}]",
    ]);
    (pick(&NAMESPACES), pick(&["c1", "c2"]), rules).prop_map(|(namespace, name, rules)| {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {{name: {name}, namespace: {namespace}}}, \
             spec: {{hosts: ['*.com'], gateways: [a/gw], {rules}}}}}"
        )
    })
}

fn destination_rule() -> impl Strategy<Value = String> {
    let host = pick(&["s1", "s1.a.svc.cluster.local", "e1.com", "'*.com'", "'*.local'"]);
    let policy = pick(&[
        "subsets: [{name: v1, labels: {version: v1}}]",
        "trafficPolicy: {loadBalancer: {simple: RANDOM}}",
        "trafficPolicy: {outlierDetection: {consecutive5xxErrors: 1}}",
        "trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: h}}}",
        "trafficPolicy: {loadBalancer: {localityLbSetting: {failoverPriority: [app]}}, outlierDetection: {}}",
        "workloadSelector: {matchLabels: {app: x}}, trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}",
    ]);
    let name = pick(&["rule", "second"]);
    (pick(&NAMESPACES), name, host, policy, export()).prop_map(|(namespace, name, host, policy, export)| {
        // A rule cannot be for nobody, and one for some workloads is for its own namespace.
        let export = if export.contains('~') || policy.contains("workloadSelector") { "" } else { export };
        let comma = if export.is_empty() { "" } else { "," };
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {{name: {name}, namespace: {namespace}}}, \
             spec: {{host: {host}, {policy}{comma} {export}}}}}"
        )
    })
}

fn sidecar() -> impl Strategy<Value = String> {
    let hosts = pick(&["'./*'", "'a/*', 'b/s2.b.svc.cluster.local'", "'*/e1.com'", "'*/*', '~a/*'"]);
    let first = pick(&[
        "",
        "{port: {number: 80, protocol: HTTP}, hosts: ['*/*']},",
        "{port: {number: 80, protocol: TCP}, bind: 127.0.0.1, hosts: ['a/*']},",
    ]);
    (pick(&NAMESPACES), hosts, pick(&["", "workloadSelector: {labels: {app: x}},"]), first).prop_map(
        |(namespace, hosts, selector, first)| {
            format!(
                "{{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {{name: sidecar, namespace: {namespace}}}, \
                 spec: {{{selector} egress: [{first} {{hosts: [{hosts}]}}]}}}}"
            )
        },
    )
}

fn proxy() -> impl Strategy<Value = Thing> {
    let interception = pick(&[Interception::Redirect, Interception::None, Interception::Tproxy]);
    let kind = pick(&[ProxyType::Sidecar, ProxyType::Sidecar, ProxyType::Router]);
    let ip = pick(&["10.1.0.1", "10.1.0.2", "10.1.0.7"]);
    (0..3u64, pick(&NAMESPACES), (kind, interception), ip, pick(&["", "x"])).prop_map(
        |(id, namespace, (kind, interception), ip, app)| {
            let ips = vec![ip.parse().expect("an address")];
            let proxy = Proxy {
                dns_domain: Name::from(format!("{namespace}.svc.cluster.local")),
                labels: if app.is_empty() { Labels::default() } else { Labels::new([("app", app)]) },
                locality: Locality::parse("r1/z1"),
                cluster: Name::new("Kubernetes"),
                interception,
                own_ports: vec![15021, 15090],
                dns_capture: id == 0,
                takes_changes: id != 1,
                secrets: match (kind, id) {
                    (ProxyType::Router, 0) => SecretAccess::Authorities,
                    (ProxyType::Router, _) => SecretAccess::All,
                    _ => SecretAccess::None,
                },
                ..Proxy::new(kind, &format!("p{id}.{namespace}"), namespace, ips)
            };
            Thing::Proxy(id, Arc::new(proxy))
        },
    )
}

/// A thing, and whether it comes or goes.
fn change() -> impl Strategy<Value = (Thing, bool)> {
    let object = prop_oneof![
        service(),
        slice(),
        entry(),
        workload_entry(),
        virtual_service(),
        virtual_service(),
        delegate(),
        destination_rule(),
        sidecar(),
        gateway(),
        connection_rule(),
        on_demand::namespace(),
        kube::object(),
        kube::object(),
        kube::object(),
        more::object(),
        more::object(),
        more::object(),
    ];
    (prop_oneof![4 => object.prop_map(Thing::Object), 1 => proxy()], prop::bool::weighted(0.75))
}

fn changes() -> impl Strategy<Value = Vec<Vec<(Thing, bool)>>> {
    prop::collection::vec(prop::collection::vec(change(), 1..5), 1..12)
}

/// What is there, as a fresh Pilot would be told.
#[derive(Default)]
struct World {
    objects: BTreeMap<ObjectKey, Object>,
    proxies: BTreeMap<u64, Arc<Proxy>>,
}

fn started() -> Pipeline {
    let mut pipeline = Pipeline::new();
    let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
    txn.upsert(&inputs.options, SHARD, (), MeshOptions::default());
    txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
    pipeline.commit(txn);
    pipeline
}

impl World {
    fn apply(&mut self, changes: &[(Thing, bool)], pipeline: &mut Pipeline) {
        let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
        for (thing, comes) in changes {
            match thing {
                Thing::Object(text) => {
                    for object in objects(text) {
                        let key = object.key();
                        if *comes {
                            inputs.upsert(&mut txn, SHARD, object.clone());
                            self.objects.insert(key, object);
                        } else {
                            inputs.remove(&mut txn, SHARD, key.clone());
                            self.objects.remove(&key);
                        }
                    }
                }
                Thing::Proxy(id, proxy) => {
                    if *comes {
                        txn.upsert(&inputs.proxies, SHARD, ProxyId(*id), Arc::clone(proxy));
                        self.proxies.insert(*id, Arc::clone(proxy));
                    } else {
                        txn.remove(&inputs.proxies, SHARD, ProxyId(*id));
                        self.proxies.remove(id);
                    }
                }
            }
        }
        pipeline.commit(txn);
    }

    fn rebuilt(&self) -> Pipeline {
        let mut pipeline = started();
        let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
        self.objects.values().for_each(|object| inputs.upsert(&mut txn, SHARD, object.clone()));
        for (id, proxy) in &self.proxies {
            txn.upsert(&inputs.proxies, SHARD, ProxyId(*id), Arc::clone(proxy));
        }
        pipeline.commit(txn);
        pipeline
    }
}

/// Name and version of everything a proxy is sent.
fn sent(manifests: &Manifests) -> BTreeMap<(TypeUrl, Name), String> {
    let of = |kind: TypeUrl| {
        let resources = manifests.of(kind).iter();
        let when = move |name: &Name| if manifests.of(kind).is_at_once(name) { "" } else { " on demand" };
        resources.map(move |r| ((kind, r.name().clone()), format!("{}{}", r.version(), when(r.name()))))
    };
    TypeUrl::ALL.into_iter().flat_map(of).collect()
}

fn bytes(pipeline: &Pipeline, id: u64) -> BTreeMap<(TypeUrl, Name), (String, Vec<u8>)> {
    let manifests = pipeline.manifests_of(ProxyId(id)).unwrap_or_default();
    let of = |kind: TypeUrl| {
        let resources: Vec<_> = manifests.of(kind).iter().collect();
        resources.into_iter().map(move |r| ((kind, r.name().clone()), (r.version().to_string(), r.message())))
    };
    TypeUrl::ALL.into_iter().flat_map(of).collect()
}

fn decode<M: prost::Message + Default>(manifests: &Manifests, kind: TypeUrl) -> Vec<M> {
    manifests.of(kind).iter().map(|r| M::decode(&r.message()[..]).expect("our own bytes")).collect()
}

fn named_routes(filters: &[Filter]) -> Option<String> {
    use http::http_connection_manager::RouteSpecifier;
    let manager = filters.iter().find(|f| f.name.ends_with("http_connection_manager"))?;
    let Some(filter::ConfigType::TypedConfig(config)) = &manager.config_type else { return None };
    match http::HttpConnectionManager::decode(&config.value[..]).ok()?.route_specifier? {
        RouteSpecifier::Rds(rds) => Some(rds.route_config_name),
        _ => None,
    }
}

/// Nothing refers to what is not there, and nothing is there twice: Envoy would refuse the whole resource.
fn check_whole(manifests: &Manifests) -> Result<(), TestCaseError> {
    for cluster in decode::<Cluster>(manifests, TypeUrl::Cluster) {
        if let Some(eds) = &cluster.eds_cluster_config {
            prop_assert!(
                manifests.of(TypeUrl::Endpoint).contains(&eds.service_name),
                "no endpoints for {}",
                cluster.name
            );
        }
    }
    for listener in decode::<Listener>(manifests, TypeUrl::Listener) {
        let matches: BTreeSet<String> =
            listener.filter_chains.iter().map(|chain| format!("{:?}", chain.filter_chain_match)).collect();
        prop_assert_eq!(matches.len(), listener.filter_chains.len(), "two chains for the same");
        for chain in listener.filter_chains.iter().chain(&listener.default_filter_chain) {
            if let Some(routes) = named_routes(&chain.filters) {
                prop_assert!(
                    manifests.of(TypeUrl::Route).contains(&routes),
                    "no routes {routes} for {}",
                    listener.name
                );
            }
        }
    }
    for table in decode::<RouteConfiguration>(manifests, TypeUrl::Route) {
        let mut domains = BTreeSet::new();
        for host in &table.virtual_hosts {
            let at_gateway = table.name.starts_with("http");
            prop_assert!(at_gateway || !host.routes.is_empty());
            for domain in &host.domains {
                prop_assert!(domains.insert(domain), "{domain} stands twice in {}", table.name);
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn incremental_equals_from_scratch(transactions in changes()) {
        let (mut pipeline, mut world) = (started(), World::default());
        for changes in &transactions {
            world.apply(changes, &mut pipeline);
        }
        let fresh = world.rebuilt();
        for id in world.proxies.keys() {
            let manifests = pipeline.manifests_of(ProxyId(*id)).expect("a connected proxy");
            let scratch = fresh.manifests_of(ProxyId(*id)).expect("a connected proxy");
            prop_assert_eq!(sent(&manifests), sent(&scratch));
            check_whole(&manifests)?;
            on_demand::check(&manifests)?;
        }
        let issues = |p: &Pipeline| p.issues().map(ToString::to_string).collect::<BTreeSet<_>>();
        prop_assert_eq!(issues(&pipeline), issues(&fresh));
        prop_assert_eq!(pipeline.census(), fresh.census());
        let filled = |p: &Pipeline| p.counts().collect::<Vec<_>>();
        prop_assert_eq!(filled(&pipeline), filled(&fresh));
    }

    #[test]
    fn what_is_told_as_changed_has_changed(transactions in changes()) {
        let (mut pipeline, mut world) = (started(), World::default());
        let mut before: BTreeMap<u64, BTreeMap<(TypeUrl, Name), (String, Vec<u8>)>> = BTreeMap::new();
        for changes in &transactions {
            world.apply(changes, &mut pipeline);
            let now: BTreeMap<u64, _> = world.proxies.keys().map(|id| (*id, bytes(&pipeline, *id))).collect();
            for (id, now) in &now {
                let Some(before) = before.get(id) else { continue };
                for (name, (version, bytes)) in now {
                    let Some((old_version, old_bytes)) = before.get(name) else { continue };
                    prop_assert_eq!(version == old_version, bytes == old_bytes, "{:?}", name);
                }
            }
            before = now;
        }
    }

    #[test]
    fn memory_returns_after_churn(transactions in changes()) {
        let (mut pipeline, mut world) = (started(), World::default());
        for changes in &transactions {
            world.apply(changes, &mut pipeline);
        }
        let (mut txn, inputs) = (Txn::new(), pipeline.inputs());
        world.objects.keys().for_each(|key| inputs.remove(&mut txn, SHARD, key.clone()));
        world.proxies.keys().for_each(|id| txn.remove(&inputs.proxies, SHARD, ProxyId(*id)));
        txn.remove(&inputs.options, SHARD, ());
        txn.remove(&inputs.mesh, SHARD, ());
        pipeline.commit(txn);
        pipeline.commit(Txn::new());
        for stats in pipeline.stats() {
            prop_assert_eq!(stats.rows, 0, "rows left in {}", stats.name);
        }
    }
}
