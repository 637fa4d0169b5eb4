//! Names on a name server that a test controls, written from the public description of DNS.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pilot_model::Object;
use pilot_source::RegistryOptions;
use pilot_source::contract::{Follower, Mirror};
use pilot_source_dns::{DnsOptions, DnsSource};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

/// What the server knows: targets with their ports and addresses, by name.
type Zone = BTreeMap<String, Vec<(u16, Ipv4Addr)>>;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Mood {
    Good,
    Silent,
    Failing,
    Nonsense,
}

struct NameServer {
    address: SocketAddr,
    zone: Arc<Mutex<(Zone, Mood)>>,
    _serving: JoinSet<()>,
}

impl NameServer {
    async fn start() -> Self {
        let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = udp.local_addr().unwrap();
        let tcp = TcpListener::bind(address).await.unwrap();
        let zone = Arc::new(Mutex::new((Zone::new(), Mood::Good)));
        let mut serving = JoinSet::new();
        let known = Arc::clone(&zone);
        serving.spawn(async move {
            let mut bytes = [0; 4096];
            while let Ok((read, from)) = udp.recv_from(&mut bytes).await {
                let Some(mut answer) = answered(&bytes[..read], &known.lock()) else { continue };
                // What is too large is cut off, and says so.
                if answer.len() > 512 {
                    answer.truncate(12);
                    answer[2] |= 2;
                    answer[4..12].fill(0);
                }
                udp.send_to(&answer, from).await.unwrap();
            }
        });
        let known = Arc::clone(&zone);
        serving.spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                let mut bytes = vec![0; usize::from(stream.read_u16().await.unwrap())];
                stream.read_exact(&mut bytes).await.unwrap();
                let answer = answered(&bytes, &known.lock()).unwrap();
                stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        Self { address, zone, _serving: serving }
    }

    fn set(&self, name: &str, targets: &[(u16, Ipv4Addr)]) {
        self.zone.lock().0.insert(name.to_owned(), targets.to_vec());
    }

    fn feel(&self, mood: Mood) {
        self.zone.lock().1 = mood;
    }
}

/// An answer with SRV records, and their addresses beside them.
fn answered(question: &[u8], (zone, mood): &(Zone, Mood)) -> Option<Vec<u8>> {
    let mut answer = question[..12].to_vec();
    answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 0, 0, 0, 0, 0, 0, 0]);
    match mood {
        Mood::Good => {}
        Mood::Silent => return None,
        Mood::Failing => {
            answer[3] |= 2;
            return Some(answer);
        }
        Mood::Nonsense => return Some([&question[..2], &[0xff; 40]].concat()),
    }
    let (mut name, mut at) = (Vec::new(), 12);
    while question[at] != 0 {
        let length = usize::from(question[at]);
        name.push(String::from_utf8_lossy(&question[at + 1..at + 1 + length]).into_owned());
        at += 1 + length;
    }
    let Some(targets) = zone.get(&name.join(".")) else {
        answer[3] |= 3;
        return Some(answer);
    };
    let count = u16::try_from(targets.len()).unwrap();
    answer[6..8].copy_from_slice(&count.to_be_bytes());
    answer[10..12].copy_from_slice(&count.to_be_bytes());
    let target = |i: usize| [&[6][..], format!("h{i:05}").as_bytes(), &[7], b"example", &[0]].concat();
    for (i, (port, _)) in targets.iter().enumerate() {
        let target = target(i);
        answer.extend_from_slice(&question[12..=at]);
        answer.extend_from_slice(&[0, 33, 0, 1, 0, 0, 0, 0]);
        answer.extend_from_slice(&u16::try_from(target.len() + 6).unwrap().to_be_bytes());
        answer.extend_from_slice(&[0, 0, 0, 5]);
        answer.extend_from_slice(&port.to_be_bytes());
        answer.extend_from_slice(&target);
    }
    for (i, (_, address)) in targets.iter().enumerate() {
        answer.extend_from_slice(&target(i));
        answer.extend_from_slice(&[0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend_from_slice(&address.octets());
    }
    Some(answer)
}

fn told(mirror: &Mirror) -> Vec<String> {
    let each = |object: &Object| match object {
        Object::ServiceEntry(config) => format!("{} {}", config.spec.hosts[0], config.spec.endpoints.len()),
        other => panic!("{other:?}"),
    };
    mirror.objects().map(each).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_followed_and_a_loss_empties_nothing() {
    const NAME: &str = "_http._tcp.shop.example";
    let server = NameServer::start().await;
    let address = |i: u8| Ipv4Addr::new(10, 0, 0, i);
    server.set(NAME, &[(8080, address(1))]);
    let mut follower = Follower::start(Box::new(DnsSource::new(DnsOptions {
        registry: RegistryOptions::new("dns", ""),
        server: server.address,
        names: vec![NAME.to_owned(), "_grpc._tcp.cart.example".to_owned()],
        patience: Duration::from_millis(500),
        shortest: Duration::from_millis(50),
    })));
    follower.until("a name", |mirror| told(mirror) == ["shop.example 1"]).await;
    server.set("_grpc._tcp.cart.example", &[(9000, address(9))]);
    follower.until("another name", |mirror| told(mirror) == ["cart.example 1", "shop.example 1"]).await;
    follower.mirror.rows = 0;
    server.set(NAME, &(1..=60).map(|i| (8080, address(i))).collect::<Vec<_>>());
    follower.until("more than fits into a datagram", |mirror| told(mirror)[1] == "shop.example 60").await;
    assert_eq!(follower.mirror.rows, 1, "one change is one row");
    for mood in [Mood::Silent, Mood::Failing, Mood::Nonsense] {
        server.feel(mood);
        follower.until("an issue", |mirror| !mirror.issues.is_empty()).await;
        assert_eq!(told(&follower.mirror).len(), 2, "{mood:?} empties nothing");
        server.feel(Mood::Good);
        follower.until("that all is well", |mirror| mirror.issues.is_empty()).await;
    }
    server.zone.lock().0.remove(NAME);
    follower.until("that a name is gone", |mirror| told(mirror) == ["cart.example 1"]).await;
    follower.stop().await;
}
