use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use pilot_base::Issue;

use crate::Env;
use crate::proxy_config::ProxyConfig;
use crate::supervise::HotRestart;

#[derive(Debug, thiserror::Error)]
pub(crate) enum OverrideError {
    /// The file that `ISTIO_BOOTSTRAP_OVERRIDE` names cannot be read.
    #[error("cannot read {path}, which ISTIO_BOOTSTRAP_OVERRIDE names")]
    Read { path: PathBuf, source: io::Error },
    /// The file is not YAML.
    #[error("{0}")]
    Yaml(Issue),
}

/// What Envoy's command line depends on beside the settings.
pub(crate) struct ArgsOptions<'a> {
    /// `level`, or `level,scope:level,…`.
    pub(crate) log_level: &'a str,
    /// The older way to say scopes.
    pub(crate) component_log_level: &'a str,
    pub(crate) addresses: &'a [IpAddr],
    /// A bootstrap to be laid over the file's, as JSON.
    pub(crate) override_json: Option<String>,
    pub(crate) hot_restart: HotRestart,
}

/// All but the file with the bootstrap, which comes first.
pub(crate) fn envoy_args(config: &ProxyConfig, options: ArgsOptions<'_>, env: &Env) -> Vec<String> {
    let all_v6 = options.addresses.iter().all(IpAddr::is_ipv6);
    let flush = config.file_flush_interval.map_or(1_000, |interval| interval.as_millis());
    let mut args: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["--drain-time-s", &config.drain_duration.as_secs().to_string()]);
    // Clients hear of a drain when it begins.
    add(&["--drain-strategy", "immediate"]);
    add(&["--local-address-ip-version", if all_v6 { "v6" } else { "v4" }]);
    add(&["--file-flush-interval-msec", &flush.to_string()]);
    match options.hot_restart {
        HotRestart::Off => add(&["--disable-hot-restart"]),
        HotRestart::On { parent_shutdown } => {
            add(&["--parent-shutdown-time-s", &(parent_shutdown / 1_000).to_string()]);
        }
    }
    add(&["--allow-unknown-static-fields"]);
    if let Some(size) = config.file_flush_min_size_kb.filter(|size| *size > 0) {
        add(&["--file-flush-min-size-kb", &size.to_string()]);
    }
    let (level, components) = split_levels(options.log_level);
    if let Some(level) = level {
        add(&["-l", level]);
    }
    match (components.as_str(), options.component_log_level) {
        ("", "") => (),
        ("", components) | (components, _) => add(&["--component-log-level", components]),
    }
    if env.flag("ENVOY_SKIP_DEPRECATED_LOGS").unwrap_or(true) {
        add(&["--skip-deprecated-logs"]);
    }
    if env.flag("ISTIO_ENVOY_ENABLE_CORE_DUMP") == Some(true) {
        add(&["--enable-core-dump"]);
    }
    if let Some(json) = options.override_json {
        // Envoy reads JSON here as well.
        add(&["--config-yaml", &json]);
    }
    if config.concurrency > 0 {
        add(&["--concurrency", &config.concurrency.to_string()]);
    }
    args
}

/// `warning,misc:error` is a level for everything and levels for some components.
fn split_levels(text: &str) -> (Option<&str>, String) {
    let (components, levels): (Vec<&str>, Vec<&str>) =
        text.split(',').filter(|part| !part.is_empty()).partition(|part| part.contains(':'));
    (levels.last().copied(), components.join(","))
}

/// Reads a bootstrap to be laid over ours. `$(HOST_IP)` in it is the address of the machine that the pod runs on.
pub(crate) fn read_override(env: &Env) -> Result<Option<String>, OverrideError> {
    let Some(path) = env.get("ISTIO_BOOTSTRAP_OVERRIDE") else { return Ok(None) };
    let text =
        std::fs::read_to_string(path).map_err(|source| OverrideError::Read { path: path.into(), source })?;
    let text = with_host_ip(&text, env.get("HOST_IP").unwrap_or_default());
    let value = pilot_config::read_value(&text, path).map_err(OverrideError::Yaml)?;
    Ok(Some(value.to_string()))
}

/// An address of version 6 needs brackets, unless they were written.
fn with_host_ip(text: &str, host: &str) -> String {
    if host.contains(':') {
        let host = format!("[{host}]");
        return text.replace("[$(HOST_IP)]", &host).replace("$(HOST_IP)", &host);
    }
    text.replace("$(HOST_IP)", host)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{ArgsOptions, envoy_args, read_override, split_levels, with_host_ip};
    use crate::Env;
    use crate::proxy_config::{Places, effective};
    use crate::supervise::HotRestart;

    fn args(config: &str, log_level: &str, component_log_level: &str, address: &str) -> String {
        let env = Env::from([("PROXY_CONFIG", config)]);
        let places = Places {
            mesh: None,
            env: &env,
            annotations: &BTreeMap::new(),
            concurrency: 0,
            service_cluster: "istio-proxy",
        };
        let options = ArgsOptions {
            log_level,
            component_log_level,
            addresses: &[address.parse().unwrap()],
            override_json: None,
            hot_restart: HotRestart::Off,
        };
        envoy_args(&effective(&places).unwrap(), options, &env).join(" ")
    }

    #[test]
    fn envoy_is_started_as_istio_starts_it() {
        assert_eq!(
            args("", "warning", "misc:error", "10.0.0.1"),
            "--drain-time-s 45 --drain-strategy immediate --local-address-ip-version v4 --file-flush-interval-msec 1000 --disable-hot-restart --allow-unknown-static-fields -l warning --component-log-level misc:error --skip-deprecated-logs"
        );
        let all = "{drainDuration: 7s, fileFlushInterval: 250ms, fileFlushMinSizeKb: 8, concurrency: 2}";
        assert_eq!(
            args(all, "info,upstream:debug", "misc:error", "fd00::1"),
            "--drain-time-s 7 --drain-strategy immediate --local-address-ip-version v6 --file-flush-interval-msec 250 --disable-hot-restart --allow-unknown-static-fields --file-flush-min-size-kb 8 -l info --component-log-level upstream:debug --skip-deprecated-logs --concurrency 2"
        );
    }

    #[test]
    fn levels_are_split() {
        assert_eq!(split_levels("warning"), (Some("warning"), String::new()));
        assert_eq!(split_levels("misc:error,rbac:debug"), (None, "misc:error,rbac:debug".to_owned()));
        assert_eq!(split_levels(""), (None, String::new()));
    }

    #[test]
    fn the_override_knows_its_machine() {
        assert_eq!(with_host_ip("a: $(HOST_IP)", "10.0.0.1"), "a: 10.0.0.1");
        assert_eq!(
            with_host_ip("a: '$(HOST_IP):1 [$(HOST_IP)]:2'", "fd00::1"),
            "a: '[fd00::1]:1 [fd00::1]:2'"
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("o.yaml");
        let env = Env::from([("ISTIO_BOOTSTRAP_OVERRIDE", path.to_str().unwrap())]);
        assert!(
            read_override(&env).unwrap_err().to_string().contains("which ISTIO_BOOTSTRAP_OVERRIDE names")
        );
        std::fs::write(&path, "admin: {a: 1}\n").unwrap();
        assert_eq!(read_override(&env).unwrap().as_deref(), Some(r#"{"admin":{"a":1}}"#));
        std::fs::write(&path, "a: [").unwrap();
        assert!(read_override(&env).unwrap_err().to_string().contains("o.yaml:"));
        assert_eq!(read_override(&Env::default()).unwrap(), None);
    }
}
