//! API servers that ask us about objects.

use std::path::{Path, PathBuf};
use std::time::Duration;

use data_encoding::BASE64;
use pilot_ca::Material;
use pilot_source_kube::Call;
use pilot_testkit::http_call;
use pilot_testkit::kube::KubeServer;
use pilot_testkit::process::free_address;
use pilot_testkit::tools::Tools;
use serde_json::{Value, json};

use super::{Plane, skipped};

const WEBHOOK: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/istio-validator-istio-system";

/// One object of Istio's examples, tried out: is it refused?
async fn refused(cluster: &KubeServer, object: &Value) -> Option<String> {
    let version = object["apiVersion"].as_str().unwrap();
    let kind = object["kind"].as_str().unwrap().to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) if !kind.ends_with("gateway") => format!("{stem}ies"),
        _ => format!("{kind}s"),
    };
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let path = format!("/apis/{version}/namespaces/{namespace}/{plural}?dryRun=All");
    cluster.client.call(Call::post(&path, object.to_string())).await.err().map(|error| error.to_string())
}

async fn corpus(cluster: &KubeServer, folder: &Path) -> (usize, Vec<String>) {
    let (mut count, mut wrong) = (0, Vec::new());
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for document in text.split("\n---\n").filter(|text| text.contains("apiVersion:")) {
            let mut object = pilot_config::read_value(document, "corpus").unwrap();
            let expected = object.as_object_mut().unwrap().remove("_err");
            count += 1;
            let said = refused(cluster, &object).await;
            if said.is_some() != expected.is_some() {
                let (file, name) = (file.file_name().unwrap().display(), &object["metadata"]["name"]);
                wrong.push(format!("{file} {name}: expected {expected:?}, and the API server says {said:?}"));
            }
        }
    }
    (count, wrong)
}

#[tokio::test]
async fn the_api_server_asks_us_and_istios_examples_are_judged_as_by_istio() {
    if skipped() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let cluster = KubeServer::start(&scratch.path().join("cluster"), &[]).await.unwrap();
    let tools = Tools::of_environment();
    let module = tools.istio_module().unwrap();
    cluster.install_crds(module).await.unwrap();
    // At first it leads nowhere: objects go past us, and nobody is kept from writing any.
    let (https, nowhere) = (free_address().unwrap(), free_address().unwrap());
    cluster.install_webhook(nowhere).await.unwrap();
    let folder = scratch.path().join("pilot");
    let authority = plugged(&folder);
    let env = [("ROOT_CA_DIR", authority.to_str().unwrap()), ("ISTIO_MULTIROOT_MESH", "true")];
    let plane = Plane::start_with(&folder, &cluster, https, &env).await;
    let first = cluster.until(WEBHOOK, |found| bundle(found).is_some()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(
        cluster.get(WEBHOOK).await["webhooks"][0]["failurePolicy"],
        "Ignore",
        "nobody was seen to ask"
    );
    let mut right = cluster.get(WEBHOOK).await;
    right["webhooks"][0]["clientConfig"]["url"] = json!(format!("https://{https}/validate"));
    cluster.client.call(Call::put(WEBHOOK, right.to_string())).await.unwrap();
    cluster.until(WEBHOOK, |found| found["webhooks"][0]["failurePolicy"] == "Fail").await.unwrap();

    // Another authority vouches for us from now on.
    plugged(&folder);
    cluster
        .until(WEBHOOK, |found| bundle(found).is_some_and(|now| Some(now) != bundle(&first)))
        .await
        .unwrap();

    let rule = |timeout: &str| {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "VirtualService", "metadata": {"name": "r"},
            "spec": {"hosts": ["a"], "http": [{"timeout": timeout, "route": [{"destination": {"host": "a"}}]}]},
        })
    };
    assert_eq!(refused(&cluster, &rule("1s")).await, None);
    let said = refused(&cluster, &rule("0.0001s")).await.unwrap();
    assert!(said.contains("denied the request") || said.contains("Invalid value"), "{said}");

    // Whoever is let in all the same is told what has no effect.
    let said = warnings(&cluster, &filter(&json!({"labels": {}}))).await;
    assert!(said.contains("has no labels"), "{said}");
    assert_eq!(warnings(&cluster, &filter(&json!({"labels": {"app": "a"}}))).await, "");

    let (count, wrong) = corpus(&cluster, &module.join("pkg/config/validation/testdata/crds")).await;
    assert!(count > 100, "only {count} documents were found");
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));

    let (_, metrics) = http_call::get(plane.server.monitoring, "/metrics").await.unwrap();
    let is_judged = |line: &&str| {
        ["passed", "failed"].iter().any(|what| line.starts_with(&format!("galley_validation_{what}")))
    };
    let passed = metrics.lines().filter(is_judged).count();
    assert_eq!(passed, 0, "what is only tried out is not counted");
    assert!(metrics.contains("galley_validation_config_updates "), "{metrics}");
    // One that its schema lets pass is refused by us.
    let two = json!([{"destination": {"host": "a"}, "weight": 1}, {"destination": {"host": "not a host"}, "weight": 1}]);
    let mut wrong = rule("1s");
    wrong["spec"]["http"][0]["route"] = two;
    let path = "/apis/networking.istio.io/v1/namespaces/default/virtualservices";
    let refused = cluster.client.call(Call::post(path, wrong.to_string())).await.unwrap_err().to_string();
    assert!(refused.contains("denied the request"), "{refused}");
    cluster.client.call(Call::post(path, rule("1s").to_string())).await.unwrap();
    let (_, metrics) = http_call::get(plane.server.monitoring, "/metrics").await.unwrap();
    for line in ["galley_validation_passed{", "galley_validation_failed{"] {
        assert_eq!(metrics.lines().filter(|found| found.starts_with(line)).count(), 1, "{metrics}");
    }
    let forbidden = cluster.forbidden_to_server();
    assert!(forbidden.is_empty(), "our manifests do not allow {forbidden:#?}");
}

/// A CA that somebody has made, in the place of the one before it, which is trusted beside it.
pub(super) fn plugged(folder: &Path) -> PathBuf {
    let folder = folder.join("authority");
    std::fs::create_dir_all(&folder).unwrap();
    let (day, year) = (24 * 60 * 60, 365 * 24 * 60 * 60);
    let made = Material::self_signed("tests", 10 * year, unix_seconds() - day).unwrap();
    let before = std::fs::read_to_string(folder.join("root-cert.pem")).unwrap_or_default();
    let texts = [made.certificate.clone(), made.key, made.certificate, made.root + &before];
    for (name, text) in ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem"].iter().zip(texts) {
        std::fs::write(folder.join(name), text).unwrap();
    }
    folder
}

#[allow(clippy::disallowed_methods, reason = "certificates are good for some time only")]
fn unix_seconds() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

/// By whom the API server knows us; nothing if that is not a certificate.
fn bundle(found: &Value) -> Option<String> {
    let text = found["webhooks"][0]["clientConfig"]["caBundle"].as_str()?;
    let text = String::from_utf8(BASE64.decode(text.as_bytes()).ok()?).ok()?;
    text.starts_with("-----BEGIN CERTIFICATE-----").then_some(text)
}

fn filter(selector: &Value) -> Value {
    let patch = json!({"operation": "MERGE", "value": {}});
    let patches = json!([{"applyTo": "CLUSTER", "patch": patch}]);
    json!({
        "apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter", "metadata": {"name": "f"},
        "spec": {"workloadSelector": selector, "configPatches": patches},
    })
}

/// What an API server says about an object that it lets in.
async fn warnings(cluster: &KubeServer, object: &Value) -> String {
    let path = "/apis/networking.istio.io/v1alpha3/namespaces/default/envoyfilters?dryRun=All";
    let response = cluster.client.stream(Call::post(path, object.to_string())).await.unwrap();
    let all = response.headers().get_all("warning").iter();
    all.map(|header| header.to_str().unwrap().to_owned()).collect()
}
