use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use pilot_base::Millis;

use crate::Env;
use crate::args::{DEFAULT_MESH_FILE, ProxyArgs};
use crate::bootstrap::{self, BootstrapOptions, Chosen, LogFormat, Stack, XdsProtocol};
use crate::envoy_args::{ArgsOptions, envoy_args, read_override};
use crate::grpc::Upstream;
use crate::grpc_bootstrap::GrpcBootstrap;
use crate::health::ReadinessProbe;
use crate::node::{MetadataError, Node, NodeOptions, ProxyType};
use crate::proxy_config::{self, Places, ProxyConfig, Tracer};
use crate::supervise::{Drain, HotRestart, Restart, Settings};
use crate::surroundings::Surroundings;
use crate::{control_plane, identity};

/// An Envoy that was taken over from is told to end when its listeners have drained and a third of that time has passed:
/// 60 seconds by default, which Istio used while it had hot restarts. Envoy wants it to be a second at least.
const SHORTEST_AFTER_DRAIN: Millis = 1_000;

/// Everything that was decided before anything was started.
pub(crate) struct Setup {
    /// None if the agent is to work without one.
    pub(crate) envoy: Option<Envoy>,
    pub(crate) settings: Settings,
    /// 0: none.
    pub(crate) status_port: u16,
    pub(crate) namespace: String,
    /// Suffix of the workload's host names.
    pub(crate) domain: String,
    /// How a workload outside of Kubernetes is asked whether it is well.
    pub(crate) probe: Option<ReadinessProbe>,
    pub(crate) grpc_bootstrap: Option<GrpcBootstrap>,
    /// Where configuration comes from.
    pub(crate) xds: Upstream,
    /// Who the workload is, and who certifies that; nobody if files do.
    pub(crate) identity: identity::Settings,
    pub(crate) authority: Option<Upstream>,
    pub(crate) config_path: PathBuf,
    pub(crate) node_id: String,
}

/// How to start an Envoy and to talk to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Envoy {
    pub(crate) binary: PathBuf,
    pub(crate) args: Vec<String>,
    /// The bootstrap's place.
    pub(crate) file: PathBuf,
    /// What is to be written there; none if the file is the user's own.
    pub(crate) bootstrap: Option<String>,
    /// Where files about the proxy lie.
    pub(crate) directory: PathBuf,
    pub(crate) admin_port: u16,
    pub(crate) proxy_type: ProxyType,
    /// Ports at which Envoy listens for probes and scrapes.
    pub(crate) own_ports: [u16; 2],
    /// Files that all of this was made from.
    pub(crate) inputs: Vec<PathBuf>,
}

impl Envoy {
    pub(crate) fn command_line(&self, file: &Path) -> Vec<String> {
        let file = file.to_string_lossy().into_owned();
        ["-c".to_owned(), file].into_iter().chain(self.args.iter().cloned()).collect()
    }

    /// Would it make no difference which of both is started? What is in a user's own file is not known.
    pub(crate) fn starts_like(&self, other: &Self) -> bool {
        self.bootstrap.is_some() && self == other
    }
}

/// Reads what there is to read, decides, and writes nothing.
pub(crate) fn prepare(
    args: &ProxyArgs,
    log_format: LogFormat,
    around: &Surroundings,
) -> anyhow::Result<Setup> {
    let env = &around.env;
    let config = configuration(args, around)?;
    let ports = Ports::read(env);
    let node = node(args, &config, around, &ports)?;
    tracing::info!(id = node.id, server = config.discovery_address, "proxy");
    let settings = Settings {
        restart: restart(args, around),
        drain: drain(&config, around),
        hot_restart: hot_restart(args, &config, around),
    };
    let envoy = if env.flag("DISABLE_ENVOY") == Some(true) {
        tracing::info!("DISABLE_ENVOY is set: no Envoy is started");
        None
    } else {
        let options = bootstrap_options(args, log_format, around, &ports, settings.drain);
        let template = Chosen::find(&args.template_file, &config, env);
        let (file, bootstrap) = bootstrap_text(&node, &config, &options, template.as_ref())?;
        let args_options = ArgsOptions {
            log_level: &args.proxy_log_level,
            component_log_level: &args.proxy_component_log_level,
            addresses: &node.addresses,
            override_json: read_override(env)?,
            hot_restart: settings.hot_restart,
        };
        Some(Envoy {
            args: envoy_args(&config, args_options, env),
            binary: config.binary_path.clone(),
            file,
            bootstrap,
            directory: config.config_path.clone(),
            admin_port: config.admin_port,
            proxy_type: args.proxy_type,
            own_ports: [ports.status, ports.prometheus],
            inputs: inputs(args, &config, env, template),
        })
    };
    let xds = control_plane::xds(&config, env)?;
    let identity = identity::Settings::read(env, &node.namespace)?;
    let authority = if identity.only_files { None } else { Some(control_plane::authority(&config, env)?) };
    Ok(Setup {
        xds,
        identity,
        authority,
        envoy,
        settings,
        status_port: config.status_port,
        grpc_bootstrap: GrpcBootstrap::build(&node, &config.config_path, env),
        probe: ReadinessProbe::read(&config.said)?,
        config_path: config.config_path,
        node_id: node.id,
        namespace: node.namespace,
        domain: node.domain,
    })
}

/// Where Envoy answers probes and scrapes. 0: it does not.
struct Ports {
    status: u16,
    prometheus: u16,
    secure_metrics: u16,
    secure_merged_metrics: u16,
}

impl Ports {
    fn read(env: &Env) -> Self {
        let port = |name: &str, otherwise: u16| env.number::<u16>(name).unwrap_or(otherwise);
        Self {
            status: port("ENVOY_STATUS_PORT", 15021),
            prometheus: port("ENVOY_PROMETHEUS_PORT", 15090),
            secure_metrics: port("ENVOY_SECURE_METRICS_PORT", 0),
            secure_merged_metrics: port("ENVOY_SECURE_MERGED_METRICS_PORT", 0),
        }
    }
}

fn node(
    args: &ProxyArgs,
    config: &ProxyConfig,
    around: &Surroundings,
    ports: &Ports,
) -> Result<Node, MetadataError> {
    let options = NodeOptions {
        proxy_type: args.proxy_type,
        domain: args.domain.clone(),
        sts_port: args.sts_port,
        outlier_log_path: args.outlier_log_path.clone(),
        status_port: ports.status,
        prometheus_port: ports.prometheus,
        secure_metrics_port: ports.secure_metrics,
        secure_merged_metrics_port: ports.secure_merged_metrics,
    };
    Node::new(&options, config, around)
}

fn bootstrap_options(
    args: &ProxyArgs,
    log_format: LogFormat,
    around: &Surroundings,
    ports: &Ports,
    drain: Drain,
) -> BootstrapOptions {
    let env = &around.env;
    BootstrapOptions {
        protocol: match env.flag("ISTIO_DELTA_XDS") {
            Some(false) => XdsProtocol::StateOfTheWorld,
            _ => XdsProtocol::Delta,
        },
        log_format,
        stack: if env.flag("ISTIO_DUAL_STACK") == Some(true) { Stack::Dual } else { Stack::Single },
        outlier_log_path: args.outlier_log_path.clone(),
        status_port: ports.status,
        prometheus_port: ports.prometheus,
        secure_metrics_port: ports.secure_metrics,
        secure_merged_metrics_port: ports.secure_merged_metrics,
        host_ip: env.get("HOST_IP").map(str::to_owned),
        fips: env.get("COMPLIANCE_POLICY") == Some("fips-140-2"),
        keeps_fragments: env.flag("HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED") == Some(false),
        probes_with_proxy_protocol: env.flag("ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL") == Some(true),
        counts_connections: matches!(drain, Drain::UntilIdle(_)),
    }
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
    Ok(proxy_config::effective(&Places {
        mesh: mesh.as_deref().map(|text| (file, text)),
        env: &around.env,
        annotations: &around.annotations,
        concurrency: args.concurrency,
        service_cluster: &args.service_cluster,
    })?)
}

/// Where the bootstrap lies, and what is to be written there. A file of the user's own is not touched.
fn bootstrap_text(
    node: &Node,
    config: &ProxyConfig,
    options: &BootstrapOptions,
    template: Option<&Chosen>,
) -> anyhow::Result<(PathBuf, Option<String>)> {
    if let Some(file) = &config.custom_config_file {
        File::open(file)
            .with_context(|| format!("cannot read {}, which customConfigFile names", file.display()))?;
        return Ok((file.clone(), None));
    }
    if let Some(Tracer::Lightstep { token }) = config.tracing.as_ref().map(|tracing| &tracing.tracer) {
        bootstrap::write_text(&bootstrap::token_file(&config.config_path), token)?;
    }
    let file = bootstrap::file(&config.config_path);
    match template {
        Some(template) => {
            let text = template.render(node, config, options)?;
            Ok((if template.is_yaml() { file.with_extension("yaml") } else { file }, Some(text)))
        }
        None => Ok((file, Some(format!("{:#}\n", bootstrap::build(node, config, options)?)))),
    }
}

/// Files of the user's whose change means that Envoy should start with something else.
fn inputs(args: &ProxyArgs, config: &ProxyConfig, env: &Env, template: Option<Chosen>) -> Vec<PathBuf> {
    let files = [
        Some(PathBuf::from(&args.mesh_config)),
        config.custom_config_file.clone().or(template.map(|template| template.path)),
        env.get("ISTIO_BOOTSTRAP_OVERRIDE").map(PathBuf::from),
    ];
    files.into_iter().flatten().collect()
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
    let told = args.restart_envoy.or_else(|| around.env.flag("PILOT_AGENT_RESTART_ENVOY"));
    if told.unwrap_or(!in_kubernetes) { Restart::UpTo(args.restart_envoy_limit) } else { Restart::Never }
}

fn hot_restart(args: &ProxyArgs, config: &ProxyConfig, around: &Surroundings) -> HotRestart {
    let told = args.hot_restart.or_else(|| around.env.flag("PILOT_AGENT_HOT_RESTART"));
    if told != Some(true) {
        return HotRestart::Off;
    }
    let drain = Millis::from(u32::try_from(config.drain_duration.as_millis()).unwrap_or(u32::MAX));
    HotRestart::On { parent_shutdown: drain + (drain / 3).max(SHORTEST_AFTER_DRAIN) }
}

#[cfg(test)]
mod tests {
    use super::{Setup, prepare};
    use crate::Env;
    use crate::args::{Args, Command};
    use crate::bootstrap::LogFormat;
    use crate::supervise::{Drain, HotRestart, Restart};
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
        assert_eq!((restart("", ""), restart("", "10.0.0.1")), (Restart::UpTo(20), Restart::Never));
        assert_eq!(restart("--restartEnvoy=false", ""), Restart::Never);
        assert_eq!(restart("--restartEnvoy --restartEnvoyLimit=3", "10.0.0.1"), Restart::UpTo(3));
        let told = [("PILOT_AGENT_RESTART_ENVOY", "false")];
        assert_eq!(setup("", PLAIN, told).unwrap().settings.restart, Restart::Never);
        assert_eq!(setup("--restartEnvoy", PLAIN, told).unwrap().settings.restart, Restart::UpTo(20));
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
        let config = format!("{PLAIN}\ncustomConfigFile: /dev/null\nbinaryPath: /opt/envoy");
        let envoy = setup("", &config, []).unwrap().envoy.unwrap();
        assert_eq!(envoy.command_line(&envoy.file)[..2], ["-c", "/dev/null"]);
        assert_eq!((envoy.binary.to_str(), &envoy.bootstrap), (Some("/opt/envoy"), &None));
        let error = setup("", &format!("{PLAIN}\ncustomConfigFile: /none.yaml"), []).err().unwrap();
        assert!(error.starts_with("cannot read /none.yaml, which customConfigFile names: "), "{error}");
    }

    #[test]
    fn envoys_take_over_from_each_other_only_if_told_to() {
        let hot = |flags: &str, value: &str| {
            let setup = setup(flags, PLAIN, [("PILOT_AGENT_HOT_RESTART", value)]).unwrap();
            let args = setup.envoy.unwrap().args.join(" ");
            let disabled = args.contains("--disable-hot-restart");
            assert_ne!(disabled, args.contains("--parent-shutdown-time-s 60"));
            assert_eq!(disabled, setup.settings.hot_restart == HotRestart::Off);
            !disabled
        };
        assert!(
            !hot("", "") && hot("--hotRestart", "") && hot("", "true") && !hot("--hotRestart=false", "true")
        );
    }

    #[test]
    fn there_may_be_no_envoy() {
        assert!(setup("", PLAIN, [("DISABLE_ENVOY", "true")]).unwrap().envoy.is_none());
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
        assert!(error("--meshConfig /", PLAIN, ("A", "1")).starts_with("cannot read mesh file /: "));
    }
}
