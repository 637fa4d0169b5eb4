//! What Istio's chart says to istiod and what has no effect here, each with the reason. Everything else that it says is
//! understood, which the test below reads from the chart itself.

use pilot_cli::Env;

/// Something that is accepted, and why nothing comes of it.
type NoEffect = (&'static str, &'static str);

pub(crate) const FLAGS: [NoEffect; 1] =
    [("cniNamespace", "taints of nodes are not taken away here; leave that to istio-cni")];

pub(crate) const VARIABLES: [NoEffect; 14] = [
    ("CA_TRUSTED_NODE_ACCOUNTS", "nobody may ask for certificates of others: ambient mode is not served"),
    ("ENABLE_NATIVE_SIDECARS", "pods are not injected yet"),
    ("GODEBUG", "it is for Go's runtime; COMPLIANCE_POLICY shapes what proxies are told"),
    ("GOMAXPROCS", "it is for Go's runtime; as many threads work as the container may use processors"),
    (
        "PILOT_CERT_PROVIDER",
        "the server's certificate is that of --tlsCertFile, else of the mesh's authority",
    ),
    ("PILOT_CRL_CONFIGMAP", "lists of revoked certificates are not given out yet"),
    ("PILOT_ENABLE_AMBIENT", "ambient mode is not served: proxies are sidecars, gateways and gRPC libraries"),
    ("PILOT_ENABLE_NODE_UNTAINT_CONTROLLERS", "taints of nodes are not taken away here"),
    ("PILOT_ENABLE_STRICT_GATEWAY_MERGING", "Gateways of the Gateway API are not read yet"),
    ("PILOT_NODE_UNTAINT_CONTROLLERS_TAINT_NAME", "taints of nodes are not taken away here"),
    ("PILOT_SIDECAR_PICK_BEST_SERVICE_NAMESPACE", "a Sidecar always picks as Istio does by default"),
    ("PILOT_SPAWN_UPSTREAM_SPAN_FOR_GATEWAY", "istiod does not read it either"),
    ("PLATFORM", "it is for the injection of pods, which is not there yet"),
    ("SERVICE_ACCOUNT", "who the server is to the API server is said by its token"),
];

/// The same for what the chart does not say and people may.
pub(crate) const OTHERS: [NoEffect; 3] = [
    ("LOCAL_CLUSTER_SECRET_WATCHER", FROM_SECRETS),
    (
        "PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS",
        "a kubeconfig from a secret may not name files or programs",
    ),
    ("PILOT_MULTICLUSTER_KUBECONFIG_PATH", FROM_SECRETS),
];
const FROM_SECRETS: &str = "kubeconfigs of other clusters come from secrets of our own cluster only";

/// Says at the start what is set in vain.
pub(crate) fn tell(env: &Env) {
    let idle = set(env);
    if !idle.is_empty() {
        tracing::info!(
            "these variables have no effect here: {} (docs/kubernetes.md says why)",
            idle.join(", ")
        );
    }
}

/// Those that are set.
fn set(env: &Env) -> Vec<&'static str> {
    let all = VARIABLES.iter().chain(&OTHERS).map(|(name, _)| *name);
    all.filter(|name| env.get(name).is_some()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use clap::{CommandFactory as _, Parser as _};
    use pilot_cli::{Env, Lenience, without_unknown};
    use pilot_server::SystemClock;

    use super::{FLAGS, OTHERS, VARIABLES, set};
    use crate::args::{Cli, Cmd, DiscoveryArgs};
    use crate::identity::IdentitySettings;
    use crate::writers::Writers;

    /// The folder of istiod's chart.
    #[allow(clippy::disallowed_methods, reason = "tests are told by the environment where Istio's module is")]
    fn chart() -> Option<PathBuf> {
        let found = std::env::var_os("PILOT_ISTIO_MODULE").filter(|path| !path.is_empty());
        let chart =
            found.map(|module| Path::new(&module).join("manifests/charts/istio-control/istio-discovery"));
        if chart.is_none() {
            let required = std::env::var_os("PILOT_REQUIRE_ALL").is_some_and(|value| !value.is_empty());
            assert!(!required, "PILOT_ISTIO_MODULE must name Istio's module; `make corpora` gets it");
            eprintln!("skipped: PILOT_ISTIO_MODULE does not name Istio's module");
        }
        chart
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The lines of a list in a template that belong to a key, up to the next key that stands as far left.
    fn section<'a>(template: &'a str, key: &str) -> Vec<&'a str> {
        let mut lines = template.lines().skip_while(|line| line.trim() != key);
        let Some(head) = lines.next() else { return Vec::new() };
        let indent = |line: &str| line.len() - line.trim_start().len();
        let is_next = |line: &&str| {
            let text = line.trim();
            indent(line) <= indent(head) && !text.is_empty() && !text.starts_with(['-', '{', '#'])
        };
        lines.take_while(|line| !is_next(line)).map(str::trim).collect()
    }

    /// The words of the command line, with something sensible where the chart's user has a say.
    fn words(template: &str) -> Vec<String> {
        let items = section(template, "args:").into_iter().filter_map(|line| line.strip_prefix("- "));
        let filled = |item: &str| {
            let item = item.trim_matches('"');
            let Some((before, rest)) = item.split_once("{{") else { return item.to_owned() };
            let (_, after) = rest.split_once("}}").unwrap_or_default();
            let value = ["logging.level", "clusterDomain", "ConnectionAge"]
                .iter()
                .position(|name| rest.contains(name));
            let value = value.map_or("istio-system", |at| ["default:info", "example.org", "30m"][at]);
            format!("{before}{value}{after}")
        };
        items.map(filled).collect()
    }

    /// The names of variables in the template, and of those that its profiles set.
    fn variables(chart: &Path, template: &str) -> BTreeSet<String> {
        let named = section(template, "env:").into_iter().filter_map(|line| line.strip_prefix("- name: "));
        let mut all: BTreeSet<String> =
            named.filter(|name| !name.contains("{{")).map(|name| name.trim().to_owned()).collect();
        for file in std::fs::read_dir(chart.join("files")).unwrap().flatten() {
            if file.file_name().to_string_lossy().starts_with("profile-") {
                let text = read(&file.path());
                let keys = section(&text, "env:").into_iter().filter_map(|line| line.split_once(':'));
                let is_name = |key: &&str| {
                    key.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
                };
                all.extend(keys.map(|(key, _)| key).filter(is_name).map(str::to_owned));
            }
        }
        all
    }

    /// All variables that the server looks for when it starts with these arguments.
    fn looked_for(args: DiscoveryArgs) -> BTreeSet<String> {
        let scratch = tempfile::tempdir().unwrap();
        let kubeconfig = scratch.path().join("kubeconfig");
        let config = "{current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}], \
            clusters: [{name: x, cluster: {server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true}}], users: [{name: x, user: {}}]}";
        std::fs::write(&kubeconfig, config).unwrap();
        let env = Env::from([("KUBECONFIG", kubeconfig.to_str().unwrap())]);
        let clock: Arc<dyn pilot_base::Clock> = Arc::new(SystemClock::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let opened =
            crate::sources::open(&args, &env, (&clock, tokio::sync::watch::channel(Default::default()).1))
                .unwrap();
        Writers::new(opened.home.expect("there is a cluster"), &args, &env);
        IdentitySettings::new(&args, &env).unwrap();
        args.settings(&env);
        env.looked_for()
    }

    #[test]
    fn everything_that_istios_chart_says_is_understood_or_has_a_reason() {
        let Some(chart) = chart() else { return };
        let template = read(&chart.join("templates/deployment.yaml"));
        let words = words(&template);
        assert!(words.contains(&"--log_as_json".to_owned()) && words.len() > 6, "{words:?}");
        let line = std::iter::once("pilot-discovery".to_owned()).chain(words).collect();
        let lenience = Lenience { subcommand: "discovery", words: &[] };
        let (line, unknown) = without_unknown(Cli::command(), &lenience, line);
        let known: Vec<String> = FLAGS.iter().map(|(name, _)| format!("--{name}")).collect();
        assert_eq!(unknown, known);
        let Cmd::Discovery(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        assert_eq!((args.domain.as_str(), args.monitoring_addr.as_str()), ("example.org", ":15014"));
        assert_eq!(args.max_connection_age.map(|age| age.as_secs()), Some(1800));

        let said = variables(&chart, &template);
        for sure in ["REVISION", "PLATFORM", "PILOT_ENABLE_AMBIENT", "PILOT_AUTO_SEND_UNHEALTHY_ENDPOINTS"] {
            assert!(said.contains(sure), "{sure} in {said:?}");
        }
        let read = looked_for(*args);
        let no_effect: BTreeSet<String> = VARIABLES.iter().map(|(name, _)| (*name).to_owned()).collect();
        let lost: Vec<_> =
            said.iter().filter(|name| !read.contains(*name) && !no_effect.contains(*name)).collect();
        assert!(lost.is_empty(), "neither read nor listed: {lost:?}");
        let stale: Vec<_> =
            no_effect.iter().filter(|name| read.contains(*name) || !said.contains(*name)).collect();
        assert!(stale.is_empty(), "listed, but read, or not in the chart any more: {stale:?}");
        assert!(OTHERS.iter().all(|(name, _)| !read.contains(*name) && !said.contains(*name)));
    }

    #[test]
    fn the_documentation_has_every_reason() {
        let docs = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kubernetes.md"));
        for (name, why) in FLAGS.iter().chain(&VARIABLES).chain(&OTHERS) {
            assert!(docs.contains(&format!("{name}` | {why} |")), "{name}: {why}");
        }
        assert_eq!(set(&Env::from([("PLATFORM", "gcp"), ("REVISION", "a"), ("GODEBUG", "")])), ["PLATFORM"]);
    }
}
