//! Servers of an ensemble that know less than others, which a real one does not do when a test wants it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pilot_model::Object;
use pilot_source::RegistryOptions;
use pilot_source::contract::{Follower, Mirror, Relay, Road};
use pilot_source_zookeeper::{Layout, ZooKeeperOptions, ZooKeeperSource};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The last change that a server knows, and the instances of its only service.
#[derive(Clone, Default)]
struct World(Arc<Mutex<(i64, Vec<&'static str>)>>);

impl World {
    fn set(&self, change: i64, instances: &[&'static str]) {
        *self.0.lock().unwrap() = (change, instances.to_vec());
    }

    fn get(&self) -> (i64, Vec<&'static str>) {
        self.0.lock().unwrap().clone()
    }
}

/// Bytes with their length before them, as everything is written here.
fn buffer(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}

fn texts(values: &[&str]) -> Vec<u8> {
    let count = u32::try_from(values.len()).unwrap().to_be_bytes().to_vec();
    values.iter().fold(count, |all, value| [all, buffer(value.as_bytes())].concat())
}

async fn frame(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(stream.read_i32().await?).unwrap()];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn answer(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(&buffer(bytes)).await
}

fn long(bytes: &[u8]) -> i64 {
    i64::from_be_bytes(bytes[..8].try_into().unwrap())
}

fn int(bytes: &[u8]) -> i32 {
    i32::from_be_bytes(bytes[..4].try_into().unwrap())
}

/// As much of the protocol as one who only looks needs.
async fn serve(mut stream: TcpStream, world: World) -> std::io::Result<()> {
    const LIST: i32 = 8;
    const READ: i32 = 4;
    const PING: i32 = 11;
    let hello = frame(&mut stream).await?;
    if long(&hello[4..]) > world.get().0 {
        // Whoever has seen more is sent away.
        return Ok(());
    }
    let timeout = 2000_i32.to_be_bytes();
    answer(&mut stream, &[&[0; 4], &timeout[..], &[0; 8], &buffer(&[0; 16])[..]].concat()).await?;
    loop {
        let asked = frame(&mut stream).await?;
        let (number, op, body) = (int(&asked), int(&asked[4..]), &asked[8..]);
        let (change, instances) = world.get();
        let path =
            if op == PING { "" } else { std::str::from_utf8(&body[4..4 + int(body) as usize]).unwrap() };
        let said = match (op, path) {
            (LIST, "/services") => texts(&["shop"]),
            (LIST, _) => texts(&instances),
            (READ, _) => buffer(b""),
            _ => Vec::new(),
        };
        let number = if op == PING { -2 } else { number };
        answer(&mut stream, &[&number.to_be_bytes()[..], &change.to_be_bytes(), &[0; 4], &said].concat())
            .await?;
    }
}

async fn start(world: &World) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (mut serving, world) = (JoinSet::new(), world.clone());
    serving.spawn(async move {
        let mut sessions = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let world = world.clone();
            sessions.spawn(async move {
                // Who hangs up has heard enough.
                let _heard = serve(stream, world).await;
            });
        }
    });
    (address, serving)
}

fn told(mirror: &Mirror) -> Vec<String> {
    let addresses = |object: &Object| match object {
        Object::ServiceEntry(entry) => {
            entry.spec.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect::<Vec<_>>()
        }
        _ => Vec::new(),
    };
    mirror.objects().flat_map(addresses).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_lags_is_not_believed_until_it_has_caught_up() {
    let (first, second) = (World::default(), World::default());
    first.set(10, &["10.0.0.2:80", "10.0.0.3:80"]);
    second.set(5, &["10.0.0.1:80", "10.0.0.2:80"]);
    let (leader, _leading) = start(&first).await;
    let (follower_at, _following) = start(&second).await;
    let (relay, other) = (Relay::to(leader).await, Relay::to(follower_at).await);
    let mut follower = Follower::start(Box::new(ZooKeeperSource::new(ZooKeeperOptions {
        registry: RegistryOptions::new("zookeeper", "service.zookeeper"),
        servers: vec![relay.address.to_string(), other.address.to_string()],
        root: "/services".to_owned(),
        layout: Layout::Plain,
        credentials: None,
        session: Duration::from_secs(2),
        again: Duration::from_secs(60),
    })));
    follower.until("what the leader knows", |mirror| told(mirror) == ["10.0.0.2", "10.0.0.3"]).await;
    relay.set(Road::Cut);
    let is_refused = |mirror: &Mirror| {
        mirror
            .issues
            .values()
            .flatten()
            .any(|issue| issue.to_string().contains("knows less than what was told"))
    };
    follower.until("that the other one knows less", is_refused).await;
    assert_eq!(told(&follower.mirror), ["10.0.0.2", "10.0.0.3"], "nobody comes back from the past");
    second.set(12, &["10.0.0.3:80", "10.0.0.4:80"]);
    follower.until("what it has caught up with", |mirror| told(mirror) == ["10.0.0.3", "10.0.0.4"]).await;
    assert!(follower.mirror.issues.is_empty(), "{:?}", follower.mirror.issues);
    // Both have begun anew: what they do not have is kept for a while.
    first.set(1, &["10.0.0.3:80"]);
    second.set(1, &["10.0.0.3:80"]);
    relay.set(Road::Open);
    other.set(Road::Cut);
    follower.until("a loss", |mirror| !mirror.issues.is_empty()).await;
    other.set(Road::Open);
    let is_held = |mirror: &Mirror| {
        mirror
            .issues
            .values()
            .flatten()
            .any(|issue| issue.to_string().contains("1 of 2 instances are missing"))
    };
    follower.until("that one is missing", is_held).await;
    assert_eq!(told(&follower.mirror), ["10.0.0.3", "10.0.0.4"]);
    follower.stop().await;
}
