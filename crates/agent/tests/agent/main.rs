//! The agent as a program: what it does to the process it looks after.
//!
//! Most tests run a script in Envoy's place. Those that need a real Envoy run when `PILOT_ENVOY` names one.

mod bad_input;
mod bootstrap;
mod hot_restart;
mod life;
mod load;
mod relay;
mod status;
mod support;
mod world;

use support::{Agent, Settings};

#[test]
fn in_kubernetes_the_agent_ends_as_envoy_does() {
    let settings = Settings::script("exit 7").variable("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    assert_eq!(Agent::start(settings).wait(), Some(7));
    let settings = Settings::script("kill -9 $$").variable("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    assert_eq!(Agent::start(settings).wait(), Some(137));
}

#[test]
fn a_missing_envoy_is_told_with_what_to_do() {
    let settings = Settings::binary("/no/such/envoy").flag("--restartEnvoy=false");
    let mut agent = Agent::start(settings);
    assert_eq!(agent.wait(), Some(1));
    let log = agent.log();
    assert!(log.contains("/no/such/envoy") && log.contains("binaryPath in PROXY_CONFIG"), "{log}");
}

#[test]
fn elsewhere_envoy_is_started_again() {
    let agent = Agent::start(Settings::script("exec sleep 1000"));
    let first = agent.envoy_other_than(0);
    support::kill("KILL", first);
    let second = agent.envoy_other_than(first);
    assert!(support::is_alive(second));
}

#[test]
fn a_missing_envoy_is_tried_again() {
    let settings = Settings::script("exec sleep 1000");
    let (binary, hidden) = (settings.file("envoy"), settings.file("hidden"));
    std::fs::rename(&binary, &hidden).unwrap();
    let agent = Agent::start(settings);
    support::until("a failed start", || agent.log().contains("cannot start Envoy").then_some(()));
    std::fs::rename(&hidden, &binary).unwrap();
    assert!(support::is_alive(agent.envoy_other_than(0)));
}

#[test]
fn a_signal_ends_both() {
    for signal in ["TERM", "INT"] {
        let mut agent = Agent::start(Settings::script("exec sleep 1000"));
        let envoy = agent.envoy_other_than(0);
        support::kill(signal, agent.pid());
        assert_eq!(agent.wait(), Some(0), "{signal}");
        assert!(!support::is_alive(envoy), "{signal}");
    }
}

#[test]
fn a_second_signal_does_not_wait() {
    let settings = Settings::script("exec sleep 1000").proxy("terminationDrainDuration: 1000s");
    let mut agent = Agent::start(settings);
    let envoy = agent.envoy_other_than(0);
    support::kill("TERM", agent.pid());
    support::until("draining", || agent.log().contains("draining Envoy").then_some(()));
    support::kill("TERM", agent.pid());
    assert_eq!(agent.wait(), Some(0));
    assert!(!support::is_alive(envoy));
}

#[test]
fn quitting_does_not_wait() {
    let settings =
        Settings::script("exec sleep 1000").proxy("terminationDrainDuration: 1000s").with_status_port();
    let mut agent = Agent::start(settings);
    let envoy = agent.envoy_other_than(0);
    let answer = support::until("the status server", || agent.ask_status("POST", "/quitquitquit"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(agent.wait(), Some(0));
    assert!(!support::is_alive(envoy));
}

#[cfg(target_os = "linux")]
#[test]
fn envoy_dies_with_a_killed_agent() {
    let mut agent = Agent::start(Settings::script("exec sleep 1000"));
    let envoy = agent.envoy_other_than(0);
    support::kill("KILL", agent.pid());
    agent.wait();
    support::until("the end of Envoy", || (!support::is_alive(envoy)).then_some(()));
}

#[test]
fn unknown_flags_are_warned_about_once() {
    let settings = Settings::script("exit 0").flag("--restartEnvoy=false").flag("--from-the-future=1");
    let mut agent = Agent::start(settings);
    assert_eq!(agent.wait(), Some(0));
    assert_eq!(agent.log().matches("--from-the-future").count(), 1, "{}", agent.log());
}

#[test]
fn a_mistake_in_the_settings_ends_the_agent() {
    let settings = Settings::binary("/bin/true").proxy("statusPort: [");
    let mut agent = Agent::start(settings);
    assert_eq!(agent.wait(), Some(1));
    assert!(agent.log().contains("PROXY_CONFIG:"), "{}", agent.log());
}

/// Has the agent write a bootstrap, with a script in Envoy's place that ends at once.
fn write_bootstrap(vary: impl FnOnce(Settings) -> Settings) -> Agent {
    let settings = Settings::script("exit 0").flag("--restartEnvoy=false").with_status_port();
    let mut agent = Agent::start(vary(settings));
    assert_eq!(agent.wait(), Some(0), "{}", agent.log());
    agent
}

#[test]
fn a_real_envoy_accepts_the_bootstrap() {
    let Some(envoy) = support::real_envoy() else { return };
    let doors = |settings: Settings| {
        settings.variable("ENVOY_STATUS_PORT", "15021").variable("ENVOY_PROMETHEUS_PORT", "15090")
    };
    let variants: [fn(Settings) -> Settings; 4] = [
        |settings| settings,
        |settings| settings.proxy("statsCompression: false\nconcurrency: 1\nruntimeValues: {a: 'true'}"),
        |settings| {
            settings
                .flag("--log_as_json")
                .flag("--outlierLogPath=/dev/stdout")
                .annotation("proxy.istio.io/config", "discoveryAddress: localhost:15010")
                .annotation("sidecar.istio.io/extraStatTags", "colour")
                .annotation("sidecar.istio.io/statsFlushInterval", "5s")
                .annotation("sidecar.istio.io/statsEvictionInterval", "10s")
                .annotation("sidecar.istio.io/statsHistogramBuckets", r#"{"istiocustom": [1, 5.5]}"#)
                .annotation("sidecar.istio.io/statsInclusionRegexps", "a.*b")
        },
        |settings| {
            settings
                .variable("ISTIO_DUAL_STACK", "true")
                .variable("INSTANCE_IP", "fd00::1")
                .variable("ISTIO_DELTA_XDS", "false")
                .variable("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true")
                .variable("ISTIO_METAJSON_LABELS", r#"{"istio-locality": "eu.west.a"}"#)
        },
    ];
    for variant in variants {
        let agent = write_bootstrap(|settings| variant(doors(settings)));
        let validation = std::process::Command::new(&envoy)
            .args(["--mode", "validate", "--disable-hot-restart", "-c"])
            .arg(agent.settings.file("envoy-rev.json"))
            .output()
            .unwrap();
        assert!(validation.status.success(), "{}", String::from_utf8_lossy(&validation.stderr));
    }
}

#[test]
fn a_real_envoy_becomes_ready() {
    let Some(envoy) = support::real_envoy() else { return };
    let (door, scrapes) = (support::free_port(), support::free_port());
    let with_doors = |settings: Settings| {
        settings
            .variable("ENVOY_STATUS_PORT", &door.to_string())
            .variable("ENVOY_PROMETHEUS_PORT", &scrapes.to_string())
            .annotation("sidecar.istio.io/statsFlushInterval", "100ms")
    };
    let writer = write_bootstrap(with_doors);
    // Files in the server's place, with nothing in them: that is a configuration too.
    let text = std::fs::read_to_string(writer.settings.file("envoy-rev.json")).unwrap();
    let mut bootstrap: serde_json::Value = serde_json::from_str(&text).unwrap();
    let resources = bootstrap["dynamic_resources"].as_object_mut().unwrap();
    resources.remove("ads_config");
    for field in ["cds_config", "lds_config"] {
        let path = writer.settings.file(field);
        std::fs::write(&path, r#"{"resources": []}"#).unwrap();
        resources[field] =
            serde_json::json!({ "path_config_source": { "path": path }, "resource_api_version": "V3" });
    }
    let own = writer.settings.file("own.json");
    std::fs::write(&own, bootstrap.to_string()).unwrap();

    let settings = writer
        .settings
        .again(&envoy)
        .proxy(&format!("customConfigFile: {}\nconcurrency: 1", own.display()))
        .variable("ENVOY_PROMETHEUS_PORT", &scrapes.to_string());
    let agent = Agent::start(settings);
    let ready =
        || support::ask(door, "GET", "/healthz/ready").filter(|answer| answer.starts_with("HTTP/1.1 200"));
    support::until("readiness", ready);
    let statistics = support::ask(scrapes, "GET", "/stats/prometheus").unwrap();
    assert!(statistics.contains("envoy_server_state"), "{statistics}");
    let merged = agent.ask_status("GET", "/stats/prometheus").unwrap();
    for name in ["envoy_server_state", "istio_agent_startup_duration_seconds", "istio_agent_scrapes_total 1"]
    {
        assert!(merged.contains(name), "{name} is missing: {merged}");
    }
    assert!(!merged.contains("scrape_failures_total{"), "{merged}");
    let first = agent.envoy_other_than(0);
    support::kill("KILL", first);
    agent.envoy_other_than(first);
    support::until("readiness of the second Envoy", ready);
}

#[test]
fn a_real_envoy_is_kept_running_and_ended() {
    let Some(envoy) = support::real_envoy() else { return };
    let settings = Settings::binary(&envoy).proxy("concurrency: 1").with_status_port();
    let mut agent = Agent::start(settings);
    let alive = |agent: &Agent| {
        let answer = agent.settings.ask_admin("GET", "/server_info");
        answer.filter(|answer| answer.contains("\"state\""))
    };
    let first = agent.envoy_other_than(0);
    support::until("Envoy's administrator", || alive(&agent));
    // There is no server, so nothing can be ready, and the reason says so.
    let answer = support::until("the status server", || agent.ask_status("GET", "/healthz/ready"));
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("no configuration"), "{answer}");
    support::kill("KILL", first);
    let second = agent.envoy_other_than(first);
    support::until("the second Envoy's administrator", || alive(&agent));
    support::kill("TERM", agent.pid());
    assert_eq!(agent.wait(), Some(0), "{}", agent.log());
    assert!(!support::is_alive(second));
    assert!(!agent.log().contains("cannot ask Envoy to drain"), "{}", agent.log());
}
