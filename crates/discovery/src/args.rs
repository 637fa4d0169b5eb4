//! The command line, with istiod's names and defaults.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use pilot_base::{Name, parse_bool, parse_span};
use pilot_cli::{Env, LogArgs};
use pilot_model::MeshOptions;
use pilot_server::{Debounce, GrpcOptions, KeyOptions};

use crate::features::{debounce, features, key_options, most_kinds};
use crate::registries::RegistryArgs;

/// Pilot's server: reads services and rules, and tells proxies over xDS what to do.
#[derive(Parser)]
#[command(
    name = "pilot-discovery",
    args_override_self = true,
    after_help = "Try it: pilot-discovery discovery --registries=File --configDir=FOLDER --httpsAddr= --secureGRPCAddr="
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Cmd,
}

#[derive(Subcommand)]
pub(crate) enum Cmd {
    /// Start the server
    Discovery(Box<DiscoveryArgs>),
    /// Send an HTTP request to a running server on this machine, and print the answer
    Request(RequestArgs),
    /// Print what runs
    Version(VersionArgs),
}

/// Flags that istiod has too have its names, defaults and meaning. Flags nobody knows are accepted with a warning.
#[derive(Args)]
pub(crate) struct DiscoveryArgs {
    /// Where services come from, besides ServiceEntries; empty for none
    #[arg(long, value_name = "NAME,…", default_value = "Kubernetes", value_delimiter = ',')]
    pub(crate) registries: Vec<String>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    /// Folder of YAML files with Istio's rules and Kubernetes objects; followed as it changes
    #[arg(long = "configDir", value_name = "FOLDER", value_parser = folder())]
    pub(crate) config_dir: Option<PathBuf>,
    /// File with the settings of the mesh; followed as it changes
    #[arg(long = "meshConfig", value_name = "FILE", default_value = "./etc/istio/config/mesh")]
    pub(crate) mesh_config: PathBuf,
    /// File with the networks of the mesh
    #[arg(long = "networksConfig", value_name = "FILE", default_value = "./etc/istio/config/meshNetworks")]
    pub(crate) networks_config: PathBuf,
    /// How Kubernetes is reached [default: $KUBECONFIG if that file is there, else what a pod is given]
    #[arg(long, value_name = "FILE", default_value = "")]
    pub(crate) kubeconfig: String,
    /// Requests a second to an API server
    #[arg(long = "kubernetesApiQPS", value_name = "NUMBER", default_value = "80")]
    pub(crate) kube_qps: f64,
    /// Requests at once to an API server, after a silence
    #[arg(long = "kubernetesApiBurst", value_name = "NUMBER", default_value = "160")]
    pub(crate) kube_burst: f64,
    /// The namespace this server belongs to [default: $POD_NAMESPACE, else istio-system]
    #[arg(long, short)]
    pub(crate) namespace: Option<String>,
    /// The suffix of service names
    #[arg(long, default_value = "cluster.local")]
    pub(crate) domain: String,
    /// The name of the cluster this server runs in [default: $CLUSTER_ID, else Kubernetes]
    #[arg(long = "clusterID")]
    pub(crate) cluster_id: Option<String>,
    /// Other names of clusters, by which their proxies may call them; one for each cluster
    #[arg(long = "clusterAliases", value_name = "ALIAS=CLUSTER,…", default_value = "", hide_default_value = true, value_parser = cluster_aliases)]
    pub(crate) cluster_aliases: Aliases,
    /// Readiness and debugging
    #[arg(long = "httpAddr", value_name = "ADDRESS", default_value = ":8080")]
    pub(crate) http_addr: String,
    /// Webhooks over TLS; empty to serve them in plain text at the address for HTTP
    #[arg(long = "httpsAddr", value_name = "ADDRESS", default_value = ":15017")]
    pub(crate) https_addr: String,
    /// xDS in plain text; empty to serve it at the address for HTTP
    #[arg(long = "grpcAddr", value_name = "ADDRESS", default_value = ":15010")]
    pub(crate) grpc_addr: String,
    /// xDS and certificates over TLS; empty for none
    #[arg(long = "secureGRPCAddr", value_name = "ADDRESS", default_value = ":15012")]
    pub(crate) secure_grpc_addr: String,
    /// Metrics and version; empty to serve them at the address for HTTP
    #[arg(long = "monitoringAddr", value_name = "ADDRESS", default_value = ":15014")]
    pub(crate) monitoring_addr: String,
    /// The server's certificate, with what stands between it and the root; needs --tlsKeyFile and --caCertFile
    #[arg(long = "tlsCertFile", value_name = "FILE", default_value = "")]
    pub(crate) tls_cert_file: String,
    /// The key of the server's certificate
    #[arg(long = "tlsKeyFile", value_name = "FILE", default_value = "")]
    pub(crate) tls_key_file: String,
    /// Roots of certificates that clients may have, beside our own
    #[arg(long = "caCertFile", value_name = "FILE", default_value = "")]
    pub(crate) ca_cert_file: String,
    /// The oldest version of TLS that is spoken
    #[arg(long = "tls-min-version", value_name = "VERSION", default_value = "1.2", value_parser = ["1.2", "1.3"])]
    pub(crate) tls_min_version: String,
    /// How long streams may take to end when the server is told to stop
    #[arg(long = "shutdownDuration", value_name = "DURATION", default_value = "10s", value_parser = parse_span)]
    pub(crate) shutdown_duration: Duration,
    /// How often an idle connection is asked whether it is still there [default: $GRPC_KEEPALIVE_INTERVAL, else 30s]
    #[arg(long = "keepaliveInterval", value_name = "DURATION", value_parser = parse_span)]
    pub(crate) keepalive_interval: Option<Duration>,
    /// How long it may take to answer that [default: $GRPC_KEEPALIVE_TIMEOUT, else 10s]
    #[arg(long = "keepaliveTimeout", value_name = "DURATION", value_parser = parse_span)]
    pub(crate) keepalive_timeout: Option<Duration>,
    /// After how long a proxy is asked to connect anew; without it never
    #[arg(long = "keepaliveMaxServerConnectionAge", value_name = "DURATION", value_parser = parse_span)]
    pub(crate) max_connection_age: Option<Duration>,
    /// Profiles at /debug/pprof (not served yet)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value = "true", default_missing_value = "true", require_equals = true, value_parser = parse_bool, hide = true)]
    pub(crate) profile: bool,
    /// The port for log levels at run time (not served yet)
    #[arg(long = "ctrlz_port", value_name = "PORT", default_value = "9876", hide = true)]
    pub(crate) ctrlz_port: u16,
    #[arg(long = "ctrlz_address", value_name = "ADDRESS", default_value = "localhost", hide = true)]
    pub(crate) ctrlz_address: String,
}

/// What the command line and the environment mean.
pub(crate) struct Settings {
    pub(crate) mesh: MeshOptions,
    pub(crate) debounce: Option<Debounce>,
    pub(crate) most_kinds: Option<usize>,
    pub(crate) grpc: GrpcOptions,
    pub(crate) keys: KeyOptions,
    pub(crate) addresses: Addresses,
    pub(crate) shutdown: Duration,
}

/// Where something listens; an empty one is not listened at.
pub(crate) struct Addresses {
    pub(crate) http: String,
    pub(crate) https: String,
    pub(crate) grpc: String,
    pub(crate) secure_grpc: String,
    pub(crate) monitoring: String,
}

impl DiscoveryArgs {
    pub(crate) fn settings(self, env: &Env) -> Settings {
        let Self {
            domain,
            cluster_id,
            cluster_aliases,
            http_addr,
            https_addr,
            grpc_addr,
            secure_grpc_addr,
            monitoring_addr,
            shutdown_duration,
            keepalive_interval,
            keepalive_timeout,
            max_connection_age,
            // Where sources are opened.
            registries: _,
            registry,
            config_dir: _,
            kubeconfig: _,
            kube_qps: _,
            kube_burst: _,
            mesh_config: _,
            networks_config: _,
            // Where the server gets its identity.
            namespace,
            tls_cert_file: _,
            tls_key_file: _,
            ca_cert_file: _,
            tls_min_version: _,
            // What they are for is not built yet; the help says so.
            profile: _,
            ctrlz_port: _,
            ctrlz_address: _,
        } = self;
        let default = GrpcOptions::default();
        let span = |flag: Option<Duration>, name: &str| flag.or_else(|| env.span(name));
        Settings {
            mesh: MeshOptions {
                domain: domain.into(),
                cluster: cluster_id_of(cluster_id, env),
                namespace: namespace_of(namespace.as_deref(), env),
                cluster_aliases: cluster_aliases.0,
                registry_merge: registry.registry_merge,
                features: features(env),
            },
            debounce: debounce(env),
            most_kinds: most_kinds(env),
            grpc: GrpcOptions {
                keepalive_interval: span(keepalive_interval, "GRPC_KEEPALIVE_INTERVAL")
                    .unwrap_or(default.keepalive_interval),
                keepalive_timeout: span(keepalive_timeout, "GRPC_KEEPALIVE_TIMEOUT")
                    .unwrap_or(default.keepalive_timeout),
                // Zero means without limit, as in Go.
                max_connection_age: max_connection_age.filter(|age| !age.is_zero()),
                max_streams: env.number("ISTIO_GPRC_MAXSTREAMS").unwrap_or(default.max_streams),
                max_request: env.number("ISTIO_GPRC_MAXRECVMSGSIZE").unwrap_or(default.max_request),
                streams_per_second: env.number("PILOT_MAX_REQUESTS_PER_SECOND"),
            },
            keys: key_options(env),
            addresses: Addresses {
                http: http_addr,
                https: https_addr,
                grpc: grpc_addr,
                secure_grpc: secure_grpc_addr,
                monitoring: monitoring_addr,
            },
            shutdown: shutdown_duration,
        }
    }
}

/// An empty one is told apart later.
fn folder() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// The namespace that a flag names, else the environment.
pub(crate) fn namespace_of(flag: Option<&str>, env: &Env) -> Name {
    Name::new(flag.or_else(|| env.get("POD_NAMESPACE")).unwrap_or("istio-system"))
}

/// The cluster that a flag names, else the environment.
pub(crate) fn cluster_id_of(flag: Option<String>, env: &Env) -> Name {
    flag.map(Name::from)
        .or_else(|| env.get("CLUSTER_ID").map(Name::new))
        .unwrap_or_else(|| Name::new("Kubernetes"))
}

/// Clusters by their other names.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Aliases(pub(crate) BTreeMap<Name, Name>);

fn cluster_aliases(text: &str) -> Result<Aliases, String> {
    let mut out: BTreeMap<Name, Name> = BTreeMap::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (alias, cluster) =
            pair.split_once('=').ok_or_else(|| format!("{pair:?} is not of the form alias=cluster"))?;
        if let Some((other, _)) =
            out.iter().find(|(other, known)| known.as_str() == cluster && other.as_str() != alias)
        {
            return Err(format!(
                "{other} and {alias} both stand for cluster {cluster}; it can have only one"
            ));
        }
        out.insert(Name::new(alias), Name::new(cluster));
    }
    Ok(Aliases(out))
}

#[derive(Args)]
pub(crate) struct RequestArgs {
    /// GET or POST
    pub(crate) method: String,
    /// Such as /debug/issues
    pub(crate) path: String,
    #[arg(default_value = "")]
    pub(crate) body: String,
    /// The monitoring port of the server
    #[arg(long, default_value_t = 15014)]
    pub(crate) port: u16,
}

#[derive(Args)]
pub(crate) struct VersionArgs {
    /// Only the version itself
    #[arg(long, short)]
    pub(crate) short: bool,
    /// yaml or json
    #[arg(long, short, value_name = "FORMAT", value_parser = ["yaml", "json"])]
    pub(crate) output: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::cluster_aliases;

    #[test]
    fn a_cluster_has_one_other_name() {
        let read = |text: &str| cluster_aliases(text).map(|aliases| aliases.0.len());
        assert_eq!(read(""), Ok(0));
        assert_eq!(read("old=east,older=west"), Ok(2));
        assert_eq!(read("old=east,old=east"), Ok(1));
        assert!(read("old=east,older=east").is_err_and(|why| why.contains("both stand for cluster east")));
        assert!(read("east").is_err_and(|why| why.contains("alias=cluster")));
    }
}
