//! What cannot work is told with what to do, with the right status, and leaves nothing half done.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{self, Agent, Settings};

fn fails(settings: Settings, words: &[&str]) {
    let mut agent = Agent::start(settings);
    assert_eq!(agent.wait(), Some(1), "{words:?}: {}", agent.log());
    for word in words {
        assert!(agent.log().contains(word), "{word:?} is missing: {}", agent.log());
    }
    assert!(!agent.log().contains("panicked"), "{}", agent.log());
    for name in names(agent.settings.file(".").to_str().unwrap()) {
        assert!(!name.ends_with(".tmp"), "{name} was left behind");
    }
}

fn names(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

fn idle() -> Settings {
    Settings::script("exec sleep 1000")
}

#[test]
fn places_that_cannot_be_written() {
    let settings = idle();
    let file = settings.file("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("below");
    fails(
        settings.proxy(&format!("configPath: {}", below.display())),
        &["cannot create", "configPath in PROXY_CONFIG"],
    );
    let settings = idle();
    let file = settings.file("file");
    std::fs::write(&file, "").unwrap();
    let below = file.join("grpc.json");
    fails(
        settings.variable("GRPC_XDS_BOOTSTRAP", below.to_str().unwrap()),
        &["GRPC_XDS_BOOTSTRAP can name another file", "cannot create"],
    );
    let settings = idle();
    std::fs::create_dir(settings.file("envoy-rev.json")).unwrap();
    fails(settings, &["cannot write", "envoy-rev.json", "must be writable"]);
}

#[test]
fn a_disk_that_is_full() {
    let settings = idle();
    let small = settings.file("small");
    std::fs::create_dir(&small).unwrap();
    let settings = settings.proxy(&format!("configPath: {}", small.display()));
    // A file system of two pages, in a view of the machine that only this agent has.
    let script = format!(
        "mount -t tmpfs -o size=8k none '{0}' || exit 77; echo old >'{0}/envoy-rev.json'; \"$@\"; status=$?; ls '{0}'; cat '{0}/envoy-rev.json'; exit $status",
        small.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    let mut agent = Agent::start_in(settings, command);
    let status = agent.wait();
    if status == Some(77) || agent.log().contains("unshare failed") {
        support::missing("file systems can only be mounted by root");
        return;
    }
    let log = agent.log();
    assert_eq!(status, Some(1), "{log}");
    assert!(
        log.contains("cannot write") && log.contains("its disk not full") && log.contains("No space"),
        "{log}"
    );
    assert!(log.ends_with("envoy-rev.json\nold\n"), "{log}");
}

#[test]
fn an_envoy_that_cannot_be_started() {
    let settings = idle();
    let envoy = settings.file("envoy");
    std::fs::set_permissions(&envoy, std::fs::Permissions::from_mode(0o644)).unwrap();
    fails(settings.flag("--restartEnvoy=false"), &["cannot start Envoy", "Permission denied", "binaryPath"]);
    let settings = Settings::binary("/").flag("--restartEnvoy=false");
    fails(settings, &["cannot start Envoy", "Permission denied", "binaryPath"]);
}

#[test]
fn ports_that_are_taken() {
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let settings = idle().with_status_port_at(port);
    fails(settings, &[&format!("cannot listen on status port {port}"), "statusPort in PROXY_CONFIG"]);
    let Some(envoy) = support::real_envoy() else { return };
    let settings = || Settings::binary(&envoy).flag("--restartEnvoy=false").with_status_port();
    let words = |setting: &str| [format!("port {port}, which Envoy needs"), setting.to_owned()];
    let number = port.to_string();
    for (settings, setting) in [
        (settings().proxy(&format!("proxyAdminPort: {port}")), "proxyAdminPort in PROXY_CONFIG"),
        (settings().variable("ENVOY_STATUS_PORT", &number), "ENVOY_STATUS_PORT can name another"),
        (settings().variable("ENVOY_PROMETHEUS_PORT", &number), "ENVOY_PROMETHEUS_PORT can name another"),
    ] {
        let words = words(setting);
        fails(settings, &[&words[0], &words[1]]);
    }
}

#[test]
fn settings_that_make_no_sense() {
    fails(idle().proxy("concurrency: many"), &["PROXY_CONFIG: concurrency", "is not a number"]);
    fails(idle().proxy("tracing: {zipkin: {address: nowhere}}"), &["PROXY_CONFIG: ", "tracing"]);
    let settings = idle();
    let mesh = settings.file("mesh.yaml");
    std::fs::write(&mesh, "defaultConfig:\n  drainDuration: soon\n").unwrap();
    let settings = settings.flag(&format!("--meshConfig={}", mesh.display()));
    fails(settings, &["mesh.yaml: defaultConfig: drainDuration", "is not a duration"]);
    let settings = idle();
    std::fs::write(settings.file("mesh.yaml"), "a: [").unwrap();
    let flag = format!("--meshConfig={}", settings.file("mesh.yaml").display());
    fails(settings.flag(&flag), &["mesh.yaml:"]);
    fails(idle().annotation("proxy.istio.io/config", "{"), &["annotation proxy.istio.io/config"]);
    fails(
        idle().variable("ISTIO_METAJSON_LABELS", "{"),
        &["ISTIO_METAJSON_LABELS does not hold a JSON object"],
    );
    let settings = idle();
    std::fs::create_dir_all(settings.file("etc/istio/pod")).unwrap();
    std::fs::write(settings.file("etc/istio/pod/labels"), "app=\"unfinished\nb\n").unwrap();
    fails(settings, &["etc/istio/pod/labels"]);
}

#[test]
fn templates_that_do_not_work() {
    let with = |name: &str, text: &str| {
        let settings = idle();
        let file = settings.file(name);
        std::fs::write(&file, text).unwrap();
        settings.flag(&format!("--templateFile={}", file.display()))
    };
    fails(
        with("t.json", "{\n  {{ if .x }}\n}"),
        &["t.json:2:3: {{if}} without {{end}}", "--templateFile names"],
    );
    fails(with("t.json", "{{ .nodeID.name }}"), &["t.json:1:4: can't evaluate field name in type string"]);
    fails(with("t.json", "{{ nothing }}"), &["t.json:1:4: function \"nothing\" not defined"]);
    fails(with("t.json", "{ \"a\": [ {{ .nodeID }}"), &["t.json gives no YAML", "--templateFile names"]);
    fails(
        idle().variable("ISTIO_BOOTSTRAP", "/none.json"),
        &["cannot read template /none.json, which ISTIO_BOOTSTRAP names"],
    );
    fails(
        idle().variable("ISTIO_BOOTSTRAP_OVERRIDE", "/none.yaml"),
        &["cannot read /none.yaml, which ISTIO_BOOTSTRAP_OVERRIDE names"],
    );
    fails(
        idle().proxy("customConfigFile: /none.yaml"),
        &["cannot read /none.yaml, which customConfigFile names"],
    );
}
