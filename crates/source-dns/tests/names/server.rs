//! A name server that a test controls, written from the public description of DNS.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

/// What the server knows: targets with their ports and addresses, by name.
pub(crate) type Zone = BTreeMap<String, Vec<(u16, Ipv4Addr)>>;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Mood {
    Good,
    Silent,
    Slow(Duration),
    Failing,
    Nonsense,
}

pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    pub(crate) zone: Arc<Mutex<(Zone, Mood)>>,
    pub(crate) serving: JoinSet<()>,
}

impl NameServer {
    pub(crate) async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    pub(crate) async fn start_at(address: SocketAddr) -> Self {
        let zone = Arc::new(Mutex::new((Zone::new(), Mood::Good)));
        let mut server = Self { address, zone, serving: JoinSet::new() };
        server.serve().await;
        server
    }

    pub(crate) async fn serve(&mut self) {
        let udp = UdpSocket::bind(self.address).await.unwrap();
        self.address = udp.local_addr().unwrap();
        let tcp = TcpListener::bind(self.address).await.unwrap();
        let known = Arc::clone(&self.zone);
        self.serving.spawn(async move {
            let mut bytes = [0; 4096];
            while let Ok((read, from)) = udp.recv_from(&mut bytes).await {
                let mood = known.lock().1;
                if let Mood::Slow(delay) = mood {
                    tokio::time::sleep(delay).await;
                }
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
        let known = Arc::clone(&self.zone);
        self.serving.spawn(async move {
            while let Ok((mut stream, _)) = tcp.accept().await {
                // Who hangs up has heard enough.
                let _heard = over_tcp(&mut stream, &known).await;
            }
        });
    }

    pub(crate) fn set(&self, name: &str, targets: &[(u16, Ipv4Addr)]) {
        self.zone.lock().0.insert(name.to_owned(), targets.to_vec());
    }

    pub(crate) fn feel(&self, mood: Mood) {
        self.zone.lock().1 = mood;
    }
}

async fn over_tcp(stream: &mut TcpStream, known: &Mutex<(Zone, Mood)>) -> std::io::Result<()> {
    let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut bytes).await?;
    let answer = answered(&bytes, &known.lock()).unwrap_or_default();
    stream.write_u16(u16::try_from(answer.len()).unwrap()).await?;
    stream.write_all(&answer).await
}

/// An answer with SRV records, and their addresses beside them.
fn answered(question: &[u8], (zone, mood): &(Zone, Mood)) -> Option<Vec<u8>> {
    let mut answer = question[..12].to_vec();
    answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 0, 0, 0, 0, 0, 0, 0]);
    match mood {
        Mood::Good | Mood::Slow(_) => {}
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
    let name = name.join(".");
    if name.starts_with("_silent.") {
        return None;
    }
    if name.starts_with("_broken.") {
        answer[3] |= 2;
        return Some(answer);
    }
    let Some(targets) = zone.get(&name) else {
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
