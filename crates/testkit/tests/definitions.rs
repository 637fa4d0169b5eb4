//! `pilotctl install crds` on a real API server: every kind in every version that is served, as Istio's own definitions
//! have it, and rules of all of them are read by the server.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::path::Path;

use pilot_source_kube::definitions;
use pilot_testkit::http_call;
use pilot_testkit::kube::KubeServer;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use serde_json::{Value, json};

fn skipped() -> bool {
    let why = Tools::of_environment().why_skip_kube();
    if let Some(why) = &why {
        eprintln!("skipped: {why}");
    }
    why.is_some()
}

/// Runs `pilotctl install crds`; what it prints.
async fn install(kube: &KubeServer, more: &[&str]) -> String {
    let program = Tools::of_environment().own("pilotctl").unwrap();
    let mut command = tokio::process::Command::new(program);
    command.args(["install", "crds"]).args(more).arg("--kubeconfig").arg(kube.kubeconfig());
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The least that a rule of a kind must say.
fn spec(kind: &str) -> Value {
    match kind {
        "VirtualService" => {
            json!({"hosts": ["a.example"], "http": [{"route": [{"destination": {"host": "a.example"}}]}]})
        }
        "DestinationRule" => json!({"host": "a.example"}),
        "ServiceEntry" => {
            json!({"hosts": ["a.example"], "resolution": "DNS", "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}]})
        }
        "WorkloadEntry" => json!({"address": "10.1.0.1"}),
        "WorkloadGroup" => json!({"template": {"serviceAccount": "default"}}),
        "Gateway" => {
            json!({"selector": {"a": "b"}, "servers": [{"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["a.example"]}]})
        }
        "Sidecar" => json!({"egress": [{"hosts": ["./*"]}]}),
        "EnvoyFilter" => {
            json!({"configPatches": [{"applyTo": "CLUSTER", "patch": {"operation": "MERGE", "value": {"connect_timeout": "5s"}}}]})
        }
        "RequestAuthentication" => {
            json!({"jwtRules": [{"issuer": "a", "jwksUri": "https://a.example/keys"}]})
        }
        "WasmPlugin" => json!({"url": "file:///a.wasm"}),
        "TrafficExtension" => json!({"lua": {"inlineCode": "function envoy_on_request(h) end"}}),
        _ => json!({}),
    }
}

fn of(definition: &Value) -> impl Iterator<Item = (String, String, Value)> {
    let text = |pointer: &str| definition.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    let (group, kind) = (text("/spec/group"), text("/spec/names/kind"));
    let versions = definition["spec"]["versions"].as_array().unwrap().clone();
    versions.into_iter().map(move |version| {
        let name = version["name"].as_str().unwrap();
        (kind.clone(), format!("{group}/{name}"), json!(format!("{}-{name}", kind.to_lowercase())))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_of_every_kind_and_version_are_read() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let kube = KubeServer::start(&scratch.path().join("kube"), &[]).await.unwrap();
    // The server is there first, and follows kinds as they come.
    let server = PilotServer::start_on(scratch.path(), &kube.kubeconfig()).await.unwrap();
    let told = install(&kube, &[]).await;
    assert_eq!(told.matches(": installed\n").count(), definitions().len(), "{told}");
    assert_eq!(install(&kube, &[]).await, told, "once more is the same");
    let places = |definition: &Value| {
        format!(
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}",
            definition["metadata"]["name"].as_str().unwrap()
        )
    };
    kube.until_established(&definitions().iter().map(places).collect::<Vec<_>>()).await.unwrap();

    let mut waited = Vec::new();
    for (kind, version, name) in definitions().iter().flat_map(of) {
        let metadata = json!({"name": name, "namespace": "default"});
        let object = json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec(&kind)});
        kube.apply(&object).await.unwrap();
        kube.status(&object, &json!({"conditions": []})).await.unwrap();
        waited.push(object.to_string());
    }
    assert!(waited.len() > 30, "{waited:?}");
    let path = "/debug/propagation?wait=20";
    let (status, report) = http_call::post(server.monitoring, path, &waited.join("\n---\n")).await.unwrap();
    let report: Value = serde_json::from_str(&report).unwrap_or_default();
    assert_eq!(status, 200, "{report}");
    let objects = report["objects"].as_array().unwrap();
    let unknown: Vec<_> = objects.iter().filter(|object| object["known"] != "yes").collect();
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert_eq!(objects.len(), waited.len());
}

/// What makes a definition: all but schemas and descriptions.
fn outline(definition: &Value) -> Value {
    let mut versions = BTreeMap::new();
    for version in definition["spec"]["versions"].as_array().unwrap() {
        let columns = version["additionalPrinterColumns"].as_array().cloned().unwrap_or_default();
        let columns: Vec<Value> = columns
            .iter()
            .map(|column| json!([column["name"], column["jsonPath"], column["type"]]))
            .collect();
        let facts = json!({
            "served": version["served"], "storage": version["storage"], "columns": columns,
            "status": version["subresources"]["status"], "required": version["schema"]["openAPIV3Schema"]["required"],
        });
        versions.insert(version["name"].as_str().unwrap().to_owned(), facts);
    }
    let spec = &definition["spec"];
    json!({"group": spec["group"], "names": spec["names"], "scope": spec["scope"], "versions": versions})
}

fn of_istio(module: &Path) -> BTreeMap<String, Value> {
    let text = std::fs::read_to_string(module.join("manifests/charts/base/files/crd-all.gen.yaml")).unwrap();
    let documents =
        text.split("\n---\n").filter(|document| document.contains("kind: CustomResourceDefinition"));
    let read = |document| pilot_config::read_value(document, "crd").unwrap();
    documents
        .map(read)
        .map(|crd: Value| (crd["metadata"]["name"].as_str().unwrap().to_owned(), outline(&crd)))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_are_like_istios_and_leave_istios_alone() {
    if skipped() {
        return;
    }
    let module = Tools::of_environment().istio_module().unwrap().to_owned();
    let ours: BTreeMap<String, Value> = definitions()
        .iter()
        .map(|crd| (crd["metadata"]["name"].as_str().unwrap().to_owned(), outline(crd)))
        .collect();
    for (name, istios) in &of_istio(&module) {
        assert_eq!(ours.get(name), Some(istios), "{name}");
    }
    let scratch = tempfile::tempdir().unwrap();
    let kube = KubeServer::start(scratch.path(), &[]).await.unwrap();
    kube.install_crds(&module).await.unwrap();
    let told = install(&kube, &[]).await;
    assert!(told.contains("virtualservices.networking.istio.io: left as it is"), "{told}");
    assert!(told.contains("--force takes them over"), "{told}");
    let told = install(&kube, &["--force"]).await;
    assert_eq!(told.matches(": installed\n").count(), ours.len(), "{told}");
}
