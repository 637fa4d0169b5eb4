//! A name server, for `make demo-dns`: it is told on its standard input what stands under which name.
//!
//! `nameserver PORT`; lines are `record NAME ADDRESS:PORT` and `gone NAME ADDRESS:PORT`.
#![allow(clippy::unwrap_used, reason = "a demo that cannot go on ends")]

#[path = "../tests/names/server.rs"]
#[allow(dead_code, reason = "a demo asks for less than a test")]
mod server;

use std::net::{SocketAddr, SocketAddrV4};

use server::NameServer;

// Lines are waited for on a thread of their own, which is this one.
#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap();
    let server = NameServer::start_at(SocketAddr::from(([127, 0, 0, 1], port))).await;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let [what, name, at] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            eprintln!("{line:?} has not three words");
            continue;
        };
        let at: SocketAddrV4 = at.parse().unwrap();
        let at = (at.port(), *at.ip());
        let mut zone = server.zone.lock();
        let targets = zone.0.entry(name.to_owned()).or_default();
        targets.retain(|target| *target != at);
        if what == "record" {
            targets.push(at);
        }
    }
}
