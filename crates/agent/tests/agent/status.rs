//! What the agent answers while it runs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "only tests are here")]

use std::io::{Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use crate::support::{self, Agent, Settings};

/// Answers every request with this, until the test ends.
fn application(answer: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let _read = stream.read(&mut request);
            let _sent = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{answer}",
                answer.len()
            );
        }
    });
    port
}

#[test]
fn applications_are_probed_and_scraped_through_the_agent() {
    let port = application("app_things 7\n");
    let probes = format!(
        r#"{{"/app-health/app/readyz":{{"httpGet":{{"path":"/ready","port":{port}}},"timeoutSeconds":60}}}}"#
    );
    let settings = Settings::script("exec sleep 1000")
        .variable("INSTANCE_IP", "127.0.0.1")
        .variable("ISTIO_KUBE_APP_PROBERS", &probes)
        .variable("ISTIO_PROMETHEUS_ANNOTATIONS", &format!(r#"{{"port":"{port}"}}"#))
        .with_status_port();
    let agent = Agent::start(settings);
    let answer = support::until("the status server", || agent.ask_status("GET", "/app-health/app/readyz"));
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("app_things 7\n"), "{answer}");
    let unknown = agent.ask_status("GET", "/app-health/other/readyz").unwrap();
    assert!(unknown.starts_with("HTTP/1.1 400"), "{unknown}");
    let merged = agent.ask_status("GET", "/metrics").unwrap();
    // There is no Envoy to scrape, and that does not hide the others.
    assert!(merged.contains("istio_agent_scrapes_total 1") && merged.ends_with("app_things 7\n"), "{merged}");
    let names = agent.ask_status("GET", "/debug/ndsz").unwrap();
    assert!(names.starts_with("HTTP/1.1 404"), "{names}");
}

#[test]
fn who_drained_before_ends_at_once() {
    let settings =
        Settings::script("exec sleep 1000").proxy("terminationDrainDuration: 1000s").with_status_port();
    let mut agent = Agent::start(settings);
    let envoy = agent.envoy_other_than(0);
    let answer = support::until("the status server", || agent.ask_status("POST", "/drain"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    support::until("draining", || agent.log().contains("draining Envoy").then_some(()));
    assert!(support::is_alive(envoy));
    support::kill("TERM", agent.pid());
    assert_eq!(agent.wait(), Some(0), "{}", agent.log());
    assert!(!support::is_alive(envoy));
}

#[test]
fn names_are_failures_until_the_server_told_them() {
    let port = support::free_port();
    let settings = Settings::script("exec sleep 1000")
        .variable("ISTIO_META_DNS_CAPTURE", "true")
        .variable("DNS_PROXY_ADDR", &format!("127.0.0.1:{port}"));
    let agent = Agent::start(settings);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let question = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x07example\x00\x00\x01\x00\x01";
    let answer = support::until("an answer", || {
        socket.send_to(question, ("127.0.0.1", port)).ok()?;
        let mut answer = [0; 512];
        socket.recv(&mut answer).ok()?;
        Some(answer)
    });
    assert_eq!(answer[..4], [0x12, 0x34, 0x81, 2]);
    assert!(!agent.log().contains("panicked"), "{}", agent.log());
}

#[test]
fn damaged_probes_end_the_agent() {
    let settings =
        Settings::script("exec sleep 1000").variable("ISTIO_KUBE_APP_PROBERS", "{").with_status_port();
    let mut agent = Agent::start(settings);
    assert_eq!(agent.wait(), Some(1));
    assert!(
        agent.log().contains("ISTIO_KUBE_APP_PROBERS is not what the injector writes"),
        "{}",
        agent.log()
    );
}
