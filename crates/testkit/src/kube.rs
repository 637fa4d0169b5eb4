//! A real etcd and a real kube-apiserver, which end with the test.

mod audit;
mod chart;
mod installed;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use data_encoding::BASE64;
use http::Method;
use pilot_base::{Clock, Millis};
use pilot_source_kube::{Access, Call, Client, KubeconfigOf, Pace};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::process::Command;

pub use audit::Request;
pub use installed::{MANIFESTS, our_rules};

use crate::process::{Process, free_address};
use crate::tools::Tools;

/// Who may do everything.
const ADMIN: &str = "lab-admin-token";

/// A cluster without nodes: whatever is written into it is there.
pub struct KubeServer {
    folder: PathBuf,
    etcd: Process,
    etcd_at: [SocketAddr; 2],
    api: Process,
    pub address: SocketAddr,
    pub client: Client,
    more: Vec<String>,
}

impl KubeServer {
    /// Starts both in a folder of their own, and waits until they answer. `more` are flags for the API server.
    pub async fn start(folder: &Path, more: &[&str]) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        certificates(folder)?;
        // Everybody else is told by RBAC what he may do.
        let tokens =
            format!("{ADMIN},admin,admin-uid,\"system:masters\"\nbob-token,bob,bob-uid,\"people\"\n");
        std::fs::write(folder.join("tokens.csv"), tokens)?;
        let (etcd_at, address) = ([free_address()?, free_address()?], free_address()?);
        let more =
            more.iter().map(|flag| (*flag).to_owned()).chain(audit::flags(folder)?).collect::<Vec<_>>();
        let etcd = start_etcd(folder, etcd_at)?;
        let api = start_api(folder, etcd_at[0], address, &more)?;
        let config = kubeconfig(folder, address, ADMIN)?;
        std::fs::write(folder.join("kubeconfig"), &config)?;
        let client = client_of(&config)?;
        let mut server = Self { folder: folder.to_owned(), etcd, etcd_at, api, address, client, more };
        server.until_ready().await?;
        Ok(server)
    }

    async fn until_ready(&mut self) -> anyhow::Result<()> {
        let client = self.client.clone();
        self.api.until("/readyz", || async { client.call(Call::get("/readyz")).await.is_ok() }).await
    }

    /// A file for `--kubeconfig`.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// What the API server shows, and its key.
    pub fn certificate(&self) -> [PathBuf; 2] {
        ["api.pem", "api-key.pem"].map(|name| self.folder.join(name))
    }

    /// Who vouches for it: a file in PEM.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// The same for another address that leads here, or for somebody else.
    pub fn kubeconfig_for(&self, address: SocketAddr, token: &str) -> anyhow::Result<String> {
        kubeconfig(&self.folder, address, token)
    }

    /// Ends the API server at once, without a word to anybody.
    pub async fn kill_api(&mut self) -> anyhow::Result<()> {
        self.api.kill().await
    }

    pub async fn start_api(&mut self) -> anyhow::Result<()> {
        self.api = start_api(&self.folder, self.etcd_at[0], self.address, &self.more)?;
        self.until_ready().await
    }

    pub async fn kill_etcd(&mut self) -> anyhow::Result<()> {
        self.etcd.kill().await
    }

    pub async fn start_etcd(&mut self) -> anyhow::Result<()> {
        self.etcd = start_etcd(&self.folder, self.etcd_at)?;
        self.until_ready().await
    }

    /// Creates an object, or replaces all that it says by server-side apply.
    pub async fn apply(&self, object: &Value) -> anyhow::Result<()> {
        let path = format!("{}?fieldManager=test&force=true", object_path(object)?);
        let body = Some(("application/apply-patch+yaml", serde_json::to_vec(object)?.into()));
        let call = Call { method: Method::PATCH, body, ..Call::get(&path) };
        self.client.call(call).await.with_context(|| format!("apply {path}"))?;
        Ok(())
    }

    /// Changes the status of an object.
    pub async fn status(&self, object: &Value, status: &Value) -> anyhow::Result<()> {
        let path = format!("{}/status", object_path(object)?);
        let body = serde_json::to_vec(&json!({ "status": status }))?;
        self.client.call(Call::merge(&path, body)).await.with_context(|| format!("status of {path}"))?;
        Ok(())
    }

    /// Removes an object without waiting for anybody to agree.
    pub async fn delete(&self, object: &Value) -> anyhow::Result<()> {
        let path = format!("{}?gracePeriodSeconds=0", object_path(object)?);
        self.client.call(Call::delete(&path)).await.with_context(|| format!("delete {path}"))?;
        Ok(())
    }

    /// What stands at a path now; nothing if nothing does.
    pub async fn get(&self, path: &str) -> Value {
        let body = self.client.call(Call::get(path)).await.unwrap_or_default();
        serde_json::from_slice(&body).unwrap_or_default()
    }

    /// Waits until something in the cluster is as it should be. Fails with what it is instead.
    pub async fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        for _ in 0..600 {
            let found = self.get(path).await;
            if is_so(&found) {
                return Ok(found);
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        bail!("{path} is {:#}", self.get(path).await)
    }

    pub async fn namespace(&self, name: &str, labels: &Value) -> anyhow::Result<()> {
        let metadata = json!({"name": name, "labels": labels});
        self.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})).await
    }

    /// Installs Istio's CRDs from its module, and waits until they are served.
    pub async fn install_crds(&self, istio: &Path) -> anyhow::Result<()> {
        let file = istio.join("manifests/charts/base/files/crd-all.gen.yaml");
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let mut names = Vec::new();
        for document in
            text.split("\n---\n").filter(|document| document.contains("kind: CustomResourceDefinition"))
        {
            let definition =
                pilot_config::read_value(document, "crd").map_err(|issue| anyhow::anyhow!("{issue}"))?;
            self.apply(&definition).await?;
            names.push(object_path(&definition)?);
        }
        self.until_established(&names).await
    }

    /// Waits until definitions are served.
    pub async fn until_established(&self, places: &[String]) -> anyhow::Result<()> {
        for place in places {
            let is_served = || async {
                let Ok(body) = self.client.call(Call::get(place)).await else { return false };
                String::from_utf8_lossy(&body).contains(r#""type":"Established","status":"True""#)
                    || serde_json::from_slice::<Value>(&body).is_ok_and(|crd| established(&crd))
            };
            while !is_served().await {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }
}

impl KubeServer {
    /// Installs our own definitions of rules, and waits until they are served.
    pub async fn define_rules(&self) -> anyhow::Result<()> {
        let mut places = Vec::new();
        for definition in pilot_source_kube::definitions() {
            self.apply(&definition).await?;
            places.push(object_path(&definition)?);
        }
        self.until_established(&places).await
    }
}

fn established(crd: &Value) -> bool {
    let conditions = crd["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|c| c["type"] == "Established" && c["status"] == "True")
}

fn start_etcd(folder: &Path, [client, peer]: [SocketAddr; 2]) -> anyhow::Result<Process> {
    let mut command = Command::new(Tools::of_environment().etcd()?);
    command
        .arg("--data-dir")
        .arg(folder.join("etcd"))
        .args(["--unsafe-no-fsync", "--log-level", "error"])
        .arg(format!("--listen-client-urls=http://{client}"))
        .arg(format!("--advertise-client-urls=http://{client}"))
        .arg(format!("--listen-peer-urls=http://{peer}"))
        .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
        .arg(format!("--initial-cluster=default=http://{peer}"));
    Process::start("etcd", folder, &mut command)
}

fn start_api(folder: &Path, etcd: SocketAddr, at: SocketAddr, more: &[String]) -> anyhow::Result<Process> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", folder.join(name).display());
    let mut command = Command::new(Tools::of_environment().kube_apiserver()?);
    command
        .arg(format!("--etcd-servers=http://{etcd}"))
        .arg(format!("--secure-port={}", at.port()))
        .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        .arg("--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112")
        .arg(file("tls-cert-file", "api.pem"))
        .arg(file("tls-private-key-file", "api-key.pem"))
        .arg(file("client-ca-file", "ca.pem"))
        .arg(file("service-account-key-file", "account-public.pem"))
        .arg(file("service-account-signing-key-file", "account-key.pem"))
        .arg(file("token-auth-file", "tokens.csv"))
        .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        .args(["--authorization-mode=RBAC", "--endpoint-reconciler-type=none"])
        .args(["--disable-admission-plugins=ServiceAccount", "--shutdown-delay-duration=0s"])
        .args(more);
    Process::start("kube-apiserver", folder, &mut command)
}

fn certificates(folder: &Path) -> anyhow::Result<()> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "lab-ca");
    std::fs::write(folder.join("ca.pem"), params.self_signed(&key)?.pem())?;
    let authority = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let names = ["127.0.0.1", "10.96.0.1", "localhost", "kubernetes", "kubernetes.default.svc"];
    let mut params = CertificateParams::new(names.map(str::to_owned))?;
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    std::fs::write(folder.join("api.pem"), params.signed_by(&key, &authority)?.pem())?;
    std::fs::write(folder.join("api-key.pem"), key.serialize_pem())?;
    let account = KeyPair::generate()?;
    std::fs::write(folder.join("account-key.pem"), account.serialize_pem())?;
    std::fs::write(folder.join("account-public.pem"), account.public_key_pem())?;
    Ok(())
}

fn kubeconfig(folder: &Path, address: SocketAddr, token: &str) -> anyhow::Result<String> {
    let roots = BASE64.encode(&std::fs::read(folder.join("ca.pem"))?);
    let cluster = json!({"server": format!("https://{address}"), "certificate-authority-data": roots});
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "lab", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
    });
    Ok(config.to_string())
}

/// A client for whoever a kubeconfig names.
pub fn client_of(kubeconfig: &str) -> anyhow::Result<Client> {
    let access = Access::of_kubeconfig(kubeconfig, KubeconfigOf::Secret("test"))?;
    Ok(Client::new(&access, Pace { per_second: 1000.0, burst: 1000.0 }, Arc::new(TokioClock::default()))?)
}

/// Time as tokio has it.
pub struct TokioClock(tokio::time::Instant);

impl Default for TokioClock {
    fn default() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Millis {
        Millis::try_from(self.0.elapsed().as_millis()).unwrap_or(Millis::MAX)
    }
}

/// Where an object stands. Its kind tells how many of them are called.
fn object_path(object: &Value) -> anyhow::Result<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let (namespace, name) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
    if version.is_empty() || kind.is_empty() || name.is_empty() {
        bail!("apiVersion, kind and metadata.name say where {object} belongs");
    }
    let root = if version.contains('/') { "apis" } else { "api" };
    let lower = kind.to_lowercase();
    let plural = match lower.as_str() {
        plural @ "endpoints" => plural.to_owned(),
        ending if ending.ends_with('y') && !ending.ends_with("ay") => {
            format!("{}ies", ending.trim_end_matches('y'))
        }
        ending if ending.ends_with('s') || ending.ends_with("ss") => format!("{ending}es"),
        other => format!("{other}s"),
    };
    let within = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
    Ok(format!("/{root}/{version}/{within}{plural}/{name}"))
}
