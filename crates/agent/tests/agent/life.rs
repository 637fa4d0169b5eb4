//! How a real Envoy is brought to its end, and what there is without one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::net::TcpStream;
use std::path::Path;

use crate::support::{self, Agent, Settings};
use crate::world::World;

#[test]
fn open_connections_are_waited_for_if_asked_to() {
    let vary = |settings: Settings| {
        settings
            .variable("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true")
            .variable("MINIMUM_DRAIN_DURATION", "10ms")
            .proxy("terminationDrainDuration: 1000s")
    };
    let Some(mut world) = World::start(vary) else { return };
    let open = TcpStream::connect(("127.0.0.1", world.port)).unwrap();
    support::kill("TERM", world.agent.pid());
    world.wait_for_words("count=Connections(1)", 2);
    drop(open);
    assert_eq!(world.agent.wait(), Some(0), "{}", world.agent.log());
    assert!(!world.agent.log().contains("cannot ask Envoy to drain"), "{}", world.agent.log());
}

#[test]
fn a_real_envoy_that_was_drained_stays_until_it_is_told_to_end() {
    let vary = |settings: Settings| settings.proxy("terminationDrainDuration: 1000s").with_status_port();
    let Some(mut world) = World::start(vary) else { return };
    let envoy = world.agent.envoy_other_than(0);
    let answer = support::until("the status server", || world.agent.ask_status("POST", "/drain"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // Its listeners drain for a second, and it would end then.
    let uptime = || {
        let stats = world.agent.settings.ask_admin("GET", "/stats?filter=server.uptime")?;
        stats.lines().find_map(|line| line.strip_prefix("server.uptime: ")?.parse::<u64>().ok())
    };
    support::until("an Envoy that stays", || uptime().filter(|seconds| *seconds >= 5));
    assert!(support::is_alive(envoy));
    support::kill("TERM", world.agent.pid());
    assert_eq!(world.agent.wait(), Some(0), "{}", world.agent.log());
    assert!(!world.agent.log().contains("Envoy does not drain"), "{}", world.agent.log());
}

#[test]
fn an_envoy_that_does_not_listen_is_killed() {
    let settings = Settings::script("trap '' TERM\nwhile :; do sleep 0.1; done");
    let mut agent = Agent::start(settings);
    let envoy = agent.envoy_other_than(0);
    support::kill("TERM", agent.pid());
    assert_eq!(agent.wait(), Some(0));
    assert!(agent.log().contains("killing Envoy") && !support::is_alive(envoy), "{}", agent.log());
}

#[test]
fn an_envoy_that_ends_again_and_again_is_given_up() {
    let mut agent = Agent::start(Settings::script("exit 9").flag("--restartEnvoyLimit=3"));
    assert_eq!(agent.wait(), Some(9));
    assert_eq!(agent.log().matches("Envoy started").count(), 4, "{}", agent.log());
}

#[test]
fn without_envoy_the_agent_is_there_for_clients_of_grpc() {
    let settings = Settings::binary("/no/such/envoy")
        .variable("DISABLE_ENVOY", "true")
        .variable("OUTPUT_CERTS", "/var/lib/istio/data")
        .with_status_port();
    let mut agent = Agent::start(settings);
    let ready = support::until("the status server", || agent.ask_status("GET", "/healthz/ready"));
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    let file = agent.settings.file("etc/istio/proxy/grpc-bootstrap.json");
    let text = std::fs::read_to_string(file).unwrap();
    let bootstrap: serde_json::Value = serde_json::from_str(&text).unwrap();
    let socket = agent.settings.file("XDS").canonicalize().unwrap_or(agent.settings.file("XDS"));
    assert_eq!(bootstrap["xds_servers"][0]["server_uri"], format!("unix://{}", socket.display()));
    assert_eq!(bootstrap["node"]["metadata"]["GENERATOR"], "grpc");
    assert!(!agent.settings.file("envoy-rev.json").exists());
    support::kill("TERM", agent.pid());
    assert_eq!(agent.wait(), Some(0), "{}", agent.log());
    assert!(!agent.log().contains("Envoy started"), "{}", agent.log());
}

#[test]
fn the_grpc_bootstrap_is_part_of_being_ready() {
    let settings = Settings::binary("/no/such/envoy").variable("DISABLE_ENVOY", "true").with_status_port();
    let elsewhere = settings.file("deep/er/grpc.json");
    let settings = settings.variable("GRPC_XDS_BOOTSTRAP", elsewhere.to_str().unwrap());
    let agent = Agent::start(settings);
    support::until("the status server", || agent.ask_status("GET", "/debug/ndsz"));
    assert!(elsewhere.exists() && !Path::new("etc").exists());
    std::fs::remove_file(&elsewhere).unwrap();
    let answer = agent.ask_status("GET", "/healthz/ready").unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("no gRPC bootstrap"), "{answer}");
}
