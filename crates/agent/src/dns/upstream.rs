//! Asks the servers of resolv.conf, in the way that the client asked, and remembers answers for as long as they say.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::wire::{Query, answers, lifetimes};

/// Few clients have so many names in use at once; of the rest some are asked for again.
const REMEMBERED: usize = 1_024;
/// A name may move: nobody's word counts longer.
const LONGEST: u32 = 300;
const LARGEST: usize = 65_535;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// One after the other, beginning with any.
    InTurn,
    /// All together, and the first answer counts.
    AtOnce,
}

pub(super) struct Upstream {
    servers: Vec<SocketAddr>,
    order: Order,
    timeout: Duration,
    remembered: Mutex<BTreeMap<(Transport, Vec<u8>), Remembered>>,
}

struct Remembered {
    packet: Vec<u8>,
    ttls: Vec<usize>,
    since: Instant,
    seconds: u32,
}

impl Upstream {
    pub(super) fn new(servers: Vec<SocketAddr>, order: Order, timeout: Duration) -> Self {
        Self { servers, order, timeout, remembered: Mutex::default() }
    }

    /// None if nobody answers.
    pub(super) async fn ask(&self, query: &Query<'_>, transport: Transport) -> Option<Vec<u8>> {
        // All that shapes an answer but the number of the question.
        let key = (transport, query.packet[2..].to_vec());
        if let Some(mut packet) = self.recall(&key) {
            packet[..2].copy_from_slice(&query.packet[..2]);
            return Some(packet);
        }
        let packet = match self.order {
            Order::InTurn => self.in_turn(query, transport).await?,
            Order::AtOnce => self.at_once(query, transport).await?,
        };
        self.remember(key, query, &packet);
        Some(packet)
    }

    async fn in_turn(&self, query: &Query<'_>, transport: Transport) -> Option<Vec<u8>> {
        let count = self.servers.len();
        let first = usize::try_from(chance() % (count.max(1) as u64)).unwrap_or(0);
        for at in 0..count {
            let server = self.servers[(first + at) % count];
            if let Some(packet) = exchange(server, query, transport, self.timeout).await {
                return Some(packet);
            }
        }
        None
    }

    async fn at_once(&self, query: &Query<'_>, transport: Transport) -> Option<Vec<u8>> {
        let mut asked = JoinSet::new();
        for server in self.servers.iter().copied() {
            let (packet, limit) = (query.packet.to_vec(), self.timeout);
            asked.spawn(async move {
                let query = Query::read(&packet).ok()?;
                exchange(server, &query, transport, limit).await
            });
        }
        while let Some(done) = asked.join_next().await {
            if let Ok(Some(packet)) = done {
                return Some(packet);
            }
        }
        None
    }

    fn recall(&self, key: &(Transport, Vec<u8>)) -> Option<Vec<u8>> {
        let mut all = self.remembered.lock().expect("nobody panics while holding it");
        let Remembered { packet, ttls, since, seconds } = all.get(key)?;
        let age = u32::try_from(since.elapsed().as_secs()).unwrap_or(u32::MAX);
        if age >= *seconds {
            all.remove(key);
            return None;
        }
        let mut packet = packet.clone();
        for at in ttls {
            if let Some(ttl) = packet.get_mut(*at..at + 4) {
                let left = u32::from_be_bytes([ttl[0], ttl[1], ttl[2], ttl[3]]).saturating_sub(age);
                ttl.copy_from_slice(&left.to_be_bytes());
            }
        }
        Some(packet)
    }

    fn remember(&self, key: (Transport, Vec<u8>), query: &Query<'_>, packet: &[u8]) {
        let Some((ttls, seconds)) = lifetimes(packet, query).filter(|(_, seconds)| *seconds > 0) else {
            return;
        };
        let mut all = self.remembered.lock().expect("nobody panics while holding it");
        if all.len() >= REMEMBERED {
            all.retain(|_, kept| kept.since.elapsed().as_secs() < u64::from(kept.seconds));
        }
        while all.len() >= REMEMBERED {
            all.pop_first();
        }
        let seconds = seconds.min(LONGEST);
        all.insert(key, Remembered { packet: packet.to_vec(), ttls, since: Instant::now(), seconds });
    }
}

async fn exchange(
    server: SocketAddr,
    query: &Query<'_>,
    transport: Transport,
    limit: Duration,
) -> Option<Vec<u8>> {
    let exchanged = async {
        match transport {
            Transport::Udp => over_udp(server, query).await,
            Transport::Tcp => over_tcp(server, query).await,
        }
    };
    let told = match timeout(limit, exchanged).await {
        Ok(Ok(packet)) => return Some(packet),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {}ms", limit.as_millis()),
    };
    tracing::info!(%server, reason = told, "upstream DNS server failed");
    None
}

/// From a port and with a number that nobody can foresee, so that nobody can answer in the server's place.
async fn over_udp(server: SocketAddr, query: &Query<'_>) -> io::Result<Vec<u8>> {
    let any =
        if server.is_ipv4() { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    let (packet, id) = renumbered(query.packet);
    socket.send(&packet).await?;
    let mut buffer = vec![0; LARGEST];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if answers(&buffer[..length], query, id) {
            buffer.truncate(length);
            buffer.shrink_to_fit();
            buffer[..2].copy_from_slice(&query.packet[..2]);
            return Ok(buffer);
        }
    }
}

async fn over_tcp(server: SocketAddr, query: &Query<'_>) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let (packet, id) = renumbered(query.packet);
    write_framed(&mut stream, &packet).await?;
    let mut answer = read_framed(&mut stream).await?;
    if !answers(&answer, query, id) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is to another question"));
    }
    answer[..2].copy_from_slice(&query.packet[..2]);
    Ok(answer)
}

pub(super) async fn read_framed(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut packet = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut packet).await?;
    Ok(packet)
}

pub(super) async fn write_framed(stream: &mut TcpStream, packet: &[u8]) -> io::Result<()> {
    let length = u16::try_from(packet.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), packet].concat()).await
}

fn renumbered(packet: &[u8]) -> (Vec<u8>, [u8; 2]) {
    let bytes = chance().to_be_bytes();
    let mut packet = packet.to_vec();
    packet[..2].copy_from_slice(&bytes[..2]);
    (packet, [bytes[0], bytes[1]])
}

/// The standard library's only source of chance is the seed of its maps.
pub(super) fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}
