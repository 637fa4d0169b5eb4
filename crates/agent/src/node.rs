//! Who the proxy says it is.

mod locality;
mod metadata;
mod service_cluster;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::proxy_config::ProxyConfig;
use crate::surroundings::Surroundings;
pub(crate) use locality::Locality;
pub(crate) use metadata::MetadataError;

/// What a proxy is for. Istio has more kinds; these are the ones that run this agent's Envoy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ProxyType {
    Sidecar,
    Router,
}

impl fmt::Display for ProxyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sidecar => "sidecar",
            Self::Router => "router",
        })
    }
}

/// What the command line says about a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeOptions {
    pub(crate) proxy_type: ProxyType,
    /// Empty: made from the namespace.
    pub(crate) domain: String,
    /// 0: none.
    pub(crate) sts_port: u16,
    pub(crate) outlier_log_path: String,
    /// 0: Envoy does not listen.
    pub(crate) status_port: u16,
    pub(crate) prometheus_port: u16,
    pub(crate) secure_metrics_port: u16,
    pub(crate) secure_merged_metrics_port: u16,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) domain: String,
    pub(crate) cluster: String,
    pub(crate) locality: Locality,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The words that the rest is made from.
struct Identity {
    name: String,
    namespace: String,
    domain: String,
}

impl Node {
    pub(crate) fn new(
        options: &NodeOptions,
        config: &ProxyConfig,
        around: &Surroundings,
    ) -> Result<Self, MetadataError> {
        let identity = Identity::new(options, around);
        let addresses = around.instance_addresses();
        let mut metadata = metadata::build(config, around)?;
        metadata.set_identity(&identity, around);
        metadata.set_addresses(&addresses);
        metadata.set_options(options, config, around);
        let locality = metadata.take_locality();
        let cluster = service_cluster::name(config, &metadata, &identity.namespace);
        let Identity { name, namespace, domain } = identity;
        let address = addresses.first().expect("a node has at least one address");
        let id = format!("{}~{address}~{name}.{namespace}~{domain}", options.proxy_type);
        Ok(Self { id, cluster, namespace, domain, locality, metadata: metadata.into_json(), addresses })
    }

    /// The pod's annotations as the node tells them.
    pub(crate) fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.get("ANNOTATIONS")?.get(name)?.as_str()
    }
}

impl Identity {
    /// Kubernetes tells a pod who it is. Elsewhere the machine's name is used, as Istio's script for virtual machines
    /// does, and the namespace that a server would read out of the domain.
    fn new(options: &NodeOptions, around: &Surroundings) -> Self {
        let name = around.env.get("POD_NAME").unwrap_or(&around.host_name).to_owned();
        let from_domain = options.domain.split_once('.').map(|(first, _)| first);
        let namespace = around.env.get("POD_NAMESPACE").or(from_domain).unwrap_or("default").to_owned();
        let domain = if options.domain.is_empty() {
            format!("{namespace}.svc.cluster.local")
        } else {
            options.domain.clone()
        };
        Self { name, namespace, domain }
    }
}
