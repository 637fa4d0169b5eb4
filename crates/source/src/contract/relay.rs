//! A road to a server that a test can block, slow down or poison.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What happens on the way.
#[derive(Clone, PartialEq, Debug)]
pub enum Road {
    Open,
    /// Connections are broken off, and new ones too.
    Cut,
    /// Connections stand and nothing comes through.
    Stalled,
    /// Connections that stand are forgotten on the way: nothing comes through, and nobody learns of it. New ones pass, and
    /// those on which something else was asked last.
    Forgotten(&'static str),
    /// Everything that comes from the server takes so much longer.
    Slow(Duration),
    /// Whoever asks is told this, whatever it was.
    Poisoned(Arc<[u8]>),
}

/// Listens at an address of its own and leads to a server.
pub struct Relay {
    pub address: SocketAddr,
    road: watch::Sender<Road>,
    _running: JoinSet<()>,
}

impl Relay {
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("this machine has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let (road, watching) = watch::channel(Road::Open);
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(carry(client, server, watching.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, road, _running: running }
    }

    /// Connections that stand are broken off when the road changes, except where they are stalled or forgotten.
    pub fn set(&self, road: Road) {
        self.road.send_replace(road);
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, mut road: watch::Receiver<Road>) {
    let now = road.borrow_and_update().clone();
    match now.clone() {
        Road::Cut => {}
        Road::Stalled => {
            // Until the road is another, whoever waits here waits.
            let _changed = road.changed().await;
        }
        Road::Poisoned(answer) => {
            let mut asked = [0; 1024];
            if client.read(&mut asked).await.is_ok_and(|read| read > 0) {
                // Who hangs up has heard enough.
                let _heard = client.write_all(&answer).await;
            }
        }
        Road::Open | Road::Forgotten(_) | Road::Slow(_) => {
            let Ok(mut upstream) = TcpStream::connect(server).await else { return };
            let delay = if let Road::Slow(delay) = now { delay } else { Duration::ZERO };
            let asked = Asked::default();
            tokio::select! {
                _ended = through(&mut client, &mut upstream, (delay, &asked)) => {}
                () = turned(&mut road, &now, &asked) => {}
            }
            let then = road.borrow().clone();
            match then {
                Road::Stalled => {
                    let _changed = road.changed().await;
                }
                Road::Forgotten(_) => {
                    // Whatever is said goes nowhere, until who says it hangs up.
                    let _said = tokio::io::copy(&mut client, &mut tokio::io::sink()).await;
                }
                _ => {}
            }
        }
    }
}

/// The first line of what was asked last, where that has lines.
#[derive(Default)]
struct Asked(Mutex<String>);

impl Asked {
    fn line(&self) -> MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn through(
    client: &mut TcpStream,
    upstream: &mut TcpStream,
    (delay, asked): (Duration, &Asked),
) -> std::io::Result<()> {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = upstream.split();
    let answers = async {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = from_server.read(&mut bytes).await?;
            tokio::time::sleep(delay).await;
            if read == 0 {
                return to_client.shutdown().await;
            }
            to_client.write_all(&bytes[..read]).await?;
        }
    };
    let questions = async {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let read = from_client.read(&mut bytes).await?;
            if read == 0 {
                return to_server.shutdown().await;
            }
            let first = bytes[..read].split(|byte| *byte == b'\n').next().unwrap_or_default();
            if first.ends_with(b" HTTP/1.1\r") {
                *asked.line() = String::from_utf8_lossy(first).into_owned();
            }
            to_server.write_all(&bytes[..read]).await?;
        }
    };
    tokio::try_join!(answers, questions).map(drop)
}

/// The road is another, as far as that is felt here: whoever is not forgotten notices nothing.
async fn turned(road: &mut watch::Receiver<Road>, now: &Road, asked: &Asked) {
    let is_felt = |then: &Road| match (now, then) {
        _ if now == then => false,
        (_, Road::Forgotten(what)) => asked.line().contains(what),
        (Road::Forgotten(_), Road::Open) => false,
        _ => true,
    };
    let _gone = road.wait_for(is_felt).await;
}
