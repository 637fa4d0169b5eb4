use std::path::PathBuf;

use anyhow::{Context, bail};
use pilot_base::Millis;

use crate::args::{DEFAULT_MESH_FILE, ProxyArgs};
use crate::bootstrap::{self, BootstrapOptions, LogFormat, Stack, XdsProtocol};
use crate::envoy_args::{ArgsOptions, envoy_args, read_override};
use crate::grpc::Upstream;
use crate::health::ReadinessProbe;
use crate::node::{Node, NodeOptions, ProxyType};
use crate::proxy_config::{self, Places, ProxyConfig, Tracer};
use crate::supervise::{Drain, Restart, Settings};
use crate::surroundings::Surroundings;
use crate::{control_plane, identity};

/// Everything that was decided before anything was started.
pub(crate) struct Setup {
    pub(crate) envoy: Envoy,
    pub(crate) settings: Settings,
    /// 0: none.
    pub(crate) status_port: u16,
    pub(crate) namespace: String,
    /// Suffix of the workload's host names.
    pub(crate) domain: String,
    /// How a workload outside of Kubernetes is asked whether it is well.
    pub(crate) probe: Option<ReadinessProbe>,
    /// Where configuration comes from.
    pub(crate) xds: Upstream,
    /// Who the workload is, and who certifies that; nobody if files do.
    pub(crate) identity: identity::Settings,
    pub(crate) authority: Option<Upstream>,
    pub(crate) config_path: PathBuf,
    pub(crate) node_id: String,
}

/// How to start an Envoy and to talk to it.
#[derive(Clone, Debug)]
pub(crate) struct Envoy {
    pub(crate) binary: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) admin_port: u16,
    pub(crate) proxy_type: ProxyType,
    /// Ports at which Envoy listens for probes and scrapes.
    pub(crate) own_ports: [u16; 2],
}

/// Reads what there is to read and writes the bootstrap.
pub(crate) fn prepare(
    args: &ProxyArgs,
    log_format: LogFormat,
    around: &Surroundings,
) -> anyhow::Result<Setup> {
    let env = &around.env;
    if env.flag("DISABLE_ENVOY") == Some(true) {
        bail!("DISABLE_ENVOY is set, and this agent has nothing to do without Envoy yet");
    }
    let config = configuration(args, around)?;
    let ports = [
        env.number::<u16>("ENVOY_STATUS_PORT").unwrap_or(15021),
        env.number::<u16>("ENVOY_PROMETHEUS_PORT").unwrap_or(15090),
    ];
    let secure_ports = ["ENVOY_SECURE_METRICS_PORT", "ENVOY_SECURE_MERGED_METRICS_PORT"]
        .map(|name| env.number::<u16>(name).unwrap_or_default());
    let node_options = NodeOptions {
        proxy_type: args.proxy_type,
        domain: args.domain.clone(),
        sts_port: args.sts_port,
        outlier_log_path: args.outlier_log_path.clone(),
        status_port: ports[0],
        prometheus_port: ports[1],
        secure_metrics_port: secure_ports[0],
        secure_merged_metrics_port: secure_ports[1],
    };
    let node = Node::new(&node_options, &config, around)?;
    tracing::info!(id = node.id, server = config.discovery_address, "proxy");
    let drain = drain(&config, around);
    let options = BootstrapOptions {
        protocol: match env.flag("ISTIO_DELTA_XDS") {
            Some(false) => XdsProtocol::StateOfTheWorld,
            _ => XdsProtocol::Delta,
        },
        log_format,
        stack: if env.flag("ISTIO_DUAL_STACK") == Some(true) { Stack::Dual } else { Stack::Single },
        outlier_log_path: args.outlier_log_path.clone(),
        status_port: ports[0],
        prometheus_port: ports[1],
        secure_metrics_port: secure_ports[0],
        secure_merged_metrics_port: secure_ports[1],
        host_ip: env.get("HOST_IP").map(str::to_owned),
        fips: env.get("COMPLIANCE_POLICY") == Some("fips-140-2"),
        keeps_fragments: env.flag("HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED") == Some(false),
        probes_with_proxy_protocol: env.flag("ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL") == Some(true),
        counts_connections: matches!(drain, Drain::UntilIdle(_)),
    };
    let xds = control_plane::xds(&config, env)?;
    let identity = identity::Settings::read(env, &node.namespace)?;
    let authority = if identity.only_files { None } else { Some(control_plane::authority(&config, env)?) };
    let file = bootstrap_file(&node, &config, &options)?;
    let args_options = ArgsOptions {
        log_level: &args.proxy_log_level,
        component_log_level: &args.proxy_component_log_level,
        addresses: &node.addresses,
        override_json: read_override(env)?,
    };
    let envoy = Envoy {
        args: envoy_args(&file, &config, args_options, env),
        binary: config.binary_path,
        admin_port: config.admin_port,
        proxy_type: args.proxy_type,
        own_ports: ports,
    };
    Ok(Setup {
        xds,
        identity,
        authority,
        config_path: config.config_path,
        node_id: node.id,
        envoy,
        settings: Settings { restart: restart(args, around), drain },
        status_port: config.status_port,
        namespace: node.namespace,
        domain: node.domain,
        probe: ReadinessProbe::read(&config.said)?,
    })
}

fn configuration(args: &ProxyArgs, around: &Surroundings) -> anyhow::Result<ProxyConfig> {
    let file = args.mesh_config.as_str();
    let mesh = match std::fs::read_to_string(file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if file != DEFAULT_MESH_FILE {
                tracing::warn!(file, "there is no such mesh file, defaults are used");
            }
            None
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read mesh file {file}")),
    };
    let told = [
        ("--templateFile", args.template_file.as_str()),
        ("ISTIO_BOOTSTRAP", around.env.get("ISTIO_BOOTSTRAP").unwrap_or_default()),
    ];
    for (place, file) in told.into_iter().filter(|(_, file)| !file.is_empty()) {
        tracing::warn!(
            place,
            file,
            "templates for the bootstrap are not supported, the built-in one is used"
        );
    }
    Ok(proxy_config::effective(&Places {
        mesh: mesh.as_deref().map(|text| (file, text)),
        env: &around.env,
        annotations: &around.annotations,
        concurrency: args.concurrency,
        service_cluster: &args.service_cluster,
    })?)
}

/// A bootstrap of the user's own is not touched.
fn bootstrap_file(node: &Node, config: &ProxyConfig, options: &BootstrapOptions) -> anyhow::Result<PathBuf> {
    if let Some(file) = &config.custom_config_file {
        return Ok(file.clone());
    }
    let bootstrap = bootstrap::build(node, config, options)?;
    if let Some(Tracer::Lightstep { token }) = config.tracing.as_ref().map(|tracing| &tracing.tracer) {
        bootstrap::write_text(&bootstrap::token_file(&config.config_path), token)?;
    }
    Ok(bootstrap::write(&config.config_path, &bootstrap)?)
}

fn drain(config: &ProxyConfig, around: &Surroundings) -> Drain {
    let millis = |span: std::time::Duration| Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX / 2);
    if around.env.flag("EXIT_ON_ZERO_ACTIVE_CONNECTIONS") == Some(true) {
        let least = around.env.span("MINIMUM_DRAIN_DURATION").map_or(5_000, millis);
        return Drain::UntilIdle(least);
    }
    Drain::For(millis(config.termination_drain_duration))
}

/// Kubernetes restarts containers itself, and shows that it did.
fn restart(args: &ProxyArgs, around: &Surroundings) -> Restart {
    let in_kubernetes = around.env.get("KUBERNETES_SERVICE_HOST").is_some();
    match args.restart_envoy {
        Some(true) => Restart::Always,
        Some(false) => Restart::Never,
        None if in_kubernetes => Restart::Never,
        None => Restart::Always,
    }
}

#[cfg(test)]
mod tests {
    use super::{Setup, prepare};
    use crate::Env;
    use crate::args::{Args, Command};
    use crate::bootstrap::LogFormat;
    use crate::supervise::{Drain, Restart};
    use crate::surroundings::Surroundings;

    fn setup<const N: usize>(
        flags: &str,
        config: &str,
        variables: [(&str, &str); N],
    ) -> Result<Setup, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = format!("configPath: {}\n{config}", directory.path().display());
        let mut all = std::collections::BTreeMap::from([("PROXY_CONFIG".to_owned(), path)]);
        all.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let around = Surroundings { env: Env::new(all), ..Surroundings::default() };
        let words = ["agent", "proxy"].into_iter().chain(flags.split_whitespace()).map(str::to_owned);
        let (Args { command: Command::Proxy(args), .. }, _) = Args::parse_from(words).unwrap() else {
            panic!("{flags}")
        };
        prepare(&args, LogFormat::Text, &around).map_err(|error| format!("{error:#}"))
    }

    const PLAIN: &str = "discoveryAddress: pilot:15010";

    #[test]
    fn kubernetes_restarts_by_itself() {
        let restart = |flags: &str, host: &str| {
            setup(flags, PLAIN, [("KUBERNETES_SERVICE_HOST", host)]).unwrap().settings.restart
        };
        assert_eq!((restart("", ""), restart("", "10.0.0.1")), (Restart::Always, Restart::Never));
        assert_eq!(restart("--restartEnvoy=false", ""), Restart::Never);
        assert_eq!(restart("--restartEnvoy", "10.0.0.1"), Restart::Always);
    }

    #[test]
    fn draining_takes_the_time_that_was_set() {
        let config = format!("{PLAIN}\nterminationDrainDuration: 7s");
        assert_eq!(setup("", &config, []).unwrap().settings.drain, Drain::For(7_000));
        let wait = [("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true"), ("MINIMUM_DRAIN_DURATION", "2s")];
        assert_eq!(setup("", &config, wait).unwrap().settings.drain, Drain::UntilIdle(2_000));
    }

    #[test]
    fn a_bootstrap_of_the_users_own_is_passed_on() {
        let config = format!("{PLAIN}\ncustomConfigFile: /my.yaml\nbinaryPath: /opt/envoy");
        let setup = setup("", &config, []).unwrap();
        assert_eq!(setup.envoy.args[..2], ["-c", "/my.yaml"]);
        assert_eq!(setup.envoy.binary.to_str(), Some("/opt/envoy"));
    }

    #[test]
    fn what_cannot_be_done_is_told() {
        let error = |flags: &str, config: &str, variable: (&str, &str)| {
            setup(flags, config, [variable]).err().unwrap()
        };
        let no_root = error("", "", ("A", "1"));
        assert!(no_root.contains("root-cert.pem") && no_root.contains("XDS_ROOT_CA"), "{no_root}");
        assert!(error("", PLAIN, ("ECC_CURVE", "P1")).contains("P256 and P384"));
        assert!(error("", "discoveryAddress: here", ("A", "1")).contains("is not host:port"));
        assert!(error("", PLAIN, ("DISABLE_ENVOY", "true")).contains("DISABLE_ENVOY"));
        assert!(error("--meshConfig /", PLAIN, ("A", "1")).starts_with("cannot read mesh file /: "));
    }
}
