//! Faults of everything that a mesh comes from, with traffic that goes on.

mod bed;
mod lot;
mod traffic;

use std::sync::atomic::Ordering;
use std::time::Duration;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
use pilot_testkit::agent::{PilotAgent, Place};
use pilot_testkit::scenario::Call;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream, node};
use pilot_testkit::{http_call, namespace};
use pilot_xds::TypeUrl;
use serde_json::json;
use tokio::time::Instant;

use self::bed::{Bed, Fault};
use self::lot::Lot;
use self::traffic::{Tally, Traffic, backends};
use super::{Proxy, is_well_again, launch, skipped};

/// So long silence lasts; in a minute there is no time for one that is noticed.
const SILENCE: Duration = Duration::from_secs(40);
const SHORT_SILENCE: Duration = Duration::from_secs(1);

/// How long faults go on. `make soak` asks for more.
#[allow(clippy::disallowed_methods, reason = "tests are told by the environment how long they run")]
fn fault_seconds() -> u64 {
    std::env::var("PILOT_FAULT_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
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
    let mut left = Fault::ALL.to_vec();
    let mut seen = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(fault_seconds()) || !left.is_empty() {
        let fault = match left.len() {
            0 => Fault::ALL[lot.draw(Fault::ALL.len())],
            some => left.swap_remove(lot.draw(some)),
        };
        let is_long = fault_seconds() >= 300 && lot.draw(3) == 0;
        bed.fault(fault, if is_long { SILENCE } else { SHORT_SILENCE }).await;
        let round = seen.len() + 1;
        let there = bed.change(round).await;
        bed.mend();
        let mended = Instant::now();
        proxy.until(&there.each_ref().map(String::as_str)).await;
        routes.until(&format!("round-{round}.")).await;
        seen.push((fault, mended.elapsed()));
        if round == Fault::ALL.len() {
            held = holdings(&server);
        }
    }
    let (took, tally) = (begun.elapsed(), traffic.end().await);
    println!("{} faults in {} s, one after the other by lot:", seen.len(), took.as_secs());
    table(&seen);
    println!(
        "{} connections to one cluster, {} to the other",
        bed.near_cut.connections(),
        bed.far_cut.connections()
    );
    nothing_failed(&tally);
    is_well_again(&server).await;
    let now = holdings(&server);
    println!("open files and KiB resident: {held:?} after each fault once, {now:?} at the end");
    assert!(now.0 <= held.0 + 20, "connections are left open");
    // Allocators give back late.
    assert!(now.1 <= held.1 + held.1 / 2 + (16 << 10), "memory grows");
}

/// How often each fault was, and how long proxies then had to wait at most.
fn table(seen: &[(Fault, Duration)]) {
    for fault in Fault::ALL {
        let waited: Vec<Duration> =
            seen.iter().filter(|(other, _)| *other == fault).map(|(_, took)| *took).collect();
        let longest = waited.iter().max().copied().unwrap_or_default();
        println!(
            "{:4} x {:40} both clusters and the rule known within {:5} ms",
            waited.len(),
            fault.name(),
            longest.as_millis()
        );
    }
}

fn nothing_failed(tally: &Tally) {
    let (good, slowest) = (tally.good.load(Ordering::Relaxed), tally.slowest.load(Ordering::Relaxed));
    let bad = tally.bad.lock().unwrap();
    println!("{good} requests answered, {} failed, the slowest took {slowest} ms", bad.len());
    assert!(bad.is_empty(), "{bad:?}");
    assert!(u64::from(good) > 10 * fault_seconds(), "{good} requests are too few to tell");
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
