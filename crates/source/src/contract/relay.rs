//! A road to a server that a test can block, slow down or poison.

use std::net::SocketAddr;
use std::sync::Arc;

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

    /// Connections that stand are broken off when the road changes, except by a stall.
    pub fn set(&self, road: Road) {
        self.road.send_replace(road);
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, mut road: watch::Receiver<Road>) {
    let now = road.borrow_and_update().clone();
    match now {
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
        Road::Open => {
            let Ok(mut upstream) = TcpStream::connect(server).await else { return };
            tokio::select! {
                _ended = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                () = turned(&mut road) => {}
            }
            if *road.borrow() == Road::Stalled {
                let _changed = road.changed().await;
            }
        }
    }
}

/// The road is no longer open.
async fn turned(road: &mut watch::Receiver<Road>) {
    let _gone = road.wait_for(|road| *road != Road::Open).await;
}
