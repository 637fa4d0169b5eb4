//! Bootstraps of the user's own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::path::PathBuf;
use std::process::Command;

use crate::support::{self, Agent, Settings};

/// Has the agent write a bootstrap, with a script in Envoy's place that ends at once and says how it was called.
fn written(vary: impl FnOnce(Settings) -> Settings) -> Agent {
    let settings =
        Settings::script("printf '<%s>' \"$@\" >args").flag("--restartEnvoy=false").with_status_port();
    let mut agent = Agent::start(vary(settings));
    assert_eq!(agent.wait(), Some(0), "{}", agent.log());
    agent
}

fn args(agent: &Agent) -> String {
    std::fs::read_to_string(agent.settings.file("args")).unwrap()
}

#[allow(clippy::disallowed_methods, reason = "tests are told what the machine has by its environment")]
fn stock_template() -> Option<PathBuf> {
    match std::env::var_os("PILOT_ISTIO_MODULE").filter(|path| !path.is_empty()) {
        Some(module) => Some(PathBuf::from(module).join("tools/packaging/common/envoy_bootstrap.json")),
        None => {
            support::missing("PILOT_ISTIO_MODULE must name Istio's module");
            None
        }
    }
}

#[test]
fn a_real_envoy_accepts_what_comes_of_istios_template() {
    let (Some(envoy), Some(stock)) = (support::real_envoy(), stock_template()) else { return };
    let stock = stock.to_str().unwrap();
    let ways: [&dyn Fn(Settings) -> Settings; 3] = [
        &|settings| settings.flag(&format!("--templateFile={stock}")),
        &|settings| settings.variable("ISTIO_BOOTSTRAP", stock).flag("--templateFile=/none"),
        &|settings| settings.proxy(&format!("proxyBootstrapTemplatePath: {stock}")),
    ];
    for way in ways {
        let agent = written(|settings| {
            way(settings.variable("ENVOY_STATUS_PORT", "15021").variable("ENVOY_PROMETHEUS_PORT", "15090"))
        });
        let file = agent.settings.file("envoy-rev.json");
        let output = Command::new(&envoy)
            .args(["--mode", "validate", "--disable-hot-restart", "-c"])
            .arg(&file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_template_may_give_yaml() {
    let agent = written(|settings| {
        let template = settings.file("own.yaml.tmpl");
        std::fs::write(
            &template,
            "{{- /* mine */ -}}\nnode: {id: {{ quote .nodeID }}, cluster: {{ .cluster | upper }}}\n# {{ .config.ProxyAdminPort }}\n",
        )
        .unwrap();
        settings.flag(&format!("--templateFile={}", template.display())).variable("POD_NAMESPACE", "shop")
    });
    let text = std::fs::read_to_string(agent.settings.file("envoy-rev.yaml")).unwrap();
    assert!(
        text.starts_with("node: {id: \"sidecar~") && text.contains("cluster: ISTIO-PROXY.SHOP"),
        "{text}"
    );
    assert!(text.ends_with(&format!("# {}\n", agent.settings.admin_port())), "{text}");
    assert!(args(&agent).starts_with(&format!("<-c><{}>", agent.settings.file("envoy-rev.yaml").display())));
}

#[test]
fn an_override_is_handed_over_with_the_machines_address() {
    let agent = written(|settings| {
        let file = settings.file("override.yaml");
        std::fs::write(&file, "stats_sinks: [{name: x, address: '$(HOST_IP):8125'}]\n").unwrap();
        settings.variable("ISTIO_BOOTSTRAP_OVERRIDE", file.to_str().unwrap()).variable("HOST_IP", "10.9.8.7")
    });
    let wanted = r#"<--config-yaml><{"stats_sinks":[{"address":"10.9.8.7:8125","name":"x"}]}>"#;
    assert!(args(&agent).contains(wanted), "{}", args(&agent));
}

#[test]
fn a_file_of_the_users_own_is_left_alone() {
    let agent = written(|settings| {
        let file = settings.file("mine.yaml");
        std::fs::write(&file, "{{ this is no template }}").unwrap();
        settings.proxy(&format!("customConfigFile: {}", file.display()))
    });
    assert!(args(&agent).starts_with(&format!("<-c><{}>", agent.settings.file("mine.yaml").display())));
    assert!(!agent.settings.file("envoy-rev.json").exists());
}
