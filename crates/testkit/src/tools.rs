//! The programs that tests run.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// Where the programs are, as far as somebody said so.
#[derive(Clone, Default, Debug)]
pub struct Tools {
    /// The folder with our own binaries.
    bin: Option<PathBuf>,
    envoy: Option<PathBuf>,
    /// A folder with Python's gRPC library.
    grpc: Option<PathBuf>,
    istiod: Option<PathBuf>,
    kube_apiserver: Option<PathBuf>,
    etcd: Option<PathBuf>,
    /// Istio's module, with its CRDs.
    istio: Option<PathBuf>,
    /// Istio's own agent, and the template that it makes Envoy's bootstrap from.
    istio_agent: Option<PathBuf>,
    istio_bootstrap: Option<PathBuf>,
    /// The judge's tool, which stands in for Kubernetes.
    stub: Option<PathBuf>,
    /// Is a missing program a failure instead of a reason to skip?
    required: bool,
}

impl Tools {
    #[allow(clippy::disallowed_methods, reason = "tests are told by the environment where programs are")]
    pub fn of_environment() -> Self {
        let path = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        Self {
            bin: path("PILOT_BIN").or_else(beside_this),
            envoy: path("PILOT_ENVOY"),
            grpc: path("PILOT_GRPC"),
            istiod: path("PILOT_ISTIOD"),
            kube_apiserver: path("PILOT_KUBE_APISERVER"),
            etcd: path("PILOT_ETCD").or_else(|| in_path("etcd")),
            istio: path("PILOT_ISTIO_MODULE"),
            istio_agent: path("PILOT_ISTIO_AGENT"),
            istio_bootstrap: path("PILOT_ISTIO_BOOTSTRAP"),
            stub: path("PILOT_XDSDIFF"),
            required: std::env::var_os("PILOT_REQUIRE_ALL").is_some_and(|v| !v.is_empty()),
        }
    }

    /// One of our own binaries.
    pub fn own(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.bin.as_ref().context("set PILOT_BIN to the folder of our binaries")?.join(name);
        if !path.exists() {
            bail!("{} is not built: run `cargo build --workspace --bins`", path.display());
        }
        Ok(path)
    }

    /// Is a missing program a failure instead of a reason to skip?
    pub fn requires_all(&self) -> bool {
        self.required
    }

    pub fn envoy(&self) -> anyhow::Result<&Path> {
        self.envoy.as_deref().context("set PILOT_ENVOY to an Envoy binary; `make tools` gets one")
    }

    pub fn grpc(&self) -> anyhow::Result<&Path> {
        let folder = self.grpc.as_deref().filter(|folder| folder.exists());
        folder.context("set PILOT_GRPC to a folder with Python's grpcio; `make tools` gets one")
    }

    pub fn istiod(&self) -> anyhow::Result<&Path> {
        self.istiod.as_deref().context("set PILOT_ISTIOD to a built istiod")
    }

    pub fn kube_apiserver(&self) -> anyhow::Result<&Path> {
        let program = self.kube_apiserver.as_deref().filter(|program| program.exists());
        program.context("set PILOT_KUBE_APISERVER to a built kube-apiserver; `make components` builds one")
    }

    pub fn etcd(&self) -> anyhow::Result<&Path> {
        self.etcd.as_deref().context("set PILOT_ETCD to an etcd, or install one; `make tools` does")
    }

    /// Istio's module, for its CRDs and test data.
    pub fn istio_module(&self) -> anyhow::Result<&Path> {
        self.istio
            .as_deref()
            .context("set PILOT_ISTIO_MODULE to the folder of Istio's module; `make corpora` gets it")
    }

    /// Why tests that need an API server cannot run here, unless that is a failure.
    pub fn why_skip_kube(&self) -> Option<String> {
        let missing = self
            .kube_apiserver()
            .err()
            .or_else(|| self.etcd().err())
            .or_else(|| self.istio_module().err())?;
        (!self.required).then(|| missing.to_string())
    }

    pub fn istio_agent(&self) -> anyhow::Result<&Path> {
        self.istio_agent.as_deref().context("set PILOT_ISTIO_AGENT to a built pilot-agent of Istio's")
    }

    pub fn istio_bootstrap(&self) -> anyhow::Result<&Path> {
        self.istio_bootstrap
            .as_deref()
            .context("set PILOT_ISTIO_BOOTSTRAP to Istio's envoy_bootstrap.json, which its agent needs")
    }

    pub fn stub(&self) -> anyhow::Result<&Path> {
        self.stub
            .as_deref()
            .context("set PILOT_XDSDIFF to the judge's built tool, which stands in for Kubernetes")
    }

    /// Why tests that need the gRPC library cannot run here, unless that is a failure.
    pub fn why_skip_grpc(&self) -> Option<String> {
        let missing = self.grpc().err()?;
        (!self.required).then(|| missing.to_string())
    }

    /// Why tests that need OpenSSL cannot run here, unless that is a failure.
    pub fn why_skip_openssl(&self) -> Option<String> {
        let is_there = std::process::Command::new("openssl").arg("version").output().is_ok();
        (!is_there && !self.required).then(|| "install openssl".to_owned())
    }

    /// Why tests that need Envoy cannot run here, unless that is a failure.
    pub fn why_skip_envoy(&self) -> Option<String> {
        let missing = self.envoy().err()?;
        (!self.required).then(|| missing.to_string())
    }
}

/// A program that everybody can call by its name.
#[allow(clippy::disallowed_methods, reason = "tests are told by the environment where programs are")]
fn in_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Binaries lie beside the folder of test programs, or beside the program itself.
fn beside_this() -> Option<PathBuf> {
    let folder = std::env::current_exe().ok()?.parent()?.to_owned();
    if folder.ends_with("deps") { folder.parent().map(Path::to_owned) } else { Some(folder) }
}
