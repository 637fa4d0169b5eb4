//! A plane of services and rules, through the whole pipeline.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use pilot_base::Name;
use pilot_config::ReadOptions;
use pilot_envoy_api::envoy::config::cluster::v3::Cluster;
use pilot_envoy_api::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use pilot_envoy_api::envoy::config::listener::v3::{Filter, Listener, filter};
use pilot_envoy_api::envoy::config::route::v3::RouteConfiguration;
use pilot_envoy_api::envoy::config::route::v3::route::Action;
use pilot_envoy_api::envoy::config::route::v3::route_action::ClusterSpecifier;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use pilot_envoy_api::envoy::extensions::filters::network::tcp_proxy::v3::{TcpProxy, tcp_proxy};
use pilot_envoy_api::from_any;
use pilot_incr::{Shard, Txn};
use pilot_model::{Features, MeshConfig, MeshOptions, ObjectKey, Proxy, ProxyId, ProxyType};
use pilot_pipeline::Pipeline;
use pilot_xds::{Manifests, TypeUrl};
use prost::Message as _;

use crate::plane::{Facts, Plane, Width};
use crate::rng::Rng;
use crate::stream::Findings;

const SHARD: Shard = Shard(1);
const PROXY: ProxyId = ProxyId(1);

/// A world of texts, and the pipeline that was told each change of it.
pub struct Mesh {
    pipeline: Pipeline,
    /// Texts that change as a whole: a service with all rules that need it, or a Sidecar.
    texts: BTreeMap<String, String>,
    told: BTreeMap<String, Vec<ObjectKey>>,
    width: Width,
    /// How many hosts come and go, with everything about them.
    hosts: u64,
    /// Rows of each table before there was anything.
    empty: Vec<(&'static str, usize)>,
}

impl Mesh {
    /// A handful of hosts, so that a thousand seeds reach every corner.
    pub fn new(rng: &mut Rng, width: Width) -> Self {
        let mut mesh = Self::with_hosts(6, width);
        for _ in 0..rng.below(20) {
            mesh.mutate(rng);
        }
        mesh
    }

    /// So many hosts that what is shared only in large meshes is shared, all of them there to begin with.
    pub fn large(rng: &mut Rng, width: Width) -> Self {
        const HOSTS: u64 = 1_000;
        let mut mesh = Self::with_hosts(HOSTS, width);
        for host in 0..HOSTS {
            let name = format!("host-{host}");
            mesh.put(&name, bundle(&name, rng));
        }
        mesh
    }

    fn with_hosts(hosts: u64, width: Width) -> Self {
        let mut pipeline = begin(width);
        let empty = rows(&pipeline);
        connect(&mut pipeline);
        let (texts, told) = Default::default();
        let mut mesh = Self { pipeline, texts, told, width, hosts, empty };
        // Rules lead to these two, so they never go.
        for name in ["always-0", "always-1"] {
            mesh.put(name, entry(name, "shared", &[1, 2], ""));
        }
        mesh
    }

    fn put(&mut self, name: &str, text: String) {
        self.tell(name, Some(&text));
        self.texts.insert(name.to_owned(), text);
    }

    fn remove(&mut self, name: &str) {
        self.tell(name, None);
        self.texts.remove(name);
    }

    fn tell(&mut self, name: &str, text: Option<&str>) {
        let mut txn = Txn::new();
        let inputs = self.pipeline.inputs();
        let objects = text.map(|text| objects(name, text)).unwrap_or_default();
        let keys: Vec<ObjectKey> = objects.iter().map(pilot_model::Object::key).collect();
        for key in self.told.remove(name).unwrap_or_default() {
            if !keys.contains(&key) {
                inputs.remove(&mut txn, SHARD, key);
            }
        }
        for object in objects {
            inputs.upsert(&mut txn, SHARD, object);
        }
        self.told.insert(name.to_owned(), keys);
        self.pipeline.commit(txn);
    }

    /// A second replica is told everything at once, last things first.
    pub(crate) fn differs_from_replica(&self) -> Findings {
        let mut replica = begin(self.width);
        connect(&mut replica);
        let mut txn = Txn::new();
        for (name, text) in self.texts.iter().rev() {
            for object in objects(name, text) {
                replica.inputs().upsert(&mut txn, SHARD, object);
            }
        }
        replica.commit(txn);
        let (own, other) = (bytes(&self.pipeline), bytes(&replica));
        let names = own.keys().chain(other.keys());
        let differing = names.filter(|name| own.get(*name) != other.get(*name));
        differing.map(|(t, name)| format!("{t} {name} differs on another replica")).collect()
    }

    /// What is still there after everything was removed.
    pub(crate) fn remains(mut self) -> Findings {
        let names: Vec<String> = self.texts.keys().cloned().collect();
        for name in names {
            self.remove(&name);
        }
        let mut txn = Txn::new();
        txn.remove(&self.pipeline.inputs().proxies, SHARD, PROXY);
        self.pipeline.commit(txn);
        // What changed is kept until the next commit, for who wants to know it.
        self.pipeline.commit(Txn::new());
        let left = rows(&self.pipeline).into_iter().filter(|row| !self.empty.contains(row));
        left.map(|(table, rows)| format!("{rows} rows remain in {table}")).collect()
    }
}

fn begin(width: Width) -> Pipeline {
    let mut pipeline = Pipeline::new();
    let inputs = pipeline.inputs();
    let mut txn = Txn::new();
    let features = Features { on_demand_clusters: width == Width::OnDemand, ..Features::default() };
    txn.upsert(&inputs.options, SHARD, (), MeshOptions { features, ..MeshOptions::default() });
    txn.upsert(&inputs.mesh, SHARD, (), MeshConfig::default());
    pipeline.commit(txn);
    pipeline
}

fn connect(pipeline: &mut Pipeline) {
    let mut txn = Txn::new();
    txn.upsert(&pipeline.inputs().proxies, SHARD, PROXY, Arc::new(proxy()));
    pipeline.commit(txn);
}

fn rows(pipeline: &Pipeline) -> Vec<(&'static str, usize)> {
    pipeline.stats().into_iter().map(|stats| (stats.name, stats.rows)).collect()
}

fn bytes(pipeline: &Pipeline) -> BTreeMap<(TypeUrl, Name), (String, Vec<u8>)> {
    let manifests = pipeline.manifests_of(PROXY).unwrap_or_default();
    let all = TypeUrl::ALL.into_iter().flat_map(|t| manifests.of(t).iter().map(move |r| (t, r)));
    all.map(|(t, r)| ((t, r.name().clone()), (r.version().to_string(), r.message()))).collect()
}

fn objects(name: &str, text: &str) -> Vec<pilot_model::Object> {
    let reading = pilot_config::read(text, name, &ReadOptions::default()).expect("the text is YAML");
    assert!(reading.broken.is_empty(), "{:?}", reading.issues);
    reading.objects.into_iter().map(|(_, _, object)| object).collect()
}

fn entry(name: &str, namespace: &str, endpoints: &[u64], more: &str) -> String {
    let mut text = format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  hosts: [{name}.example]\n  resolution: STATIC\n  ports:\n  - {{number: 80, name: http, protocol: HTTP}}\n{more}  endpoints:\n"
    );
    for endpoint in endpoints {
        let version = endpoint % 2 + 1;
        // Writing to memory does not fail.
        let _written = writeln!(text, "  - {{address: 10.0.0.{endpoint}, labels: {{version: v{version}}}}}");
    }
    text
}

/// A service, perhaps with rules. Rules lead only to what comes and goes with them, or never goes.
fn bundle(name: &str, rng: &mut Rng) -> String {
    let namespace = *rng.pick(&["default", "shop", "shared"]).unwrap_or(&"default");
    let endpoints: Vec<u64> = (0..rng.below(4)).map(|i| 10 + i * 3 + rng.below(3)).collect();
    let mut more = String::new();
    if rng.chance(30) {
        more.push_str("  - {number: 9000, name: tcp, protocol: TCP}\n");
    }
    if rng.chance(30) {
        more.push_str("  - {number: 8080, name: http-more, protocol: HTTP}\n");
    }
    // A rule that everybody sees must not lead to what only some see.
    let export = if rng.chance(15) { "exportTo: [\".\"]" } else { "exportTo: [\"*\"]" };
    let _written = writeln!(more, "  {export}");
    let mut text = entry(name, namespace, &endpoints, &more);
    let rules = rng.chance(60);
    if rules {
        let policy = *rng.pick(&["RANDOM", "ROUND_ROBIN", "LEAST_REQUEST"]).unwrap_or(&"RANDOM");
        let _written = write!(
            text,
            "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{{export}, host: {name}.example, trafficPolicy: {{loadBalancer: {{simple: {policy}}}}}, subsets: [{{name: v1, labels: {{version: v1}}}}, {{name: v2, labels: {{version: v2}}}}]}}\n"
        );
    }
    if rng.chance(60) {
        let own = if rules {
            format!("{{host: {name}.example, subset: v1, port: {{number: 80}}}}")
        } else {
            format!("{{host: {name}.example, port: {{number: 80}}}}")
        };
        let other = format!("{{host: always-{}.example, port: {{number: 80}}}}", rng.below(2));
        let weight = rng.below(101);
        let _written = write!(
            text,
            "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{{export}, hosts: [{name}.example], http: [{{match: [{{headers: {{user: {{exact: u{weight}}}}}}}], route: [{{destination: {own}}}]}}, \
             {{route: [{{destination: {own}, weight: {weight}}}, {{destination: {other}, weight: {}}}]}}]}}\n",
            100 - weight
        );
    }
    text
}

fn sidecar(rng: &mut Rng) -> String {
    let hosts =
        *rng.pick(&["\"./*\"", "\"*/*\"", "\"./*\", \"shared/*\"", "\"shop/*\""]).unwrap_or(&"\"*/*\"");
    format!(
        "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: own, namespace: default}}\nspec: {{egress: [{{hosts: [{hosts}]}}]}}\n"
    )
}

impl Plane for Mesh {
    fn mutate(&mut self, rng: &mut Rng) {
        match rng.below(20) {
            0 => self.put("sidecar", sidecar(rng)),
            1 if self.texts.contains_key("sidecar") => self.remove("sidecar"),
            2..4 => {
                let endpoints: Vec<u64> = (0..1 + rng.below(3)).map(|i| 100 + i).collect();
                self.put("always-0", entry("always-0", "shared", &endpoints, ""));
            }
            _ => {
                let name = format!("host-{}", rng.below(self.hosts));
                if self.texts.contains_key(&name) && rng.chance(30) {
                    self.remove(&name);
                } else {
                    let text = bundle(&name, rng);
                    self.put(&name, text);
                }
            }
        }
    }

    fn manifests(&mut self) -> Arc<Manifests> {
        Arc::new(self.pipeline.manifests_of(PROXY).unwrap_or_default())
    }

    fn facts(&self, type_url: TypeUrl, message: &[u8]) -> Facts {
        let mut facts = Facts::default();
        match type_url {
            TypeUrl::Cluster => {
                let cluster = Cluster::decode(message).expect("a cluster can be read");
                let eds = ClusterDiscoveryType::Type(DiscoveryType::Eds as i32);
                facts.wants_endpoints = cluster.cluster_discovery_type == Some(eds);
            }
            TypeUrl::Listener => {
                let listener = Listener::decode(message).expect("a listener can be read");
                let chains = listener.filter_chains.iter().chain(&listener.default_filter_chain);
                chains.flat_map(|chain| &chain.filters).for_each(|filter| of_filter(filter, &mut facts));
            }
            TypeUrl::Route => {
                let table = RouteConfiguration::decode(message).expect("a route table can be read");
                let routes = table.virtual_hosts.iter().flat_map(|host| &host.routes);
                routes
                    .filter_map(|route| route.action.as_ref())
                    .for_each(|action| of_action(action, &mut facts));
                if self.width == Width::OnDemand {
                    facts.asks_for = facts.refers_to.drain(..).map(|(_, cluster)| cluster).collect();
                }
            }
            _ => {}
        }
        facts
    }
}

fn of_filter(filter: &Filter, facts: &mut Facts) {
    let Some(filter::ConfigType::TypedConfig(any)) = &filter.config_type else { return };
    if let Some(manager) = from_any::<HttpConnectionManager>(any)
        && let Some(RouteSpecifier::Rds(rds)) = manager.route_specifier
    {
        facts.refers_to.push((TypeUrl::Route, rds.route_config_name.into()));
    }
    if let Some(proxy) = from_any::<TcpProxy>(any)
        && let Some(tcp_proxy::ClusterSpecifier::Cluster(cluster)) = proxy.cluster_specifier
    {
        facts.refers_to.push((TypeUrl::Cluster, cluster.into()));
    }
}

fn of_action(action: &Action, facts: &mut Facts) {
    let Action::Route(route) = action else { return };
    match &route.cluster_specifier {
        Some(ClusterSpecifier::Cluster(cluster)) => {
            facts.refers_to.push((TypeUrl::Cluster, cluster.as_str().into()));
        }
        Some(ClusterSpecifier::WeightedClusters(weighted)) => {
            let names = weighted.clusters.iter().map(|c| (TypeUrl::Cluster, c.name.as_str().into()));
            facts.refers_to.extend(names);
        }
        _ => {}
    }
}

fn proxy() -> Proxy {
    Proxy {
        dns_domain: Name::new("default.svc.cluster.local"),
        cluster: Name::new("Kubernetes"),
        takes_changes: true,
        ..Proxy::new(ProxyType::Sidecar, "client.default", "default", vec![[10, 9, 0, 1].into()])
    }
}
