//! A stand-in for Marathon, for `make demo-marathon`: it is told on its standard input what runs.
//!
//! `marathon PORT`; lines are `task APP ID ADDRESS VERSION LABEL=VALUE…` and `stop APP`.
#![allow(clippy::unwrap_used, reason = "a demo that cannot go on ends")]

#[path = "../tests/contract/standin.rs"]
#[allow(dead_code, reason = "a demo asks for less than a test")]
mod standin;

use std::net::SocketAddr;

use pilot_source::contract::{Condition, Registered};
use standin::Standin;

// Lines are waited for on a thread of their own, which is this one.
#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap();
    let standin = Standin::start_at(SocketAddr::from(([127, 0, 0, 1], port))).await;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["task", app, id, address, version, ref labels @ ..] => {
                let at: SocketAddr = address.parse().unwrap();
                let instance = Registered::new(app, id, at.port()).with("version", version);
                let instance = instance.with("protocol", "http").with("istio-service-port", "80");
                let labels = labels.iter().filter_map(|label| label.split_once('='));
                let instance = labels.fold(instance, |instance, (key, value)| instance.with(key, value));
                let instance = Registered { address: at.ip().to_string(), ..instance };
                standin.put(app, &instance, Condition::Well);
            }
            ["stop", app] => standin.remove(app),
            _ => eprintln!("{line:?} is neither task nor stop"),
        }
    }
}
