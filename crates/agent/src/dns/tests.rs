use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::upstream::{read_framed, write_framed};
use super::wire::{TYPE_A, TYPE_AAAA, to_wire};
use super::{Dns, DnsError, DnsSettings, Order, Place, WithoutTable, listen};
use crate::Env;
use crate::metrics::Metrics;
use crate::name_table::{NameInfo, NameTable};

const SERVFAIL: u8 = 2;

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    packet.extend(to_wire(name).unwrap());
    packet.extend(kind.to_be_bytes());
    packet.extend([0, 1]);
    packet
}

fn addresses(answer: &[u8]) -> Vec<Ipv4Addr> {
    // Each record of a name that stood before: twelve bytes and an address.
    let count = usize::from(answer[7]);
    let mut found: Vec<Ipv4Addr> = answer
        .rchunks(16)
        .take(count)
        .map(|record| Ipv4Addr::new(record[12], record[13], record[14], record[15]))
        .collect();
    found.sort();
    found
}

/// A server for all other names: answers with one address, for a minute, and counts.
struct Stand {
    address: SocketAddr,
    asked: Arc<AtomicU32>,
}

fn reply(query: &[u8], records: u8) -> Vec<u8> {
    let mut answer = query.to_vec();
    (answer[2], answer[7]) = (0x81, records);
    for _ in 0..records {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
    }
    answer
}

impl Stand {
    async fn new(tasks: &mut JoinSet<()>, records: u8) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        let asked = Arc::new(AtomicU32::new(0));
        let (over_udp, over_tcp) = (Arc::clone(&asked), Arc::clone(&asked));
        tasks.spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (length, peer) = udp.recv_from(&mut buffer).await.unwrap();
                over_udp.fetch_add(1, Ordering::SeqCst);
                // Somebody guesses, before the server answers.
                let mut wrong = reply(&buffer[..length], 1);
                wrong[0] ^= 1;
                udp.send_to(&wrong, peer).await.unwrap();
                udp.send_to(&reply(&buffer[..length], records), peer).await.unwrap();
            }
        });
        tasks.spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                over_tcp.fetch_add(1, Ordering::SeqCst);
                let query = read_framed(&mut stream).await.unwrap();
                write_framed(&mut stream, &reply(&query, records)).await.unwrap();
            }
        });
        Self { address, asked }
    }
}

fn settings(servers: &[SocketAddr]) -> DnsSettings {
    DnsSettings {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        place: Place::new("shop", "shop.svc.cluster.local", &["shop.svc.cluster.local".to_owned()]),
        servers: servers.to_vec(),
        order: Order::InTurn,
        timeout: Duration::from_secs(60),
        without_table: WithoutTable::Fail,
    }
}

fn table(ips: &[String]) -> Bytes {
    let info = NameInfo { ips: ips.to_vec(), ..NameInfo::default() };
    NameTable { table: [("big.example".to_owned(), info)].into() }.encode_to_vec().into()
}

/// An agent's server, and the sender of its tables.
async fn start(tasks: &mut JoinSet<()>, settings: DnsSettings) -> (SocketAddr, watch::Sender<Option<Bytes>>) {
    let (sender, receiver) = watch::channel(None);
    let dns = Dns::bind(settings).await.unwrap();
    let address = dns.address();
    tasks.spawn(dns.serve(receiver, Arc::new(Metrics::new().unwrap())));
    (address, sender)
}

async fn over_udp(server: SocketAddr, packet: &[u8]) -> Vec<u8> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    socket.send(packet).await.unwrap();
    let mut buffer = vec![0; 65_535];
    let length = socket.recv(&mut buffer).await.unwrap();
    buffer.truncate(length);
    assert_eq!(buffer[..2], packet[..2]);
    buffer
}

async fn over_tcp(server: SocketAddr, packet: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server).await.unwrap();
    write_framed(&mut stream, packet).await.unwrap();
    read_framed(&mut stream).await.unwrap()
}

async fn until_table(server: SocketAddr) {
    while over_udp(server, &question("big.example", TYPE_A)).await[3] == SERVFAIL {}
}

#[tokio::test]
async fn names_of_the_table_are_answered_whole_or_cut() {
    let mut tasks = JoinSet::new();
    let (server, names) = start(&mut tasks, settings(&[])).await;
    assert_eq!(over_udp(server, &question("big.example", TYPE_A)).await[3], SERVFAIL);
    let ips: Vec<String> = (1..=100).map(|at| format!("10.0.0.{at}")).collect();
    names.send_replace(Some(table(&ips)));
    until_table(server).await;
    let whole = over_tcp(server, &question("BIG.example", TYPE_A)).await;
    assert_eq!((whole[2], whole[3]), (0x85, 0));
    assert_eq!(addresses(&whole), (1..=100).map(|at| Ipv4Addr::new(10, 0, 0, at)).collect::<Vec<_>>());
    let cut = over_udp(server, &question("big.example", TYPE_A)).await;
    assert!(cut.len() <= 512 && cut[2] & 2 != 0 && addresses(&cut).len() > 20);
    // An alias, and behind it what it stands for.
    let alias = over_tcp(server, &question("big.example.shop.svc.cluster.local", TYPE_A)).await;
    assert_eq!(alias[7], 101);
    assert!(addresses(&alias).contains(&Ipv4Addr::new(10, 0, 0, 100)));
    let target = to_wire("big.example").unwrap();
    assert!(alias.windows(target.len()).any(|window| window == target));
    let other_family = over_udp(server, &question("big.example", TYPE_AAAA)).await;
    assert_eq!((other_family[3], other_family[7]), (0, 0));
    // A table that cannot be read changes nothing.
    names.send_replace(Some(Bytes::from_static(b"\xff")));
    names.send_replace(Some(table(&["10.9.9.9".to_owned()])));
    while addresses(&over_udp(server, &question("big.example", TYPE_A)).await).len() != 1 {}
}

#[tokio::test]
async fn other_names_are_asked_for_once() {
    let mut tasks = JoinSet::new();
    let stand = Stand::new(&mut tasks, 1).await;
    let (server, names) = start(&mut tasks, settings(&[stand.address])).await;
    names.send_replace(Some(table(&["10.0.0.1".to_owned()])));
    until_table(server).await;
    for _ in 0..3 {
        let answer = over_udp(server, &question("else.example", TYPE_A)).await;
        assert_eq!(addresses(&answer), [Ipv4Addr::new(192, 0, 2, 1)]);
    }
    assert_eq!(stand.asked.load(Ordering::SeqCst), 1);
    let answer = over_tcp(server, &question("else.example", TYPE_A)).await;
    assert_eq!(addresses(&answer), [Ipv4Addr::new(192, 0, 2, 1)]);
    assert_eq!(stand.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn long_answers_of_others_lead_to_tcp() {
    let mut tasks = JoinSet::new();
    let stand = Stand::new(&mut tasks, 60).await;
    let asked = DnsSettings { without_table: WithoutTable::AskUpstream, ..settings(&[stand.address]) };
    let (server, _names) = start(&mut tasks, asked).await;
    let cut = over_udp(server, &question("else.example", TYPE_A)).await;
    assert!(cut.len() <= 512 && cut[2] & 2 != 0 && cut[7] == 0);
    assert_eq!(over_tcp(server, &question("else.example", TYPE_A)).await[7], 60);
}

#[tokio::test]
async fn a_silent_server_is_no_obstacle() {
    let mut tasks = JoinSet::new();
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let stand = Stand::new(&mut tasks, 1).await;
    for order in [Order::InTurn, Order::AtOnce] {
        let servers = [silent.local_addr().unwrap(), stand.address];
        let timeout =
            if order == Order::InTurn { Duration::from_millis(100) } else { Duration::from_secs(600) };
        let without_table = WithoutTable::AskUpstream;
        let (server, _names) =
            start(&mut tasks, DnsSettings { order, timeout, without_table, ..settings(&servers) }).await;
        let answer = over_udp(server, &question("else.example", TYPE_A)).await;
        assert_eq!(addresses(&answer), [Ipv4Addr::new(192, 0, 2, 1)], "{order:?}");
    }
}

#[tokio::test]
async fn nonsense_and_nobody_are_failures() {
    let mut tasks = JoinSet::new();
    let asked = DnsSettings { without_table: WithoutTable::AskUpstream, ..settings(&[]) };
    let (server, _names) = start(&mut tasks, asked).await;
    assert_eq!(over_udp(server, &question("else.example", TYPE_A)).await[3], SERVFAIL);
    assert_eq!(over_udp(server, &[7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 99]).await[3], SERVFAIL);
}

#[tokio::test]
async fn a_taken_port_is_told_with_what_to_do() {
    let taken = Dns::bind(settings(&[])).await.unwrap();
    let again = DnsSettings { listen: vec![taken.address()], ..settings(&[]) };
    let error = Dns::bind(again).await.err().unwrap();
    assert!(
        matches!(error, DnsError::Bind { .. }) && error.to_string().contains("DNS_PROXY_ADDR"),
        "{error}"
    );
}

#[test]
fn localhost_is_of_the_families_of_the_servers() {
    let at = |address: &str, servers: &[&str]| {
        let servers: Vec<SocketAddr> = servers.iter().map(|server| server.parse().unwrap()).collect();
        listen(address, &servers).map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    assert_eq!(at("localhost:15053", &["10.0.0.1:53"]).unwrap(), ["127.0.0.1:15053"]);
    assert_eq!(at("localhost:1", &["10.0.0.1:53", "[fd00::1]:53"]).unwrap(), ["127.0.0.1:1", "[::1]:1"]);
    assert_eq!(at("[::1]:1", &["10.0.0.1:53"]).unwrap(), ["[::1]:1"]);
    assert!(at("localhost", &[]).is_err() && at("nowhere:1", &[]).is_err());
    assert!(DnsSettings::read(&Env::default(), "", "").unwrap().is_none());
}
