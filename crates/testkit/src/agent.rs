//! An agent as a process, with the Envoy that it looks after.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::http_call;
use crate::process::{Process, free_address};
use crate::tools::Tools;

/// Whose agent it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Make {
    Ours,
    Istios,
}

/// What an agent is started with, besides what is the same for all.
#[derive(Clone, Debug)]
pub struct Place {
    pub make: Make,
    /// Of the workload, its service account and its label `app`.
    pub name: &'static str,
    /// `sidecar`, or `router` for a gateway.
    pub kind: &'static str,
    /// The control plane: `host:port`.
    pub discovery: String,
    /// What mounts would bring: names below the folder that the agent is started in, and texts.
    pub files: Vec<(&'static str, String)>,
    pub env: Vec<(&'static str, String)>,
    /// More settings of the proxy.
    pub config: Value,
}

pub struct PilotAgent {
    pub process: Process,
    pub admin: SocketAddr,
    pub status: SocketAddr,
    folder: TempDir,
}

impl Place {
    pub fn new(name: &'static str, discovery: SocketAddr) -> Self {
        Self {
            make: Make::Ours,
            name,
            kind: "sidecar",
            discovery: discovery.to_string(),
            files: Vec::new(),
            env: Vec::new(),
            config: json!({}),
        }
    }

    /// A gateway.
    pub fn router(mut self) -> Self {
        self.kind = "router";
        self
    }

    /// Without TLS.
    pub fn plain(mut self) -> Self {
        self.config["controlPlaneAuthPolicy"] = json!("NONE");
        self
    }

    /// With a root and a token, where they are mounted.
    pub fn trusting(mut self, root: String, token: String) -> Self {
        self.files.push(("var/run/secrets/istio/root-cert.pem", root));
        self.files.push(("var/run/secrets/tokens/istio-token", token));
        // The certificate of the server is for this name, wherever it runs.
        self.env("ISTIOD_SAN", "istiod.istio-system.svc")
    }

    pub fn env(mut self, name: &'static str, value: &str) -> Self {
        self.env.push((name, value.to_owned()));
        self
    }
}

impl PilotAgent {
    pub fn start(place: &Place, tools: &Tools) -> anyhow::Result<Self> {
        Self::start_in(tempfile::tempdir()?, place, tools)
    }

    /// In a folder that an agent may have used before.
    pub fn start_in(folder: TempDir, place: &Place, tools: &Tools) -> anyhow::Result<Self> {
        let (admin, status) = (free_address()?, free_address()?);
        for (name, text) in &place.files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().context("a file in the folder")?)?;
            std::fs::write(path, text)?;
        }
        let mut config = json!({
            "binaryPath": tools.envoy()?,
            "configPath": "./proxy",
            "discoveryAddress": place.discovery,
            "proxyAdminPort": admin.port(),
            "statusPort": status.port(),
            "concurrency": 1,
            "terminationDrainDuration": "1s",
        });
        if let (Some(config), Some(more)) = (config.as_object_mut(), place.config.as_object()) {
            config.extend(more.clone());
        }
        let mut command = Command::new(program(place.make, tools)?);
        command
            .current_dir(folder.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("PROXY_CONFIG", config.to_string())
            .env("POD_NAME", place.name)
            .env("POD_NAMESPACE", "default")
            .env("SERVICE_ACCOUNT", place.name)
            .env("INSTANCE_IP", address(place.name))
            .env("ISTIO_META_INTERCEPTION_MODE", "NONE")
            .env("ISTIO_META_CLUSTER_ID", "Kubernetes")
            .env("ISTIO_METAJSON_LABELS", json!({"app": place.name}).to_string())
            .env("ENVOY_STATUS_PORT", "0")
            .env("ENVOY_PROMETHEUS_PORT", "0")
            .env("CLOUD_PLATFORM", "none")
            .envs(place.env.iter().map(|(name, value)| (*name, value)))
            .args(["proxy", place.kind, "--domain=default.svc.cluster.local"]);
        if place.make == Make::Istios {
            command.env("ISTIO_BOOTSTRAP", tools.istio_bootstrap()?);
        }
        let process = Process::start(place.name, folder.path(), &mut command)?;
        Ok(Self { process, admin, status, folder })
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Ends it at once, and leaves its folder.
    pub async fn kill(mut self) -> anyhow::Result<TempDir> {
        self.process.kill().await?;
        Ok(self.folder)
    }

    pub async fn ready(&mut self) -> anyhow::Result<()> {
        self.process.until_ok(self.status, "/healthz/ready").await
    }

    /// A page of Envoy's administrator; empty while there is none.
    pub async fn envoy(&self, path: &str) -> String {
        http_call::get(self.admin, path).await.map(|(_, text)| text).unwrap_or_default()
    }

    pub async fn metrics(&self) -> String {
        http_call::get(self.status, "/metrics").await.map(|(_, text)| text).unwrap_or_default()
    }
}

/// Each has one of its own: at the address of an endpoint it would be taken for what a ServiceEntry says of that.
fn address(name: &str) -> String {
    let sum = name.bytes().fold(7_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    format!("127.1.7.{}", sum.clamp(1, 254))
}

fn program(make: Make, tools: &Tools) -> anyhow::Result<PathBuf> {
    match make {
        Make::Ours => tools.own("pilot-agent"),
        Make::Istios => Ok(tools.istio_agent()?.to_owned()),
    }
}
