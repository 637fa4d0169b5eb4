//! The command line and the environment. Nothing else reads either.

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};

use pilot_base::parse_bool;
use pilot_cli::{Lenience, LogArgs, without_unknown};

use crate::node::ProxyType;
use crate::redirect::RedirectArgs;

pub(crate) const DEFAULT_MESH_FILE: &str = "./etc/istio/config/mesh";
/// Where `request` may ask: Envoy's administrator and what answers for the proxy.
const REQUEST_PORTS: [&str; 4] = ["15000", "15004", "15020", "15021"];

#[derive(Parser, Clone, Debug)]
#[command(
    name = "pilot-agent",
    args_override_self = true,
    about = "Runs beside a workload and looks after its Envoy"
)]
pub struct Args {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Command {
    Proxy(Box<ProxyArgs>),
    IstioIptables(Box<RedirectArgs>),
    /// Take redirection away, as `istio-iptables --cleanup-only`
    IstioCleanIptables(Box<RedirectArgs>),
    Request(RequestArgs),
    Wait(WaitArgs),
    Version(VersionArgs),
}

/// Write Envoy's bootstrap and keep Envoy running. Unknown flags are warned about and ignored
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ProxyArgs {
    /// What the proxy is for
    #[arg(value_name = "TYPE", value_enum, default_value = "sidecar")]
    pub(crate) proxy_type: ProxyType,
    /// Suffix of the workload's host names [default: $POD_NAMESPACE.svc.cluster.local]
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) domain: String,
    /// File with the mesh configuration; PROXY_CONFIG and the annotation proxy.istio.io/config win over it
    #[arg(long = "meshConfig", value_name = "FILE", default_value = DEFAULT_MESH_FILE)]
    pub(crate) mesh_config: String,
    /// Name of the workload in traces, where the proxy configuration has none
    #[arg(long = "serviceCluster", value_name = "NAME", default_value = "istio-proxy")]
    pub(crate) service_cluster: String,
    /// Envoy's log level: trace, debug, info, warning, error, critical or off, also with components, as in
    /// `warning,misc:error`
    #[arg(long = "proxyLogLevel", value_name = "LEVEL", default_value = "warning")]
    pub(crate) proxy_log_level: String,
    /// Envoy's log levels by component; --proxyLogLevel can say the same
    #[arg(
        long = "proxyComponentLogLevel",
        value_name = "LEVELS",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) proxy_component_log_level: String,
    /// Envoy's worker threads; 0 leaves it to the proxy configuration
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) concurrency: u32,
    /// Go template for the bootstrap; ISTIO_BOOTSTRAP wins over it
    #[arg(long = "templateFile", value_name = "FILE", default_value = "", hide_default_value = true)]
    pub(crate) template_file: String,
    /// File in which Envoy writes about hosts that it takes out
    #[arg(long = "outlierLogPath", value_name = "FILE", default_value = "", hide_default_value = true)]
    pub(crate) outlier_log_path: String,
    /// Told to the server as metadata; the agent serves no tokens
    #[arg(long = "stsPort", value_name = "PORT", default_value = "0")]
    pub(crate) sts_port: u16,
    /// Accepted, without effect
    #[arg(long = "tokenManagerPlugin", value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(crate) token_manager_plugin: String,
    /// Accepted, without effect
    #[arg(
        long,
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "true",
        default_missing_value = "true",
        value_parser = parse_bool
    )]
    pub(crate) profiling: bool,
    /// Start Envoy again when it ends. By default the agent does so outside of Kubernetes, and inside ends with it; also
    /// PILOT_AGENT_RESTART_ENVOY
    #[arg(
        long = "restartEnvoy",
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = parse_bool
    )]
    pub(crate) restart_envoy: Option<bool>,
    /// After so many ends of Envoy in a row the agent ends as well; 0 for no limit
    #[arg(long = "restartEnvoyLimit", value_name = "N", default_value = "20")]
    pub(crate) restart_envoy_limit: u32,
    /// Have a new Envoy take over from the one that runs, without losing a request, on SIGHUP and when a file that it is
    /// started with has changed. Off by default, as in Istio; also PILOT_AGENT_HOT_RESTART=true
    #[arg(
        long = "hotRestart",
        value_name = "BOOL",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        value_parser = parse_bool
    )]
    pub(crate) hot_restart: Option<bool>,
}

/// Ask Envoy's administrator and print the answer
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RequestArgs {
    #[arg(value_name = "METHOD")]
    pub(crate) method: String,
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
    #[arg(value_name = "BODY", default_value = "", hide_default_value = true)]
    pub(crate) body: String,
    /// Port on this machine
    #[arg(long = "debug-port", value_name = "PORT", default_value = "15000", value_parser = REQUEST_PORTS)]
    pub(crate) debug_port: String,
}

/// Wait until Envoy is ready
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct WaitArgs {
    /// Longest time to wait
    #[arg(long = "timeoutSeconds", value_name = "N", default_value = "60")]
    pub(crate) timeout_seconds: u64,
    /// Longest time for one try
    #[arg(long = "requestTimeoutMillis", value_name = "N", default_value = "500")]
    pub(crate) request_timeout_millis: u64,
    /// Time between tries
    #[arg(long = "periodMillis", value_name = "N", default_value = "500")]
    pub(crate) period_millis: u64,
    /// What to ask
    #[arg(long, default_value = "http://localhost:15021/healthz/ready")]
    pub(crate) url: String,
}

/// Print the version
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct VersionArgs {
    /// Only the version of Istio whose behaviour this agent has
    #[arg(short, long)]
    pub(crate) short: bool,
}

impl Args {
    /// The flags, and those that nobody knows.
    pub fn parse_from(argv: impl IntoIterator<Item = String>) -> Result<(Self, Vec<String>), clap::Error> {
        // A chart may be newer or older than this binary. The types of proxies that Istio has and we have not are no
        // values of flags.
        let lenience = Lenience { subcommand: "proxy", words: &["waypoint", "ztunnel", "agentgateway"] };
        let (argv, unknown) = without_unknown(Self::command(), &lenience, argv.into_iter().collect());
        let matches = Self::command().try_get_matches_from(argv)?;
        Ok((Self::from_arg_matches(&matches)?, unknown))
    }
}

/// The words of the command line.
pub fn words() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::{Args, Command, ProxyArgs};
    use crate::node::ProxyType;

    fn parse(line: &str) -> Result<(Args, Vec<String>), String> {
        let words = std::iter::once("pilot-agent").chain(line.split_whitespace()).map(str::to_owned);
        Args::parse_from(words).map_err(|error| error.to_string())
    }

    fn proxy(line: &str) -> (ProxyArgs, Vec<String>) {
        match parse(line).unwrap() {
            (Args { command: Command::Proxy(args), .. }, unknown) => (*args, unknown),
            (other, _) => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_istios_template_passes_is_understood() {
        let (args, unknown) = proxy(
            "proxy sidecar --domain shop.svc.cluster.local --proxyLogLevel=warning --proxyComponentLogLevel=misc:error --log_output_level=default:info --log_as_json --stsPort 15463 --outlierLogPath /dev/stdout",
        );
        assert_eq!((args.proxy_type, args.domain.as_str()), (ProxyType::Sidecar, "shop.svc.cluster.local"));
        assert_eq!((args.sts_port, args.outlier_log_path.as_str()), (15463, "/dev/stdout"));
        assert_eq!((args.restart_envoy, args.profiling), (None, true));
        assert!(unknown.is_empty());
        assert!(parse("proxy router --log_as_json=T").unwrap().0.log.as_json);
    }

    #[test]
    fn the_type_may_be_left_out_but_not_made_up() {
        assert_eq!(proxy("proxy").0.proxy_type, ProxyType::Sidecar);
        assert_eq!(proxy("proxy router --profiling=false --restartEnvoy=false").0.restart_envoy, Some(false));
        let error = parse("proxy waypoint").unwrap_err();
        assert!(error.contains("'waypoint'") && error.contains("sidecar, router"), "{error}");
        assert!(parse("proxy --unknown waypoint").is_err());
    }

    #[test]
    fn unknown_flags_are_for_proxies_only() {
        assert_eq!(proxy("proxy --new_thing=1 router").1, ["--new_thing"]);
        assert!(parse("wait --newThing=1").is_err());
    }

    #[test]
    fn only_some_ports_may_be_asked() {
        assert!(parse("request GET stats --debug-port=15020").is_ok());
        assert!(parse("request GET stats --debug-port=8080").is_err());
        assert!(parse("request GET").is_err());
    }
}
