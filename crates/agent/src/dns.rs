//! Answers the DNS queries of the workload: names of the mesh from the table that the xDS server sent, all others by asking
//! the servers that the workload would have asked.

mod resolv;
mod table;
#[cfg(test)]
mod tests;
mod upstream;
mod wire;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::Env;
use crate::metrics::Metrics;
use crate::name_table::NameTable;
use resolv::Resolv;
pub(crate) use table::Place;
use table::Table;
pub(crate) use upstream::Order;
use upstream::{Transport, Upstream, chance, read_framed, write_framed};
use wire::{Query, Unreadable};

const DEFAULT_ADDRESS: &str = "localhost:15053";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where the servers stand on machines whose own resolv.conf names the agent.
const OTHER_RESOLV_CONF: &str = "/var/lib/istio/resolv.conf";
/// Questions over UDP that wait for others. Whoever asks more asks again.
const WAITING: usize = 512;
const CONNECTIONS: usize = 128;
/// A client that asks nothing more gives its connection up.
const IDLE: Duration = Duration::from_secs(8);
const LARGEST: usize = 65_535;

#[derive(Debug, thiserror::Error)]
pub(crate) enum DnsError {
    #[error("cannot read {file}, which names the DNS servers to ask: {cause}")]
    Resolv { file: &'static str, cause: io::Error },
    #[error("DNS_PROXY_ADDR {0:?} is not an address with a port, such as localhost:15053")]
    Address(String),
    #[error("cannot listen on {address}; another address can be set as DNS_PROXY_ADDR")]
    Bind { address: SocketAddr, source: io::Error },
}

/// How questions are answered.
#[derive(Clone, Debug)]
pub(crate) struct DnsSettings {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) place: Place,
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) order: Order,
    pub(crate) timeout: Duration,
    pub(crate) without_table: WithoutTable,
}

/// What happens to questions before the first table came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WithoutTable {
    Fail,
    /// Where the agent is the machine's only server, it cannot find the xDS server otherwise.
    AskUpstream,
}

impl DnsSettings {
    /// None unless the workload's queries come to the agent. `namespace` and `domain` are the proxy's.
    pub(crate) fn read(env: &Env, namespace: &str, domain: &str) -> Result<Option<Self>, DnsError> {
        let wanted = ["ISTIO_META_DNS_CAPTURE", "ISTIO_META_ENABLE_DNS_SERVER"];
        if !wanted.into_iter().any(|name| env.flag(name) == Some(true)) {
            return Ok(None);
        }
        let mut address = env.get("DNS_PROXY_ADDR").unwrap_or(DEFAULT_ADDRESS);
        let (mut file, mut without_table) = (RESOLV_CONF, WithoutTable::Fail);
        if address.ends_with(":53") {
            if rustix::process::geteuid().is_root() {
                without_table = WithoutTable::AskUpstream;
                if std::path::Path::new(OTHER_RESOLV_CONF).exists() {
                    file = OTHER_RESOLV_CONF;
                }
            } else {
                tracing::error!(address, instead = DEFAULT_ADDRESS, "port 53 needs root");
                address = DEFAULT_ADDRESS;
            }
        }
        let text = std::fs::read_to_string(file).map_err(|cause| DnsError::Resolv { file, cause })?;
        let resolv = Resolv::read(&text);
        Ok(Some(Self {
            listen: listen(address, &resolv.servers)?,
            place: Place::new(namespace, domain, &resolv.search),
            order: match env.flag("DNS_FORWARD_PARALLEL") {
                Some(true) => Order::AtOnce,
                _ => Order::InTurn,
            },
            timeout: env.span("DNS_FORWARD_TIMEOUT").unwrap_or(DEFAULT_TIMEOUT),
            servers: resolv.servers,
            without_table,
        }))
    }
}

/// On localhost, the agent is asked over the families in which the workload would have asked its servers.
fn listen(address: &str, servers: &[SocketAddr]) -> Result<Vec<SocketAddr>, DnsError> {
    let wrong = || DnsError::Address(address.to_owned());
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    let one = |ip: IpAddr| SocketAddr::new(ip, port);
    match host.trim_matches(['[', ']']) {
        "" => Ok(vec![one(Ipv4Addr::UNSPECIFIED.into())]),
        "localhost" => {
            let v4 = servers.is_empty() || servers.iter().any(SocketAddr::is_ipv4);
            let v6 = servers.iter().any(SocketAddr::is_ipv6);
            let v4 = v4.then(|| one(Ipv4Addr::LOCALHOST.into()));
            Ok(v4.into_iter().chain(v6.then(|| one(Ipv6Addr::LOCALHOST.into()))).collect())
        }
        ip => Ok(vec![one(ip.parse().map_err(|_| wrong())?)]),
    }
}

/// Sockets that nobody is answered on yet.
pub(crate) struct Dns {
    settings: DnsSettings,
    sockets: Vec<(UdpSocket, TcpListener)>,
}

impl Dns {
    pub(crate) async fn bind(settings: DnsSettings) -> Result<Self, DnsError> {
        let mut sockets = Vec::new();
        for address in settings.listen.iter().copied() {
            let failed = |source| DnsError::Bind { address, source };
            let tcp = TcpListener::bind(address).await.map_err(failed)?;
            // The same port for both, also where any would do.
            let udp = UdpSocket::bind(tcp.local_addr().map_err(failed)?).await.map_err(failed)?;
            tracing::info!(%address, "answering DNS queries");
            sockets.push((udp, tcp));
        }
        Ok(Self { settings, sockets })
    }

    #[cfg(test)]
    fn address(&self) -> SocketAddr {
        self.sockets[0].0.local_addr().unwrap()
    }

    /// Serves until it is dropped. `names` is the last name table, as it came.
    pub(crate) async fn serve(self, mut names: watch::Receiver<Option<Bytes>>, metrics: Arc<Metrics>) {
        let Self { settings, sockets } = self;
        let own: Vec<SocketAddr> = sockets.iter().filter_map(|(udp, _)| udp.local_addr().ok()).collect();
        // Whoever asks itself never stops.
        let servers = settings.servers.iter().copied().filter(|server| !own.contains(server)).collect();
        let answers = Arc::new(Answers {
            table: RwLock::default(),
            without_table: settings.without_table,
            upstream: Upstream::new(servers, settings.order, settings.timeout),
            metrics,
        });
        let mut tasks = JoinSet::new();
        for (udp, tcp) in sockets {
            tasks.spawn(serve_udp(udp, Arc::clone(&answers)));
            tasks.spawn(serve_tcp(tcp, Arc::clone(&answers)));
        }
        names.mark_changed();
        while names.changed().await.is_ok() {
            let bytes = names.borrow_and_update().clone();
            answers.learn(bytes, &settings.place);
        }
        // Nobody sends tables any more; the last one still holds.
        while tasks.join_next().await.is_some() {}
    }
}

struct Answers {
    table: RwLock<Option<Arc<Table>>>,
    without_table: WithoutTable,
    upstream: Upstream,
    metrics: Arc<Metrics>,
}

/// What is to become of a packet.
enum Fate {
    Answered(Vec<u8>),
    Forward,
    Dropped,
}

impl Answers {
    fn learn(&self, bytes: Option<Bytes>, place: &Place) {
        let Some(bytes) = bytes else { return };
        match NameTable::decode(bytes) {
            Ok(names) => {
                let table = Arc::new(Table::new(&names, place));
                *self.table.write().unwrap_or_else(PoisonError::into_inner) = Some(table);
                tracing::debug!(hosts = names.table.len(), "names changed");
            }
            Err(error) => tracing::error!(%error, "the name table cannot be read, the one before it is kept"),
        }
    }

    fn decide(&self, packet: &[u8], transport: Transport) -> Fate {
        self.metrics.dns_requests.inc();
        let failed = || wire::failure(packet).map_or(Fate::Dropped, Fate::Answered);
        let query = match Query::read(packet) {
            Ok(query) => query,
            Err(Unreadable::Nonsense) => return Fate::Dropped,
            Err(Unreadable::NoQuestion) => return failed(),
        };
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(table) = table else {
            return match self.without_table {
                WithoutTable::Fail => failed(),
                WithoutTable::AskUpstream => Fate::Forward,
            };
        };
        let Some(known) = table.find(&query.name, query.kind) else { return Fate::Forward };
        let largest = match transport {
            Transport::Udp => query.udp_size(),
            Transport::Tcp => LARGEST,
        };
        let turn = usize::try_from(chance() >> 32).unwrap_or(0);
        Fate::Answered(wire::answer(&query, &known, largest, turn))
    }

    async fn forward(&self, packet: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let query = Query::read(packet).ok()?;
        self.metrics.dns_upstream_requests.inc();
        let started = Instant::now();
        let answer = self.upstream.ask(&query, transport).await;
        self.metrics.dns_upstream_duration.observe(started.elapsed().as_secs_f64());
        let Some(mut answer) = answer else {
            self.metrics.dns_upstream_failures.inc();
            return wire::failure(packet);
        };
        if transport == Transport::Udp {
            wire::cut(&mut answer, &query);
        }
        Some(answer)
    }
}

async fn serve_udp(socket: UdpSocket, answers: Arc<Answers>) {
    let socket = Arc::new(socket);
    let room = Arc::new(Semaphore::new(WAITING));
    let mut waiting = JoinSet::new();
    let mut buffer = vec![0; LARGEST];
    loop {
        let (length, peer) = tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                Ok(received) => received,
                // What the kernel reports here is about answers that did not arrive.
                Err(_) => continue,
            },
            Some(_) = waiting.join_next() => continue,
        };
        let packet = &buffer[..length];
        match answers.decide(packet, Transport::Udp) {
            Fate::Dropped => (),
            Fate::Answered(answer) => {
                let _ = socket.send_to(&answer, peer).await;
            }
            Fate::Forward => {
                let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
                let (socket, answers, packet) = (Arc::clone(&socket), Arc::clone(&answers), packet.to_vec());
                waiting.spawn(async move {
                    if let Some(answer) = answers.forward(&packet, Transport::Udp).await {
                        let _ = socket.send_to(&answer, peer).await;
                    }
                    drop(permit);
                });
            }
        }
    }
}

async fn serve_tcp(listener: TcpListener, answers: Arc<Answers>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(converse(stream, Arc::clone(&answers)));
                }
                // Too many open files, say: some will be closed.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            Some(_) = connections.join_next() => (),
        }
    }
}

async fn converse(mut stream: TcpStream, answers: Arc<Answers>) {
    while let Ok(Ok(packet)) = timeout(IDLE, read_framed(&mut stream)).await {
        let answer = match answers.decide(&packet, Transport::Tcp) {
            Fate::Dropped => None,
            Fate::Answered(answer) => Some(answer),
            Fate::Forward => answers.forward(&packet, Transport::Tcp).await,
        };
        let Some(answer) = answer else { return };
        if !matches!(timeout(IDLE, write_framed(&mut stream, &answer)).await, Ok(Ok(()))) {
            return;
        }
    }
}
