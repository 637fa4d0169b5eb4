//! Three real servers of ZooKeeper, of which the leader fails.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use pilot_model::Object;
use pilot_source::RegistryOptions;
use pilot_source::contract::{Follower, Mirror, Server, free_port, wanted};
use pilot_source_zookeeper::{Create, Layout, ZkError, ZooKeeper, ZooKeeperOptions, ZooKeeperSource};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::mpsc;

struct Member {
    server: Server,
    address: SocketAddr,
}

fn start(folder: &Path, lib: &Path, number: usize, [port, members]: [&str; 2]) -> Server {
    let data = folder.join(format!("data-{number}"));
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("myid"), number.to_string()).unwrap();
    let file = folder.join(format!("{number}.cfg"));
    let lines = format!(
        "tickTime=200\ninitLimit=50\nsyncLimit=10\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={port}\n\
         admin.enableServer=false\n4lw.commands.whitelist=srvr\n{members}",
        data.display()
    );
    std::fs::write(&file, lines).unwrap();
    let classes = format!("{}/*", lib.display());
    Server::start(move || {
        let mut java = Command::new("java");
        java.args(["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", &classes]);
        java.arg("org.apache.zookeeper.server.quorum.QuorumPeerMain").arg(&file);
        java
    })
}

async fn members(folder: &Path) -> Option<Vec<Member>> {
    let lib = wanted("PILOT_ZOOKEEPER")?;
    let lines = |number: usize| format!("server.{number}=127.0.0.1:{}:{}\n", free_port(), free_port());
    let all: String = (1..=3).map(lines).collect();
    let mut members = Vec::new();
    for number in 1..=3 {
        let port = free_port();
        let server = start(folder, &lib, number, [&port.to_string(), &all]);
        members.push(Member { server, address: SocketAddr::from(([127, 0, 0, 1], port)) });
    }
    for member in &mut members {
        let address = member.address;
        member.server.until("it has a session", || async move { session(address).await.is_ok() }).await;
    }
    Some(members)
}

async fn session(address: SocketAddr) -> Result<ZooKeeper, ZkError> {
    let (sender, _) = mpsc::unbounded_channel();
    ZooKeeper::connect(&address.to_string(), Duration::from_secs(5), sender).await
}

async fn is_leader(address: SocketAddr) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"srvr").await?;
        let mut said = String::new();
        stream.read_to_string(&mut said).await?;
        Ok::<_, std::io::Error>(said)
    };
    asked.await.is_ok_and(|said| said.contains("Mode: leader"))
}

/// Does something on the first server that does it, again and again: whoever has just lost a leader does nothing.
async fn on_one(members: &[Member], what: impl AsyncFn(&ZooKeeper) -> Result<(), ZkError>) {
    for _ in 0..600 {
        for member in members {
            let Ok(zk) = session(member.address).await else { continue };
            match what(&zk).await {
                Ok(()) | Err(ZkError::NodeExists | ZkError::NoNode) => return,
                Err(_) => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    unreachable!("nobody does it");
}

/// The ports of all that come and go.
fn told(mirror: &Mirror) -> Vec<u16> {
    let ports = |object: &Object| match object {
        Object::ServiceEntry(entry) => {
            entry.spec.endpoints.iter().flat_map(|endpoint| endpoint.ports.values().copied()).collect()
        }
        _ => Vec::new(),
    };
    let mut all: Vec<u16> = mirror.objects().flat_map(ports).filter(|port| *port < 9000).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ensemble_that_loses_its_leader_never_goes_back() {
    let scratch: TempDir = tempfile::tempdir().unwrap();
    let Some(mut members) = members(scratch.path()).await else { return };
    let node = |number: u16| format!("/services/shop/10.0.0.1:{}", 8000 + number);
    // Of an answer that lacks everybody who was there nothing would be believed.
    let others = ["/services/cart", "/services/cart/10.0.0.2:9000", "/services/cart/10.0.0.3:9000"];
    for path in ["/services", "/services/shop", &node(0)].into_iter().chain(others) {
        on_one(&members, async |zk| zk.create(path, b"", Create::Persistent).await).await;
    }
    let mut follower = Follower::start(Box::new(ZooKeeperSource::new(ZooKeeperOptions {
        registry: RegistryOptions::new("zookeeper", "service.zookeeper"),
        servers: members.iter().map(|member| member.address.to_string()).collect(),
        root: "/services".to_owned(),
        layout: Layout::Plain,
        credentials: None,
        session: Duration::from_secs(2),
        again: Duration::from_secs(60),
    })));
    follower.until("the first instance", |mirror| told(mirror) == [8000]).await;
    let newest = Cell::new(8000);
    let mut away = None;
    for number in 1..=12 {
        match number {
            4 => {
                for (at, member) in members.iter_mut().enumerate() {
                    if is_leader(member.address).await {
                        member.server.stop().await;
                        away = Some(at);
                    }
                }
                assert!(away.is_some(), "somebody leads");
            }
            9 => members[away.unwrap()].server.start_again(),
            _ => {}
        }
        // One comes, and the one before it goes.
        on_one(&members, async |zk| zk.create(&node(number), b"", Create::Persistent).await).await;
        on_one(&members, async |zk| zk.delete(&node(number - 1)).await).await;
        let is_there = |mirror: &Mirror| {
            let now = told(mirror);
            let last = now.last().copied().unwrap_or_default();
            assert!(last >= newest.get(), "{now:?} was told after {}", newest.get());
            newest.set(last);
            now == [8000 + number]
        };
        follower.until("the next instance", is_there).await;
    }
    follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    follower.stop().await;
}
