//! An API server for scenarios: what they write into a folder otherwise is applied there.
//!
//! It refuses endpoints on loopback addresses. So it runs in a network of its own, in which 10.244.1.x stands for the
//! 127.0.1.x of scenarios.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use pilot_config::ReadOptions;
use pilot_source_kube::CallError;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::behave::real;
use crate::http_call;
use crate::kube::KubeServer;
use crate::scenario::Scenario;
use crate::tools::Tools;

/// Where the backends of scenarios are, and where they are here.
const BACKENDS: (&str, &str) = ("127.0.1.", "10.244.1.");

/// Services of scenarios have any addresses; here they come from this block.
const SERVICE_BLOCK: &str = "10.96.0.0/12";

/// A server shows what it was told within milliseconds. What it does not show by then it is not to see.
const SEEN: Duration = Duration::from_secs(5);

/// A text of a scenario, for a network of its own.
pub fn moved(text: &str) -> String {
    text.replace(BACKENDS.0, BACKENDS.1)
}

/// Why a scenario cannot be told to an API server.
pub fn why_not(scenario: &Scenario) -> Option<&str> {
    let texts = || std::iter::once(&scenario.world).chain(scenario.steps.iter().map(|step| &step.apply));
    if texts().any(|text| text.contains("creationTimestamp")) {
        return Some("an API server says itself when objects were made");
    }
    scenario.kube.as_deref()
}

/// Runs scenarios one after the other, and tells what was wrong with each.
pub fn run(
    scenarios: &[(String, Scenario)],
    tools: &Tools,
    mut tell: impl FnMut(&str, &Scenario, anyhow::Result<Vec<String>>),
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut cluster = Cluster::start().await?;
        for (name, scenario) in scenarios {
            let wrong = real::run_on(&mut cluster, scenario, tools).await;
            tell(name, scenario, wrong);
            cluster.clear().await.with_context(|| format!("after {name}"))?;
        }
        Ok(())
    })
}

/// An API server that scenarios use one after the other.
pub struct Cluster {
    server: KubeServer,
    /// Everything of the scenario that is there, by name.
    there: BTreeMap<String, Value>,
    /// The marker's, which changes last.
    extra: BTreeMap<String, Value>,
    namespaces: BTreeSet<String>,
    /// Addresses of services, which are never used twice.
    addresses: BTreeMap<String, String>,
    used: u32,
    /// What is gone, until the server is seen to know it.
    gone: Vec<(String, String, String)>,
    _scratch: TempDir,
}

impl Cluster {
    pub async fn start() -> anyhow::Result<Self> {
        let scratch = tempfile::tempdir()?;
        let server =
            KubeServer::start(scratch.path(), &[&format!("--service-cluster-ip-range={SERVICE_BLOCK}")])
                .await?;
        server.define_rules().await?;
        let mut cluster = Self {
            server,
            there: BTreeMap::new(),
            extra: BTreeMap::new(),
            namespaces: BTreeSet::new(),
            addresses: BTreeMap::new(),
            used: 256,
            gone: Vec::new(),
            _scratch: scratch,
        };
        cluster.need_namespace("istio-system").await?;
        Ok(cluster)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.server.kubeconfig()
    }

    /// Makes what is there exactly these objects.
    pub(crate) async fn write(&mut self, files: &BTreeMap<String, String>) -> anyhow::Result<()> {
        let gone: Vec<String> =
            self.there.keys().filter(|name| !files.contains_key(*name)).cloned().collect();
        for name in gone {
            self.remove(&name).await?;
        }
        for (name, text) in files {
            let object = pilot_config::read_value(text, name).map_err(|issue| anyhow::anyhow!("{issue}"))?;
            if self.there.get(name) != Some(&object) {
                self.put(&object).await.with_context(|| name.clone())?;
                self.there.insert(name.clone(), object);
            }
        }
        Ok(())
    }

    /// Adds objects, or puts them in the place of others.
    pub(crate) async fn add(&mut self, text: &str) -> anyhow::Result<()> {
        for document in text.split("\n---\n") {
            let object =
                pilot_config::read_value(document, "marker").map_err(|issue| anyhow::anyhow!("{issue}"))?;
            self.put(&object).await?;
            self.extra.insert(object["kind"].to_string(), object);
        }
        Ok(())
    }

    /// Waits until a server knows all that is there, as far as it may see it.
    pub(crate) async fn until_seen(&mut self, server: SocketAddr) -> anyhow::Result<()> {
        let is_read = |object: &&Value| {
            let reading = pilot_config::read(&object.to_string(), "", &ReadOptions::default());
            reading.is_ok_and(|reading| reading.broken.is_empty() && !reading.objects.is_empty())
        };
        let texts: Vec<String> = self.there.values().filter(is_read).map(ToString::to_string).collect();
        let path = format!("/debug/propagation?wait={}", SEEN.as_secs());
        if !texts.is_empty() {
            http_call::post(server, &path, &texts.join("\n---\n")).await?;
        }
        for (kind, namespace, name) in self.gone.drain(..) {
            let path = format!("/debug/propagation?kind={kind}&namespace={namespace}&name={name}");
            let is_gone = async {
                while http_call::get(server, &path)
                    .await
                    .is_ok_and(|(_, body)| body.contains(r#""known":"yes""#))
                {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(SEEN, is_gone)
                .await
                .with_context(|| format!("{kind} {name} does not go"))?;
        }
        Ok(())
    }

    /// Takes everything away that a scenario has left.
    pub async fn clear(&mut self) -> anyhow::Result<()> {
        for name in self.there.keys().cloned().collect::<Vec<_>>() {
            self.remove(&name).await?;
        }
        for object in std::mem::take(&mut self.extra).into_values() {
            self.delete(&object).await?;
        }
        self.gone.clear();
        Ok(())
    }

    async fn remove(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(object) = self.there.remove(name) else { return Ok(()) };
        let object = placed(&object);
        let text =
            |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = text("/kind");
        if kind == "Namespace" {
            // Nobody here takes namespaces away; one without labels is like one that nobody wrote.
            self.label_marker(&object, &json!({})).await?;
            return self.server.namespace(&text("/metadata/name"), &json!({})).await;
        }
        self.delete(&object).await?;
        self.gone.push((kind, text("/metadata/namespace"), text("/metadata/name")));
        Ok(())
    }

    async fn put(&mut self, object: &Value) -> anyhow::Result<()> {
        let mut object = placed(object);
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if let Some(namespace) = object["metadata"]["namespace"].as_str().map(str::to_owned) {
            self.need_namespace(&namespace).await?;
        }
        match kind.as_str() {
            "Service" => self.give_address(&mut object),
            // It is there from now on, with its labels.
            "Namespace" => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                self.namespaces.insert(name.to_owned());
                self.label_marker(&object, &object["metadata"]["labels"]).await?;
            }
            // A pod without containers is none.
            "Pod" if object["spec"]["containers"].is_null() => {
                object["spec"]["containers"] = json!([{"name": "app", "image": "app"}]);
            }
            _ => {}
        }
        let status = object.as_object_mut().and_then(|object| object.remove("status"));
        self.server.apply(&object).await?;
        if let Some(status) = status {
            self.server.status(&object, &status).await?;
        }
        Ok(())
    }

    /// What is not there need not go.
    async fn delete(&self, object: &Value) -> anyhow::Result<()> {
        let is_missing = |error: &anyhow::Error| {
            error.downcast_ref::<CallError>().and_then(CallError::status) == Some(404)
        };
        self.server.delete(object).await.or_else(|error| if is_missing(&error) { Ok(()) } else { Err(error) })
    }

    async fn need_namespace(&mut self, name: &str) -> anyhow::Result<()> {
        if self.namespaces.insert(name.to_owned()) && name != "default" {
            self.server.namespace(name, &json!({})).await?;
        }
        Ok(())
    }

    /// Where namespaces are selected the marker is to be seen as the client is.
    async fn label_marker(&mut self, namespace: &Value, labels: &Value) -> anyhow::Result<()> {
        if namespace["metadata"]["name"] != "default" {
            return Ok(());
        }
        self.namespaces.insert(real::MARKER_NAMESPACE.to_owned());
        self.server.namespace(real::MARKER_NAMESPACE, labels).await
    }

    /// The address that a scenario gives a service becomes one of the cluster's, always the same one.
    fn give_address(&mut self, service: &mut Value) {
        let Some(wanted) = service["spec"]["clusterIP"].as_str().filter(|ip| ip.contains('.')) else {
            return;
        };
        let key = format!("{} {} {wanted}", service["metadata"]["namespace"], service["metadata"]["name"]);
        let used = &mut self.used;
        let address = self.addresses.entry(key).or_insert_with(|| {
            *used += 1;
            format!("10.{}.{}.{}", 96 + (*used >> 16), *used >> 8 & 255, *used & 255)
        });
        service["spec"]["clusterIP"] = json!(address);
    }
}

/// With the namespace that it is in if it does not say so.
fn placed(object: &Value) -> Value {
    let mut object = object.clone();
    let is_of_none = matches!(object["kind"].as_str(), Some("Namespace" | "Node"));
    if !is_of_none && object["metadata"]["namespace"].is_null() && object["metadata"].is_object() {
        object["metadata"]["namespace"] = json!("default");
    }
    object
}
