//! Mutual TLS between workloads that register in different places: each is known by the account that it registers, and
//! rules say who may call.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use pilot_testkit::agent::{PilotAgent, Place};
use pilot_testkit::backend::Backends;
use pilot_testkit::expect::Seen;
use pilot_testkit::plane::Plane;
use pilot_testkit::process::free_address;
use pilot_testkit::scenario::Backend;
use pilot_testkit::tools::Tools;
use pilot_testkit::{http_call, shop};
use serde_json::json;

use crate::call;
use crate::servers::{Registry, Reviews, SERVICE_PORT, Servers, programs};

const RULES: &str = "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: peers, namespace: default}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: callers, namespace: default}
spec:
  action: ALLOW
  rules:
  - from: [{source: {principals: [cluster.local/ns/default/sa/web]}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: reviews, namespace: default}
spec:
  host: reviews.mesh.test
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: default}
spec:
  hosts: [reviews.mesh.test]
  http:
  - retries: {attempts: 0}
    route:
    - {destination: {host: reviews.mesh.test, subset: v1}, weight: 50}
    - {destination: {host: reviews.mesh.test, subset: v2}, weight: 50}
";

/// The sidecar of a workload listens at its door, and hands on what it lets in.
fn sidecar(name: &str, door: SocketAddr, backend: SocketAddr) -> String {
    format!(
        "---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {{name: {name}, namespace: default}}
spec:
  workloadSelector: {{labels: {{app: {name}}}}}
  ingress:
  - {{port: {{number: {}, name: http, protocol: HTTP}}, bind: 127.0.0.1, defaultEndpoint: '{backend}'}}
  egress: [{{hosts: ['~/*']}}]
",
        door.port()
    )
}

async fn ask() -> Option<Seen> {
    http_call::make(&call(), None).await.ok()
}

/// Who answered of so many calls; who did not is told by the status.
async fn answers(calls: usize) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    for _ in 0..calls {
        let who = ask().await.map_or_else(
            || "nobody".to_owned(),
            |seen| match seen.from {
                Some(from) if seen.status == 200 => from,
                _ => seen.status.to_string(),
            },
        );
        *answers.entry(who).or_insert(0) += 1;
    }
    answers
}

async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    shop::until(what, holds).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workloads_of_two_registries_are_known_by_their_accounts_and_know_their_callers() {
    let tools = Tools::of_environment();
    if let Some(why) = tools.why_skip_envoy() {
        println!("skipped: {why}");
        return;
    }
    let Some(programs) = programs() else {
        println!("skipped: `make components` gets Consul, Eureka and ZooKeeper");
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let mut servers = Servers::start(scratch.path(), programs, &tools).await.unwrap();
    let mut rules = RULES.to_owned();
    let (mut registered, mut backends) = (Vec::new(), BTreeMap::new());
    for (name, registry, version) in [("one", Registry::Consul, "v1"), ("two", Registry::Eureka, "v2")] {
        let (door, at) = (free_address().unwrap(), free_address().unwrap());
        let backend: Backend = serde_json::from_value(json!({"at": at.to_string()})).unwrap();
        backends.insert(name.to_owned(), backend);
        rules += &sidecar(name, door, at);
        registered.push(Reviews { registry, id: name.to_owned(), at: door, version, account: name });
        servers.register(&registered[registered.len() - 1]).await.unwrap();
    }
    let _backends = Backends::start(&backends, None).await.unwrap();
    let flags = [
        "--registries=Consul,Eureka".to_owned(),
        "--registryDomain=mesh.test".to_owned(),
        format!("--registryServicePort={SERVICE_PORT}"),
        format!("--consulserverURL=http://{}", servers.consul),
        format!("--eurekaserverURL=http://{}/eureka", servers.eureka),
        "--eurekaserverInterval=100ms".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    // Filters that only Istio's own Envoy has are left out.
    let stock = [("PILOT_ENABLE_ALPN_FILTER", "false"), ("PILOT_ENABLE_METADATA_EXCHANGE", "false")];
    let plane = Plane::start_in(tempfile::tempdir().unwrap(), &flags, &stock).await.unwrap();
    std::fs::write(plane.server.config.join("rules.yaml"), rules).unwrap();
    let start = |name: &'static str| {
        let place = Place::new(name, plane.secure);
        let place = place.trusting(plane.root().unwrap(), plane.token(name).unwrap());
        PilotAgent::start(&place, &tools).unwrap()
    };
    let mut agents = ["one", "two", "web"].map(start);
    for agent in &mut agents {
        agent.ready().await.unwrap();
    }

    until("both are reached", || async {
        let answers = answers(20).await;
        answers.len() == 2 && answers.contains_key("one") && answers.contains_key("two")
    })
    .await;
    let told = answers(200).await;
    assert_eq!(told.keys().collect::<Vec<_>>(), ["one", "two"], "{told:?}");
    println!("200 calls with certificates across Consul and Eureka: {told:?}");
    let request = format!("{:?}", ask().await.unwrap().request);
    assert!(request.contains("URI=spiffe://cluster.local/ns/default/sa/web"), "{request}");
    let plain = http_call::get(registered[0].at, "/").await;
    assert!(!matches!(plain, Ok((200, _))), "who shows nothing is not let in: {plain:?}");

    // Who registers as somebody else is not taken for that.
    let impostor = Reviews { account: "somebody-else", ..registered[0].clone() };
    servers.register(&impostor).await.unwrap();
    until("who is somebody else is not called", || async {
        let answers = answers(20).await;
        answers.contains_key("503") && !answers.contains_key("one") && answers.contains_key("two")
    })
    .await;
    servers.register(&registered[0]).await.unwrap();
    until("both are reached again", || async {
        let answers = answers(20).await;
        answers.len() == 2 && answers.contains_key("one") && answers.contains_key("two")
    })
    .await;

    // Another account has a certificate as well, and may not call.
    let [_one, _two, mut web] = agents;
    assert!(web.process.terminate().await.unwrap().success());
    let mut stranger = start("stranger");
    stranger.ready().await.unwrap();
    until("a stranger is refused", || async { ask().await.is_some_and(|seen| seen.status == 403) }).await;
    let told = answers(20).await;
    assert_eq!(told.keys().collect::<Vec<_>>(), ["403"], "{told:?}");
}
