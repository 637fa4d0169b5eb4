//! Name servers that say more than they were asked, or less.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pilot_model::Object;
use pilot_source::RegistryOptions;
use pilot_source::contract::{Follower, Mirror};
use pilot_source_dns::{DnsOptions, DnsSource};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

const A: u16 = 1;
const AAAA: u16 = 28;
const SRV: u16 = 33;

const SERVICE: &str = "_http._tcp.shop.example";

struct Question {
    name: String,
    kind: u16,
    /// Is there something in it that old servers do not know?
    is_extended: bool,
}

/// Records in wire form: what was asked for, who knows it, and what else there is.
#[derive(Default)]
struct Said {
    code: u8,
    sections: [Vec<Vec<u8>>; 3],
}

impl Said {
    fn error(code: u8) -> Self {
        Self { code, ..Self::default() }
    }

    fn answers(records: Vec<Vec<u8>>) -> Self {
        Self { sections: [records, Vec::new(), Vec::new()], ..Self::default() }
    }
}

fn wire(name: &str) -> Vec<u8> {
    let parts = name.split('.').filter(|part| !part.is_empty());
    let mut out: Vec<u8> =
        parts.flat_map(|part| [&[u8::try_from(part.len()).unwrap()], part.as_bytes()].concat()).collect();
    out.push(0);
    out
}

fn record(name: &str, kind: u16, data: &[u8]) -> Vec<u8> {
    let mut out = wire(name);
    out.extend(kind.to_be_bytes());
    out.extend([0, 1, 0, 0, 0, 1]);
    out.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
    out.extend(data);
    out
}

fn srv(target: &str) -> Vec<u8> {
    record(SERVICE, SRV, &[&[0, 0, 0, 5, 0x1f, 0x90], &wire(target)[..]].concat())
}

fn a(name: &str, last: u8) -> Vec<u8> {
    record(name, A, &Ipv4Addr::new(10, 0, 0, last).octets())
}

fn read(bytes: &[u8]) -> Question {
    let (mut name, mut at) = (Vec::new(), 12);
    while bytes[at] != 0 {
        let length = usize::from(bytes[at]);
        name.push(String::from_utf8_lossy(&bytes[at + 1..at + 1 + length]).into_owned());
        at += 1 + length;
    }
    let kind = u16::from_be_bytes([bytes[at + 1], bytes[at + 2]]);
    Question { name: name.join("."), kind, is_extended: bytes[11] != 0 }
}

type Answering = Arc<dyn Fn(&Question) -> Said + Send + Sync>;

async fn serve(answering: Answering) -> (Follower, JoinSet<()>) {
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let server: SocketAddr = udp.local_addr().unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut bytes = [0; 4096];
        while let Ok((read_bytes, from)) = udp.recv_from(&mut bytes).await {
            let Said { code, sections } = answering(&read(&bytes[..read_bytes]));
            let mut answer = vec![bytes[0], bytes[1], 0x80, code, 0, 0];
            for section in &sections {
                answer.extend(u16::try_from(section.len()).unwrap().to_be_bytes());
            }
            answer.extend(sections.concat().concat());
            udp.send_to(&answer, from).await.unwrap();
        }
    });
    let source = DnsSource::new(DnsOptions {
        registry: RegistryOptions::new("dns", ""),
        server,
        names: vec![SERVICE.to_owned()],
        patience: Duration::from_secs(5),
        shortest: Duration::from_millis(50),
    });
    (Follower::start(Box::new(source)), serving)
}

/// The addresses of everybody who is there.
fn told(mirror: &Mirror) -> Vec<String> {
    let each = |object: &Object| match object {
        Object::ServiceEntry(config) => {
            config.spec.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    mirror.objects().flat_map(each).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_of_name_servers_are_no_instances() {
    let server = |asked: &Question| match (asked.name.as_str(), asked.kind) {
        (SERVICE, SRV) => Said::answers(vec![srv("a.example")]),
        // Another name's address, who knows it, and where that one is.
        ("a.example", A) => Said {
            sections: [
                vec![record("a.example", 5, &wire("b.example")), a("b.example", 1)],
                vec![record("example", 2, &wire("ns.example"))],
                vec![a("ns.example", 99)],
            ],
            ..Said::default()
        },
        _ => Said { sections: [Vec::new(), Vec::new(), vec![a("ns.example", 99)]], ..Said::default() },
    };
    let (mut follower, _serving) = serve(Arc::new(server)).await;
    follower.until("a service", |mirror| mirror.ready && !told(mirror).is_empty()).await;
    assert_eq!(told(&follower.mirror), ["10.0.0.1"]);
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_said_to_be_nowhere_is_gone() {
    let is_there = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let known = Arc::clone(&is_there);
    let server = move |asked: &Question| match (asked.kind, known.load(std::sync::atomic::Ordering::Relaxed))
    {
        (SRV, true) => Said::answers(vec![srv("a.example")]),
        (SRV, false) => Said::answers(vec![srv("")]),
        (A, _) => Said::answers(vec![a("a.example", 1)]),
        _ => Said::default(),
    };
    let (mut follower, _serving) = serve(Arc::new(server)).await;
    follower.until("a service", |mirror| told(mirror) == ["10.0.0.1"]).await;
    is_there.store(false, std::sync::atomic::Ordering::Relaxed);
    follower.until("that it is nowhere", |mirror| told(mirror).is_empty()).await;
    assert!(follower.mirror.issues.is_empty(), "{:?}", follower.mirror.issues);
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_of_one_kind_do_without_the_other() {
    let server = |asked: &Question| match asked.kind {
        SRV => Said::answers(vec![srv("a.example")]),
        A => Said::answers(vec![a("a.example", 1)]),
        AAAA => Said::error(2),
        _ => Said::default(),
    };
    let (mut follower, _serving) = serve(Arc::new(server)).await;
    follower.until("a service", |mirror| told(mirror) == ["10.0.0.1"]).await;
    assert!(follower.mirror.issues.is_empty(), "{:?}", follower.mirror.issues);
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_knows_no_extensions_is_asked_without_them() {
    let server = |asked: &Question| match asked.kind {
        _ if asked.is_extended => Said::error(1),
        SRV => Said::answers(vec![srv("a.example")]),
        A => Said::answers(vec![a("a.example", 1)]),
        _ => Said::default(),
    };
    let (mut follower, _serving) = serve(Arc::new(server)).await;
    follower.until("a service", |mirror| told(mirror) == ["10.0.0.1"]).await;
    follower.stop().await;
}
