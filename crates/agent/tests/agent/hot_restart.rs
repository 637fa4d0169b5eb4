//! One real Envoy takes over from another.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::net::TcpListener;
use std::path::Path;

use crate::load::Load;
use crate::support::{self, Agent, Settings};
use crate::world::{World, write};

/// How often, in the short form and in `make soak`.
#[allow(clippy::disallowed_methods, reason = "long runs say how long by the environment")]
fn rounds(otherwise: u32) -> u32 {
    std::env::var("PILOT_HOT_RESTARTS").ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn start() -> Option<World> {
    World::start(|settings| settings.flag("--hotRestart"))
}

#[test]
fn no_request_fails_while_envoys_take_over_from_each_other() {
    let Some(mut world) = start() else { return };
    let load = Load::start(world.port);
    let rounds = rounds(3);
    for round in 1..=rounds {
        support::kill("HUP", world.agent.pid());
        world.wait_for_words("hot restart done", round as usize);
        // The next one comes when the old one is gone.
        world.wait_for_words("Envoy ended", round as usize);
    }
    let shared = world.shared_memory();
    let result = load.end();
    println!("{rounds} hot restarts: {} requests sent, {} failed", result.sent, result.failures.len());
    assert!(result.failures.is_empty(), "{:?}\n{}", result.failures, world.agent.log());
    assert!(result.sent > u64::from(rounds) * 20, "{} requests", result.sent);
    support::kill("TERM", world.agent.pid());
    assert_eq!(world.agent.wait(), Some(0), "{}", world.agent.log());
    assert!(!Path::new(&shared).exists() && !world.agent.settings.file("envoy-base-id").exists());
}

#[test]
fn a_changed_file_is_taken_up_and_a_broken_one_is_not() {
    let Some(world) = start() else { return };
    let first = world.agent.envoy_other_than(0);
    world.rewrite(&[world.port], "2");
    world.wait_for("2");
    world.wait_for_words("hot restart done", 1);
    support::until("the end of the first Envoy", || (!support::is_alive(first)).then_some(()));
    write(&world.agent.settings.file("own.yaml"), "static_resources: {listeners: [{name: 7");
    world.wait_for_words("no hot restart, the running Envoy goes on as it is", 1);
    assert!(world.agent.log().contains("Envoy does not accept it"), "{}", world.agent.log());
    assert_eq!(world.version().as_deref(), Some("2"));
    assert_eq!(world.count("Envoy started"), 2, "{}", world.agent.log());
}

#[test]
fn an_envoy_that_does_not_come_up_leaves_the_old_one_serving() {
    let Some(world) = start() else { return };
    // Nothing is wrong with this file until somebody wants to listen.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let load = Load::start(world.port);
    world.rewrite(&[world.port, taken.local_addr().unwrap().port()], "2");
    world.wait_for_words("hot restart failed: the new Envoy did not come up", 1);
    assert_eq!(world.version().as_deref(), Some("1"));
    // And it can be tried again.
    world.rewrite(&[world.port], "3");
    world.wait_for("3");
    let result = load.end();
    assert!(result.failures.is_empty(), "{:?}\n{}", result.failures, world.agent.log());
}

#[test]
fn both_envoys_end_with_the_agent() {
    for signal in ["KILL", "TERM"] {
        let Some(mut world) = start() else { return };
        let first = world.agent.envoy_other_than(0);
        support::kill("HUP", world.agent.pid());
        world.wait_for_words("hot restart done", 1);
        let second = world.agent.envoy_other_than(first);
        assert!(support::is_alive(first) && support::is_alive(second), "{}", world.agent.log());
        support::kill(signal, world.agent.pid());
        let status = world.agent.wait();
        assert_eq!(status, (signal == "TERM").then_some(0), "{}", world.agent.log());
        for envoy in [first, second] {
            support::until("the end of both", || (!support::is_alive(envoy)).then_some(()));
        }
        if signal == "KILL" {
            // Whoever comes next clears up.
            let shared = world.shared_memory();
            assert!(Path::new(&shared).exists());
            let mut next = world.agent.again();
            next.envoy_other_than(second);
            support::kill("TERM", next.pid());
            assert_eq!(next.wait(), Some(0), "{}", next.log());
            assert!(!Path::new(&shared).exists());
        }
    }
}

#[test]
fn faults_do_not_wear_the_agent_out() {
    let Some(world) = World::start(|settings| settings.flag("--hotRestart").flag("--restartEnvoyLimit=0"))
    else {
        return;
    };
    let mut envoy = world.agent.envoy_other_than(0);
    let mut before = None;
    for round in 1..=rounds(2) {
        let version = format!("r{round}");
        support::kill("KILL", envoy);
        envoy = world.agent.envoy_other_than(envoy);
        support::until("an answer", || world.version());
        write(&world.agent.settings.file("own.yaml"), "[");
        world.wait_for_words("no hot restart, the running Envoy goes on", round as usize);
        world.rewrite(&[world.port], &version);
        world.wait_for(&version);
        let old = envoy;
        envoy = world.agent.envoy_other_than(envoy);
        support::until("the end of the old one", || (!support::is_alive(old)).then_some(()));
        let now = *before.get_or_insert(world.descriptors());
        support::until("no more open files than before", || (world.descriptors() <= now).then_some(()));
    }
    assert!(Path::new(&world.shared_memory()).exists());
}

#[test]
fn without_the_switch_a_hangup_is_what_it_is_elsewhere() {
    let mut agent = Agent::start(Settings::script("exec sleep 1000"));
    let envoy = agent.envoy_other_than(0);
    support::kill("HUP", agent.pid());
    assert_eq!(agent.wait(), None);
    support::until("the end of Envoy", || (!support::is_alive(envoy)).then_some(()));
}
