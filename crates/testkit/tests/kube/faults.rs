//! Faults of everything that a mesh comes from, with traffic that goes on.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
use pilot_testkit::agent::{PilotAgent, Place};
use pilot_testkit::backend::Backends;
use pilot_testkit::cut::Cut;
use pilot_testkit::gatekeeper::{Fate, Gatekeeper};
use pilot_testkit::kube::KubeServer;
use pilot_testkit::scenario::{Backend, Call};
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream, node};
use pilot_testkit::{http_call, namespace};
use pilot_xds::TypeUrl;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::clusters::secret;
use super::{Proxy, is_well_again, launch, skipped, slice, world};

/// How long faults go on. `make soak` asks for more.
#[allow(clippy::disallowed_methods, reason = "tests are told by the environment how long they run")]
fn fault_seconds() -> u64 {
    std::env::var("PILOT_FAULT_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

/// Calls that go on through Envoy, whatever happens around it.
struct Traffic {
    tasks: JoinSet<()>,
    tally: Arc<Tally>,
}

#[derive(Default)]
struct Tally {
    good: AtomicU32,
    /// What was wrong with those that were not answered well.
    bad: Mutex<Vec<String>>,
    /// Of all calls, in milliseconds.
    slowest: AtomicU64,
}

/// So many call at a time, each with a pause after each call.
const CALLERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(10);

impl Traffic {
    fn begin() -> Self {
        let (mut tasks, tally) = (JoinSet::new(), Arc::new(Tally::default()));
        for _ in 0..CALLERS {
            let tally = Arc::clone(&tally);
            tasks.spawn(async move {
                let call: Call = serde_json::from_value(json!({"get": "http://web.shop:80/"})).unwrap();
                loop {
                    match http_call::make(&call, None).await {
                        Ok(seen) if seen.status == 200 => {
                            tally.good.fetch_add(1, Ordering::Relaxed);
                            let took = u64::try_from(seen.after.as_millis()).unwrap();
                            tally.slowest.fetch_max(took, Ordering::Relaxed);
                        }
                        other => tally.bad.lock().unwrap().push(format!("{other:?}")),
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            });
        }
        Self { tasks, tally }
    }

    async fn end(mut self) -> Arc<Tally> {
        self.tasks.shutdown().await;
        self.tally
    }
}

/// Everybody who is called at any address of this network.
async fn backends() -> Backends {
    let everywhere = Backend {
        at: "0.0.0.0:8080".parse().unwrap(),
        delay: Duration::ZERO,
        fail: None,
        tcp: false,
        tls: false,
        serves: BTreeMap::new(),
    };
    Backends::start(&BTreeMap::from([("web".to_owned(), everywhere)]), None).await.unwrap()
}

/// What is done to the servers that everything comes from.
const FAULTS: [&str; 10] = [
    "watches cut",
    "API server killed",
    "API server out of reach",
    "etcd killed",
    "API server killed while out of reach",
    "API server silent",
    "other cluster out of reach",
    "other cluster busy",
    "other cluster silent",
    "other cluster's API server killed",
];

/// So long silence lasts at most; in a minute there is no time for one that is noticed.
const SILENCE: Duration = Duration::from_secs(40);
const SHORT_SILENCE: Duration = Duration::from_secs(1);

/// Our own cluster and another one, each behind something that can be cut.
struct Bed {
    near: KubeServer,
    near_cut: Cut,
    far: KubeServer,
    far_cut: Cut,
    far_gate: Gatekeeper,
}

impl Bed {
    async fn make(scratch: &Path) -> Self {
        let near = KubeServer::start(&scratch.join("near"), &[]).await.unwrap();
        let far = KubeServer::start(&scratch.join("far"), &[]).await.unwrap();
        world(&near, &["10.9.0.1", "10.9.0.2"]).await;
        world(&far, &["10.10.0.1", "10.10.0.2"]).await;
        near.define_rules().await.unwrap();
        let near_cut = Cut::before(near.address).await.unwrap();
        let far_gate = Gatekeeper::before(&far).await.unwrap();
        let far_cut = Cut::before(far_gate.address).await.unwrap();
        let config = far_gate.kubeconfig("lab-admin-token");
        let config = config.replace(&far_gate.address.to_string(), &far_cut.address.to_string());
        near.apply(&secret("east", &config)).await.unwrap();
        Self { near, near_cut, far, far_cut, far_gate }
    }

    async fn fault(&mut self, which: usize, silence: Duration) {
        match which {
            0 => self.near_cut.snap(),
            1 => restart(&mut self.near).await,
            2 => self.near_cut.close(),
            3 => {
                self.near.kill_etcd().await.unwrap();
                self.near.start_etcd().await.unwrap();
            }
            // Two at once: what a new API server remembers begins after what we know.
            4 => {
                self.near_cut.close();
                restart(&mut self.near).await;
            }
            5 => {
                self.near_cut.freeze();
                tokio::time::sleep(silence).await;
            }
            6 => self.far_cut.close(),
            7 => {
                self.far_gate.rule(|_| Fate::Refuse(429));
                self.far_cut.snap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            8 => {
                self.far_cut.freeze();
                tokio::time::sleep(silence).await;
            }
            _ => restart(&mut self.far).await,
        }
    }

    /// Something else in both clusters, and another rule. Tells who is there now.
    async fn change(&self, round: usize) -> [String; 4] {
        let (near, far) = (format!("10.9.1.{}", round % 250), format!("10.10.1.{}", round % 250));
        apply(&self.near, &slice("web-a", &["10.9.0.1", &near])).await;
        apply(&self.far, &slice("web-a", &["10.10.0.1", &far])).await;
        let route = json!([{"destination": {"host": "web"}, "headers": {"response": {"set": {"round": format!("round-{round}.")}}}}]);
        let rule = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"hosts": ["web"], "http": [{"route": route}]},
        });
        apply(&self.near, &rule).await;
        ["10.9.0.1".to_owned(), near, "10.10.0.1".to_owned(), far]
    }

    fn mend(&self) {
        self.near_cut.open();
        self.far_cut.open();
        self.far_gate.rule(|_| Fate::Pass);
    }
}

async fn restart(kube: &mut KubeServer) {
    kube.kill_api().await.unwrap();
    kube.start_api().await.unwrap();
}

/// An API server takes a while until it has found etcd again.
async fn apply(kube: &KubeServer, object: &Value) {
    while kube.apply(object).await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Numbers by lot, the same for the same seed.
struct Lot(u64);

impl Lot {
    #[allow(clippy::disallowed_methods, reason = "tests are told by the environment what to draw")]
    fn of_environment() -> Self {
        let told = std::env::var("PILOT_FAULT_SEED").ok().and_then(|text| text.parse().ok());
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = told.unwrap_or_else(|| u64::from(now().subsec_nanos()));
        println!("PILOT_FAULT_SEED={seed}");
        Self(seed)
    }

    /// One of so many: the generator of Steele, Lea and Flood.
    fn draw(&mut self, of: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % of as u64).unwrap()
    }
}

#[test]
fn faults_cost_no_request_and_no_live_endpoint() {
    let why = namespace::why_not().filter(|_| !Tools::of_environment().requires_all());
    if let Some(why) = why.or_else(|| Tools::of_environment().why_skip_envoy()) {
        eprintln!("skipped: {why}");
        return;
    }
    let name = "faults::faults_cost_no_request_and_no_live_endpoint";
    if skipped() || !namespace::entered_by_test(name).unwrap() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(faults_with_traffic());
}

/// What the process of the server holds: open files, and memory in KiB.
fn holdings(server: &PilotServer) -> (usize, usize) {
    let folder = format!("/proc/{}", server.process.id().unwrap());
    let files = std::fs::read_dir(format!("{folder}/fd")).unwrap().count();
    let memory = std::fs::read_to_string(format!("{folder}/statm")).unwrap();
    let pages: usize = memory.split(' ').nth(1).unwrap().parse().unwrap();
    (files, pages * 4)
}

async fn faults_with_traffic() {
    let scratch = tempfile::tempdir().unwrap();
    let mut bed = Bed::make(scratch.path()).await;
    let kubeconfig = bed.near.kubeconfig_for(bed.near_cut.address, "lab-admin-token").unwrap();
    let mut server = launch(scratch.path(), &kubeconfig, &["--configDir="], &[]);
    server.process.until_ok(server.http, "/ready").await.unwrap();
    let mut proxy = Proxy::connect(&server, &["10.9.0.1", "10.10.0.1"]).await;
    proxy.until(&["10.9.0.1", "10.9.0.2", "10.10.0.1", "10.10.0.2"]).await;
    let mut routes = Routes::open(&server).await;
    let _backends = backends().await;
    let mut envoy =
        PilotAgent::start(&Place::new("client", server.grpc).plain(), &Tools::of_environment()).unwrap();
    envoy.ready().await.unwrap();
    let first: Call = serde_json::from_value(json!({"get": "http://web.shop:80/"})).unwrap();
    let answers = || async { http_call::make(&first, None).await.is_ok_and(|seen| seen.status == 200) };
    envoy.process.until("the first call is answered", answers).await.unwrap();
    let (mut held, traffic, mut lot) = (holdings(&server), Traffic::begin(), Lot::of_environment());

    // Each once in any order, and then any.
    let mut left: Vec<usize> = (0..FAULTS.len()).collect();
    let end = tokio::time::Instant::now() + Duration::from_secs(fault_seconds());
    let (mut faults, mut each) = (0_usize, [0_u32; FAULTS.len()]);
    while tokio::time::Instant::now() < end || !left.is_empty() {
        let drawn = if left.is_empty() { FAULTS.len() } else { left.len() };
        let which = lot.draw(drawn);
        let which = if left.is_empty() { which } else { left.swap_remove(which) };
        let is_long = fault_seconds() >= 300 && lot.draw(3) == 0;
        bed.fault(which, if is_long { SILENCE } else { SHORT_SILENCE }).await;
        (faults, each[which]) = (faults + 1, each[which] + 1);
        let there = bed.change(faults).await;
        bed.mend();
        proxy.until(&there.each_ref().map(String::as_str)).await;
        routes.until(&format!("round-{faults}.")).await;
        if faults == FAULTS.len() {
            held = holdings(&server);
        }
    }
    let tally = traffic.end().await;
    for (what, times) in FAULTS.iter().zip(each) {
        println!("{times:4} x {what}");
    }
    let (good, slowest) = (tally.good.load(Ordering::Relaxed), tally.slowest.load(Ordering::Relaxed));
    let bad = tally.bad.lock().unwrap().clone();
    println!("{good} requests answered, {} failed, the slowest took {slowest} ms", bad.len());
    let now = holdings(&server);
    println!("{faults} faults; (open files, KiB resident) were {held:?} after each once, and are {now:?}");
    assert!(bad.is_empty(), "{bad:?}");
    assert!(u64::from(good) > 10 * fault_seconds(), "{good} requests are too few to tell");
    is_well_again(&server).await;
    assert!(holdings(&server).0 <= held.0 + 20, "connections are left open");
    // Allocators give back late, and a page more or less is no leak.
    assert!(now.1 * 10 <= held.1 * 12 + (8 << 10) * 10, "memory grows");
}

/// What a proxy is told of routes.
struct Routes(Stream<StateOfTheWorld>);

impl Routes {
    async fn open(server: &PilotServer) -> Self {
        let stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
        stream.send(Self::ask(Some(node("routes"))));
        Self(stream)
    }

    fn ask(node: Option<Node>) -> DiscoveryRequest {
        DiscoveryRequest {
            type_url: TypeUrl::Route.as_str().to_owned(),
            resource_names: vec!["80".to_owned()],
            node,
            ..DiscoveryRequest::default()
        }
    }

    async fn until(&mut self, text: &str) {
        let reached = async {
            loop {
                // Nothing for a while is no news.
                let Ok(answer) = self.0.next().await else { continue };
                let response = answer.unwrap();
                let (version_info, response_nonce) = (response.version_info, response.nonce);
                self.0.send(DiscoveryRequest { version_info, response_nonce, ..Self::ask(None) });
                let has = |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text.as_bytes());
                if response.resources.iter().any(|any| has(&any.value)) {
                    return;
                }
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(120), reached).await.is_ok(), "never told {text}");
    }
}
