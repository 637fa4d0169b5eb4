//! Every sort of Service with its endpoints, told by an API server: proxies are sent what they are sent of the same objects in
//! a folder. The objects are those that istiod is compared with, so that an API server's defaults and forms are seen too.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::path::Path;

use pilot_envoy_api::envoy::config::cluster::v3::Cluster;
use pilot_envoy_api::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use pilot_envoy_api::envoy::config::core::v3::{Locality, Node};
use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
use pilot_testkit::kube::KubeServer;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream};
use pilot_xds::TypeUrl;
use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{Struct, Value as Word};
use serde_json::{Value, json};

const ADDRESSES: &str = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112";
/// Tables of routes that the services have ports for.
const TABLES: [&str; 7] = ["80", "443", "7000", "8000", "9000", "9090", "inbound|8080||"];

/// An API server takes no such label, though everybody's documentation has it: a cookie's path goes without saying here.
const PATH: (&str, &str) = ("session:/", "session");

fn documents(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/parity/kube/services").join(file);
    let text = std::fs::read_to_string(path).unwrap().replace(PATH.0, PATH.1);
    text.split("\n---\n").map(|text| pilot_config::read_value(text, file).unwrap()).collect()
}

/// Tells an API server an object, with what it asks for beside what counts.
async fn tell(cluster: &KubeServer, object: &Value) {
    let mut object = object.clone();
    let containers = object.pointer_mut("/spec/containers").and_then(Value::as_array_mut);
    for container in containers.into_iter().flatten() {
        container["image"] = "any".into();
    }
    let status = object.as_object_mut().unwrap().remove("status");
    cluster.apply(&object).await.unwrap();
    if let Some(status) = status {
        cluster.status(&object, &status).await.unwrap();
    }
}

/// A proxy as the list of clients describes it.
fn node(client: &Value) -> Node {
    let text = |key: &str| client[key].as_str().unwrap_or_default().to_owned();
    let (name, namespace) = (text("name"), text("namespace"));
    let ips: Vec<&str> = client["ips"].as_array().unwrap().iter().map(|ip| ip.as_str().unwrap()).collect();
    let word = |text: &str| Word { kind: Some(Kind::StringValue(text.to_owned())) };
    let words = |map: &Value| -> BTreeMap<String, Word> {
        let all = map.as_object().into_iter().flatten();
        all.map(|(key, value)| (key.clone(), word(value.as_str().unwrap()))).collect()
    };
    let mut metadata = words(&client["metadata"]);
    metadata.insert("NAMESPACE".to_owned(), word(&namespace));
    metadata.insert("INSTANCE_IPS".to_owned(), word(&ips.join(",")));
    metadata.entry("CLUSTER_ID".to_owned()).or_insert_with(|| word("Kubernetes"));
    let labels = Struct { fields: words(&client["labels"]) };
    metadata.insert("LABELS".to_owned(), Word { kind: Some(Kind::StructValue(labels)) });
    let kind = client["type"].as_str().unwrap_or("sidecar");
    let place = text("locality");
    let mut parts = place.split('/').map(str::to_owned).chain(std::iter::repeat(String::new()));
    let mut part = || parts.next().unwrap();
    Node {
        id: format!("{kind}~{}~{name}.{namespace}~{namespace}.svc.cluster.local", ips[0]),
        metadata: Some(Struct { fields: metadata }),
        locality: Some(Locality { region: part(), zone: part(), sub_zone: part() }),
        ..Node::default()
    }
}

/// Everything that a proxy is sent of a type, in an order of its own.
async fn sent(
    stream: &mut Stream<StateOfTheWorld>,
    kind: TypeUrl,
    names: &[String],
    node: &Node,
) -> Vec<Vec<u8>> {
    stream.send(DiscoveryRequest {
        type_url: kind.as_str().to_owned(),
        resource_names: names.to_vec(),
        node: Some(node.clone()),
        ..DiscoveryRequest::default()
    });
    let response = stream.next().await.unwrap().unwrap();
    assert_eq!(response.type_url, kind.as_str());
    let (version_info, response_nonce) = (response.version_info, response.nonce);
    let resource_names = names.to_vec();
    stream.send(DiscoveryRequest {
        version_info,
        response_nonce,
        resource_names,
        type_url: kind.as_str().to_owned(),
        ..DiscoveryRequest::default()
    });
    let mut all: Vec<Vec<u8>> = response.resources.into_iter().map(|any| any.value).collect();
    all.sort();
    all
}

async fn everything(server: &PilotServer, node: &Node) -> Vec<(TypeUrl, Vec<Vec<u8>>)> {
    let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    let clusters = sent(&mut stream, TypeUrl::Cluster, &[], node).await;
    let looked_up = Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into()));
    let named = clusters.iter().map(|bytes| Cluster::decode(&bytes[..]).unwrap());
    let names: Vec<String> = named
        .filter(|cluster| cluster.cluster_discovery_type == looked_up)
        .map(|cluster| cluster.name)
        .collect();
    assert!(names.len() > 10, "only {names:?}");
    let endpoints = sent(&mut stream, TypeUrl::Endpoint, &names, node).await;
    let listeners = sent(&mut stream, TypeUrl::Listener, &[], node).await;
    let mut all =
        vec![(TypeUrl::Cluster, clusters), (TypeUrl::Endpoint, endpoints), (TypeUrl::Listener, listeners)];
    if node.id.starts_with("sidecar") {
        let tables = TABLES.map(str::to_owned);
        all.push((TypeUrl::Route, sent(&mut stream, TypeUrl::Route, &tables, node).await));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_of_an_api_server_mean_what_they_mean_in_a_folder() {
    if let Some(why) = Tools::of_environment().why_skip_kube() {
        eprintln!("skipped: {why}");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let cluster = KubeServer::start(&scratch.path().join("kube"), &[ADDRESSES]).await.unwrap();
    cluster.define_rules().await.unwrap();
    let objects = [documents("k8s/world.yaml"), documents("config/rules.yaml")].concat();
    for object in &objects {
        tell(&cluster, object).await;
    }
    let folder = scratch.path().join("told");
    std::fs::create_dir_all(&folder).unwrap();
    let told = PilotServer::start_on(&folder, &cluster.kubeconfig()).await.unwrap();

    // The API server itself is a service too.
    let mut own = cluster.get("/api/v1/namespaces/default/services/kubernetes").await;
    (own["apiVersion"], own["kind"]) = ("v1".into(), "Service".into());
    let folder = scratch.path().join("read");
    std::fs::create_dir_all(folder.join("config")).unwrap();
    let texts: Vec<String> = objects.iter().chain([&own]).map(ToString::to_string).collect();
    std::fs::write(folder.join("config/world.yaml"), texts.join("\n---\n")).unwrap();
    let read = PilotServer::start(&folder, &[]).await.unwrap();

    let clients = documents("nodes.yaml").remove(0);
    let mut compared = 0;
    for client in clients.as_array().unwrap() {
        let node = node(client);
        let (from_folder, from_cluster) = (everything(&read, &node).await, everything(&told, &node).await);
        for ((kind, expected), (_, found)) in from_folder.iter().zip(&from_cluster) {
            let text = |all: &[Vec<u8>]| -> Vec<String> {
                let other = if std::ptr::eq(all, expected.as_slice()) { found } else { expected };
                let only = all.iter().filter(|bytes| !other.contains(bytes));
                only.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
            };
            let differs = (text(expected), text(found));
            assert!(expected == found, "{} {kind:?}: {differs:#?}", node.id);
            compared += expected.len();
        }
    }
    println!("{compared} resources are equal");
    assert!(compared > 500, "only {compared} resources were compared");
    assert!(json!(clients).as_array().unwrap().len() > 8);
}
