//! Who has accepted what an object says, who is behind and who refuses it: on the page, in metrics, and for who waits.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Stdio;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use pilot_envoy_api::google::rpc::Status;
use pilot_testkit::http_call;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{Delta, Stream, node};
use pilot_xds::TypeUrl;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

fn service(name: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{hosts: [{name}.example], resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], endpoints: [{{address: 10.1.0.1}}]}}\n"
    )
}

fn rule(name: &str, path: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{hosts: [{name}.example], http: [{{match: [{{uri: {{prefix: {path}}}}}], route: [{{destination: {{host: {name}.example}}}}]}}]}}\n"
    )
}

fn write(config: &Path, name: &str, text: &str) {
    std::fs::create_dir_all(config).unwrap();
    std::fs::write(config.join(format!("{name}.yaml")), text).unwrap();
}

async fn start() -> (tempfile::TempDir, PilotServer) {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("config");
    for name in ["a", "b"] {
        write(&config, &format!("service-{name}"), &service(name));
        write(&config, name, &rule(name, "/one"));
    }
    let server = PilotServer::start(scratch.path(), &[]).await.unwrap();
    (scratch, server)
}

fn subscribe(type_url: TypeUrl, names: &[&str], node: Option<Node>) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.as_str().to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        node,
        ..DeltaDiscoveryRequest::default()
    }
}

/// A proxy that accepts and refuses what the test says.
struct Proxy(Stream<Delta>);

impl Proxy {
    /// One that has routes and clusters.
    async fn connect(server: &PilotServer, name: &str) -> Self {
        let mut proxy = Self(Stream::<Delta>::open(server.grpc).await.unwrap());
        proxy.0.send(subscribe(TypeUrl::Cluster, &["*"], Some(node(name))));
        proxy.0.send(subscribe(TypeUrl::Route, &["80"], None));
        for _ in 0..2 {
            let response = proxy.next().await;
            proxy.answer(&response, None);
        }
        proxy
    }

    async fn next(&mut self) -> DeltaDiscoveryResponse {
        self.0.next().await.unwrap().unwrap()
    }

    fn answer(&self, response: &DeltaDiscoveryResponse, refusal: Option<&str>) {
        self.0.send(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail: refusal.map(|why| Status {
                code: 13,
                message: why.to_owned(),
                ..Status::default()
            }),
            ..DeltaDiscoveryRequest::default()
        });
    }

    async fn accept(&mut self) {
        let response = self.next().await;
        assert_eq!(response.type_url, TypeUrl::Route.as_str());
        self.answer(&response, None);
    }
}

async fn page(server: &PilotServer, path: &str) -> (u16, Value) {
    let (status, body) = http_call::get(server.monitoring, path).await.unwrap();
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// What has become of a rule, once it is as far as it will get or `wait` is over.
async fn rule_state(server: &PilotServer, name: &str, more: &str) -> Value {
    let path = format!("/debug/propagation?kind=VirtualService&namespace=default&name={name}{more}");
    let (status, report) = page(server, &path).await;
    assert_eq!(status, 200, "{report}");
    report
}

/// `pilotctl wait` for a file.
struct Waiting {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Waiting {
    fn start(server: &PilotServer, file: &Path, timeout: &str) -> Self {
        let mut command = Command::new(Tools::of_environment().own("pilotctl").unwrap());
        command.arg("wait").arg("-f").arg(file).arg(format!("--timeout={timeout}"));
        command.arg(format!("--address={}", server.monitoring));
        let mut process =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// Reads on until somebody says so.
    async fn until(&mut self, text: &str) {
        let mut all = Vec::new();
        while let Some(line) = self.lines.next_line().await.unwrap() {
            if line.contains(text) {
                return;
            }
            all.push(line);
        }
        panic!("{text:?} is not said, but {all:?}");
    }

    /// Exit status, and what was said of mistakes.
    async fn end(mut self) -> (Option<i32>, String) {
        while self.lines.next_line().await.unwrap().is_some() {}
        let output = self.process.wait_with_output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

#[tokio::test]
async fn a_rule_is_accepted_when_every_proxy_has_answered() {
    let (scratch, server) = start().await;
    let (mut one, mut two) = (Proxy::connect(&server, "one").await, Proxy::connect(&server, "two").await);
    let report = rule_state(&server, "a", "&wait=20").await;
    assert_eq!(
        (&report["complete"], &report["objects"][0]["concerned"]),
        (&true.into(), &2.into()),
        "{report:#}"
    );

    let file = scratch.path().join("new.yaml");
    std::fs::write(&file, rule("a", "/two")).unwrap();
    let mut waiting = Waiting::start(&server, &file, "1h");
    waiting.until("the server still has another version of it").await;
    write(&server.config, "a", &rule("a", "/two"));
    waiting.until("0 of 2 proxies have it; not yet: one.default, two.default").await;
    one.accept().await;
    waiting.until("1 of 2 proxies have it; not yet: two.default").await;
    let metrics = http_call::get(server.monitoring, "/metrics").await.unwrap().1;
    for line in ["pilot_xds_proxies{state=\"current\"} 1", "pilot_xds_proxies{state=\"behind\"} 1"] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    // The other rule is as it was, and is not waited for.
    assert_eq!(rule_state(&server, "b", "").await["complete"], true);
    two.accept().await;
    waiting.until("2 of 2 proxies have it").await;
    assert_eq!(waiting.end().await, (Some(0), String::new()));
    let report = rule_state(&server, "a", "").await;
    assert_eq!(report["objects"][0]["accepted"], 2, "{report:#}");
}

#[tokio::test]
async fn who_refuses_a_rule_is_named_with_the_reason() {
    let (scratch, server) = start().await;
    let (mut good_proxy, mut picky) =
        (Proxy::connect(&server, "good").await, Proxy::connect(&server, "picky").await);
    let file = scratch.path().join("new.yaml");
    std::fs::write(&file, rule("a", "/two")).unwrap();
    write(&server.config, "a", &rule("a", "/two"));
    good_proxy.accept().await;
    let response = picky.next().await;
    picky.answer(&response, Some("80: not to my taste"));
    let mut waiting = Waiting::start(&server, &file, "1h");
    waiting.until("1 of 2 proxies have it").await;
    waiting.until("picky.default refuses it (rds): 80: not to my taste").await;
    assert_eq!(waiting.end().await.0, Some(1));
    let metrics = http_call::get(server.monitoring, "/metrics").await.unwrap().1;
    for line in [
        "pilot_xds_proxies{state=\"refusing\"} 1",
        "pilot_refused_objects{kind=\"VirtualService\",name=\"a\",namespace=\"default\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let (_, synced) = page(&server, "/debug/syncz").await;
    let of =
        |name: &str| synced.as_array().unwrap().iter().find(|proxy| proxy["proxy"] == name).unwrap().clone();
    let (good, picky_now) = (of("good.default"), of("picky.default"));
    assert_eq!(good["route_sent"], good["route_acked"], "{good:#}");
    assert_ne!(picky_now["route_sent"], picky_now["route_acked"], "{picky_now:#}");
    assert_eq!(picky_now["resources"][TypeUrl::Route.as_str()]["lastError"], "80: not to my taste");
    assert_eq!(picky_now["proxy_type"], "sidecar");

    // A rule that the proxy takes makes it well again.
    write(&server.config, "a", &rule("a", "/three"));
    good_proxy.accept().await;
    picky.accept().await;
    let report = rule_state(&server, "a", "&wait=20").await;
    assert_eq!(
        (&report["complete"], &report["objects"][0]["accepted"]),
        (&true.into(), &2.into()),
        "{report:#}"
    );
}

#[tokio::test]
async fn what_cannot_be_is_told_at_once_and_what_does_not_come_in_time() {
    let (scratch, server) = start().await;
    let broken = scratch.path().join("broken.yaml");
    std::fs::write(&broken, rule("a", "/x").replace("route:", "timeout: soon, route:")).unwrap();
    let (status, said) = Waiting::start(&server, &broken, "1h").end().await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("VirtualService default/a"), "{said}");
    let unknown = scratch.path().join("unknown.yaml");
    std::fs::write(&unknown, rule("nobody", "/x")).unwrap();
    let (status, said) = Waiting::start(&server, &unknown, "100ms").end().await;
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("not everybody has everything"), "{said}");
    let other = scratch.path().join("other.yaml");
    std::fs::write(&other, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n").unwrap();
    let (status, said) = Waiting::start(&server, &other, "1h").end().await;
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("nothing in these files"), "{said}");
    for (path, status) in [
        ("/debug/propagation", 400),
        ("/debug/propagation?kind=VirtualService&name=a&wait=soon", 400),
        ("/debug/propagation?kind=VirtualService&name=a&seen=%20", 400),
        ("/debug/propagation?kind=VirtualService&name=nobody", 200),
    ] {
        assert_eq!(page(&server, path).await.0, status, "{path}");
    }
}

#[tokio::test]
async fn a_proxy_that_leaves_or_comes_is_not_waited_for() {
    let (_scratch, server) = start().await;
    let (mut one, two) = (Proxy::connect(&server, "one").await, Proxy::connect(&server, "two").await);
    write(&server.config, "a", &rule("a", "/two"));
    one.accept().await;
    let waits = rule_state(&server, "a", "&wait=20");
    drop(two);
    let report = waits.await;
    assert_eq!(
        (&report["complete"], &report["objects"][0]["concerned"]),
        (&true.into(), &1.into()),
        "{report:#}"
    );
    let _three = Proxy::connect(&server, "three").await;
    let report = rule_state(&server, "a", "&wait=20").await;
    assert_eq!(
        (&report["complete"], &report["objects"][0]["concerned"]),
        (&true.into(), &2.into()),
        "{report:#}"
    );
}

#[tokio::test]
async fn every_page_is_listed_and_there() {
    let (_scratch, server) = start().await;
    let (_, names) = page(&server, "/debug/list").await;
    let (status, index) = page(&server, "/debug").await;
    assert_eq!(status, 200);
    let names = names.as_array().unwrap();
    assert!(names.len() >= 8, "{names:?}");
    for name in names.iter().map(|name| name.as_str().unwrap()) {
        let (status, said) = page(&server, &format!("/debug/{name}")).await;
        assert_ne!(status, 404, "{name}");
        let says_what_it_needs = |said: &str| said.contains("say which") || said.contains("proxyID");
        assert!(status == 200 || said.as_str().is_some_and(says_what_it_needs), "{name}: {said}");
        assert!(index.as_str().unwrap().contains(&format!("/debug/{name}")), "{name}");
    }
}
