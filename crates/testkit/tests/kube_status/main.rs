//! What the server writes about objects into a real cluster: addresses, verdicts, workloads that come and go.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod ingresses;
mod workloads;

use std::path::Path;
use std::time::Duration;

use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use pilot_testkit::gatekeeper::{Asked, Fate, Gatekeeper};
use pilot_testkit::kube::KubeServer;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream};
use prost_types::value::Kind;
use prost_types::{Struct, Value as Word};
use serde_json::{Value, json};

const ENTRIES: &str = "/apis/networking.istio.io/v1/namespaces/shop/serviceentries";
const RULES: &str = "/apis/networking.istio.io/v1/namespaces/shop/virtualservices";

/// A cluster with Istio's CRDs and a namespace; nothing where there is no API server.
async fn cluster(scratch: &Path) -> Option<KubeServer> {
    let tools = Tools::of_environment();
    if let Some(why) = tools.why_skip_kube() {
        eprintln!("skipped: {why}");
        return None;
    }
    let cluster = KubeServer::start(&scratch.join("kube"), &[]).await.unwrap();
    for namespace in ["istio-system", "shop"] {
        cluster.namespace(namespace, &json!({})).await.unwrap();
    }
    cluster.install_crds(tools.istio_module().unwrap()).await.unwrap();
    Some(cluster)
}

/// A server that may do what our manifests allow.
async fn serve(scratch: &Path, cluster: &KubeServer, env: &[(&str, &str)]) -> PilotServer {
    let config = cluster.installed(cluster.address).await.unwrap();
    serve_by(scratch, &config, env).await
}

async fn serve_by(scratch: &Path, kubeconfig: &str, env: &[(&str, &str)]) -> PilotServer {
    serve_with(scratch, kubeconfig, &[], env).await
}

async fn serve_with(scratch: &Path, kubeconfig: &str, more: &[&str], env: &[(&str, &str)]) -> PilotServer {
    std::fs::create_dir_all(scratch).unwrap();
    let file = scratch.join("pilot-kubeconfig");
    std::fs::write(&file, kubeconfig).unwrap();
    let kubeconfig = format!("--kubeconfig={}", file.display());
    let flags = [&["--registries=Kubernetes", "--configDir=", &kubeconfig][..], more].concat();
    let env: Vec<(&str, &str)> = [("POD_NAME", "istiod-0")].into_iter().chain(env.iter().copied()).collect();
    PilotServer::start_in(scratch, &flags, &env).await.unwrap()
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    let metadata = json!({"name": name, "namespace": "shop"});
    json!({"apiVersion": "networking.istio.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
}

fn entry(name: &str, hosts: &[&str], resolution: &str) -> Value {
    let ports = json!([{"number": 80, "name": "http", "protocol": "HTTP"}]);
    let spec = json!({"hosts": hosts, "ports": ports, "resolution": resolution, "location": "MESH_EXTERNAL"});
    object("ServiceEntry", name, &spec)
}

fn addresses(entry: &Value) -> Vec<String> {
    let all = entry["status"]["addresses"].as_array().into_iter().flatten();
    all.map(|at| format!("{} {}", at["host"].as_str().unwrap(), at["value"].as_str().unwrap())).collect()
}

fn proxy(metadata: &[(&str, &str)]) -> Node {
    let word = |text: &&str| Word { kind: Some(Kind::StringValue((*text).to_owned())) };
    let fields = metadata.iter().map(|(key, value)| ((*key).to_owned(), word(value))).collect();
    Node {
        id: "sidecar~10.0.0.1~vm.shop~shop.svc.cluster.local".to_owned(),
        metadata: Some(Struct { fields }),
        ..Node::default()
    }
}

fn ask(type_url: &str, names: &[&str], node: Option<Node>) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: type_url.to_owned(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        node,
        ..DiscoveryRequest::default()
    }
}

/// Reads answers until one of them holds a text.
async fn until_told(stream: &mut Stream<StateOfTheWorld>, type_url: &str, text: &str) {
    until_told_of(stream, type_url, ("", text)).await;
}

/// The same where a name has to be asked for again.
async fn until_told_of(stream: &mut Stream<StateOfTheWorld>, type_url: &str, (name, text): (&str, &str)) {
    let names: Vec<&str> = Some(name).filter(|name| !name.is_empty()).into_iter().collect();
    let holds = |response: &DiscoveryResponse| {
        response.resources.iter().any(|any| any.value.windows(text.len()).any(|part| part == text.as_bytes()))
    };
    let mut last = String::new();
    for _ in 0..100 {
        let Ok(response) = stream.next().await else { break };
        let response = response.unwrap();
        last = response.resources.iter().map(|any| String::from_utf8_lossy(&any.value)).collect();
        let (version_info, response_nonce) = (response.version_info.clone(), response.nonce.clone());
        stream.send(DiscoveryRequest { version_info, response_nonce, ..ask(type_url, &names, None) });
        if holds(&response) {
            return;
        }
    }
    panic!("nothing that was told holds {text}; the last was {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_without_addresses_are_given_some_that_stay() {
    const NAMES: &str = "type.googleapis.com/istio.networking.nds.v1.NameTable";
    const LISTENERS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    cluster.apply(&entry("first", &["one.com", "two.com"], "DNS")).await.unwrap();
    let mut server = serve(scratch.path(), &cluster, &[]).await;
    let at = |name: &str| format!("{ENTRIES}/{name}");
    let first = cluster.until(&at("first"), |found| !addresses(found).is_empty()).await.unwrap();
    let given = ["one.com 240.240.0.1", "one.com 2001:2::1", "two.com 240.240.0.2", "two.com 2001:2::2"];
    assert_eq!(addresses(&first), given);

    // Proxies are told at once: a name table leads there, and a listener waits there.
    let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(ask(NAMES, &[], Some(proxy(&[("DNS_CAPTURE", "true")]))));
    until_told(&mut stream, NAMES, "240.240.0.1").await;
    let tcp = json!({"hosts": ["tcp.com"], "resolution": "DNS", "ports": [{"number": 9000, "name": "tcp", "protocol": "TCP"}]});
    cluster.apply(&object("ServiceEntry", "tcp", &tcp)).await.unwrap();
    let mut listeners = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    listeners.send(ask(LISTENERS, &[], Some(proxy(&[("DNS_CAPTURE", "true")]))));
    until_told(&mut listeners, LISTENERS, "240.240.0.3_9000").await;

    // Who has or wants none is given none, and what he had is taken back.
    cluster.apply(&entry("none", &["none.com"], "NONE")).await.unwrap();
    let mut opted_out = entry("tcp", &["tcp.com"], "DNS");
    opted_out["metadata"]["labels"] = json!({"networking.istio.io/enable-autoallocate-ip": "false"});
    cluster.apply(&opted_out).await.unwrap();
    cluster.until(&at("tcp"), |found| addresses(found).is_empty()).await.unwrap();

    // An address that two have: the older keeps it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    cluster.apply(&entry("second", &["three.com"], "DNS")).await.unwrap();
    cluster.until(&at("second"), |found| !addresses(found).is_empty()).await.unwrap();
    let twice = json!({"addresses": [{"value": "240.240.0.1", "host": "three.com"}]});
    cluster.status(&entry("second", &[], ""), &twice).await.unwrap();
    let second = cluster
        .until(&at("second"), |found| {
            let found = addresses(found);
            found.len() == 2 && !found.contains(&"three.com 240.240.0.1".to_owned())
        })
        .await
        .unwrap();

    // Another server finds what is there, and leaves it alone.
    server.process.terminate().await.unwrap();
    let _again =
        serve(&scratch.path().join("again"), &cluster, &[("POD_NAME", "istiod-1"), ("REVISION", "default")])
            .await;
    cluster.apply(&entry("third", &["four.com"], "STATIC")).await.unwrap();
    let third = cluster.until(&at("third"), |found| !addresses(found).is_empty()).await.unwrap();
    assert!(addresses(&third).iter().all(|at| !addresses(&first).contains(at)), "{third:#}");
    let version = |found: &Value| found["metadata"]["resourceVersion"].clone();
    for before in [&first, &second] {
        let name = before["metadata"]["name"].as_str().unwrap();
        assert_eq!(version(&cluster.get(&at(name)).await), version(before), "{name} was written to");
    }
    assert!(addresses(&cluster.get(&at("none")).await).is_empty());
    let lock = "/api/v1/namespaces/istio-system/configmaps/istio-ip-autoallocate";
    assert!(cluster.get(lock).await["metadata"]["annotations"].to_string().contains("istiod-1"));
    was_allowed(&cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_a_rule_stands_in_its_status() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    let rule = |name: &str, host: &str| {
        let destination = |host: &str| json!({"destination": {"host": host}, "weight": 50});
        let route = json!([destination("a"), destination(host)]);
        object("VirtualService", name, &json!({"hosts": [name], "http": [{"route": route}]}))
    };
    for name in ["a", "b"] {
        let metadata = json!({"name": name, "namespace": "shop"});
        let spec = json!({"ports": [{"name": "http", "port": 80}]});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        cluster.apply(&service).await.unwrap();
    }
    cluster.apply(&rule("bad", "not a host")).await.unwrap();
    cluster.apply(&rule("good", "b")).await.unwrap();
    // Somebody else reads this one, and has judged it.
    let mut elsewhere = rule("elsewhere", "b");
    elsewhere["metadata"]["labels"] = json!({"istio.io/rev": "other"});
    cluster.apply(&elsewhere).await.unwrap();
    let judged = json!({"validationMessages": [{"level": "ERROR", "type": {"code": "IST0101"}}]});
    cluster.status(&elsewhere, &judged).await.unwrap();
    let env = [("PILOT_ENABLE_ANALYSIS", "true"), ("REVISION", "default")];
    let _server = serve(scratch.path(), &cluster, &env).await;
    let at = |name: &str| format!("{RULES}/{name}");
    let is_judged =
        |found: &Value| found["status"]["validationMessages"].as_array().is_some_and(|all| !all.is_empty());
    let bad = cluster.until(&at("bad"), is_judged).await.unwrap();
    let status = &bad["status"];
    assert_eq!(status["validationMessages"][0]["level"], "ERROR", "{status:#}");
    assert_eq!(status["validationMessages"][0]["type"]["code"], "IST0106");
    assert_eq!(
        status["observedGeneration"].to_string().trim_matches('"'),
        bad["metadata"]["generation"].to_string()
    );
    let said = status["conditions"][0]["message"].as_str().unwrap();
    assert!(said.contains("spec.http[0].route[1].destination.host"), "{said}");

    // What others wrote stays, and nothing is written twice.
    let theirs = json!({"conditions": [status["conditions"][0], {"type": "Theirs", "status": "True"}]});
    cluster.status(&rule("bad", ""), &theirs).await.unwrap();
    let version = cluster.get(&at("bad")).await["metadata"]["resourceVersion"].clone();
    cluster.apply(&rule("worse", "not a host either")).await.unwrap();
    cluster.until(&at("worse"), is_judged).await.unwrap();
    assert_eq!(cluster.get(&at("bad")).await["metadata"]["resourceVersion"], version);
    assert_eq!(cluster.get(&at("good")).await["status"], Value::Null, "a good rule is left alone");

    cluster.apply(&rule("bad", "b")).await.unwrap();
    let well = cluster.until(&at("bad"), |found| !is_judged(found)).await.unwrap();
    let types: Vec<&str> = well["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| condition["type"].as_str().unwrap())
        .collect();
    assert_eq!(types, ["Theirs"]);
    let status = cluster.get(&at("elsewhere")).await["status"].clone();
    assert_eq!(
        status["validationMessages"][0]["type"]["code"], "IST0101",
        "it is theirs to judge: {status:#}"
    );
    was_allowed(&cluster);
}

/// Nothing that our manifests forbid was asked for.
fn was_allowed(cluster: &KubeServer) {
    let forbidden = cluster.forbidden_to_server();
    assert!(forbidden.is_empty(), "our manifests do not allow {forbidden:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_write_asks_now_and_then_however_much_happens() {
    let scratch = tempfile::tempdir().unwrap();
    let Some(cluster) = cluster(scratch.path()).await else { return };
    for i in 0..20 {
        cluster.apply(&entry(&format!("e{i:02}"), &[&format!("e{i}.com")], "DNS")).await.unwrap();
        let rule =
            object("VirtualService", &format!("r{i:02}"), &json!({"hosts": ["not a host"], "http": []}));
        cluster.apply(&rule).await.unwrap();
    }
    let gate = Gatekeeper::before(&cluster).await.unwrap();
    let is_write = |asked: &Asked| asked.method == "PATCH" && asked.path.ends_with("/status");
    gate.rule(move |asked| if is_write(asked) { Fate::Refuse(403) } else { Fate::Pass });
    let config = gate.kubeconfig("lab-admin-token");
    let server = serve_by(scratch.path(), &config, &[("PILOT_ENABLE_ANALYSIS", "true")]).await;
    let mut writes = 0;
    let mut seen = || {
        writes += gate.asked().iter().filter(|asked| is_write(asked)).count();
        writes
    };
    while seen() == 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Each of these is told to everybody who writes.
    for i in 0..200 {
        let mut changed = entry(&format!("e{:02}", i % 20), &[&format!("e{}.com", i % 20)], "DNS");
        changed["metadata"]["labels"] = json!({"round": i.to_string()});
        cluster.apply(&changed).await.unwrap();
    }
    let writes = seen();
    assert!(writes < 20, "{writes} writes were tried in vain");
    gate.rule(|_| Fate::Pass);
    let path = format!("{ENTRIES}/e19");
    cluster.until(&path, |found| !addresses(found).is_empty()).await.unwrap();
    drop(server);
}
