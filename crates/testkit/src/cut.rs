//! A connection that tests can cut.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Leads connections on to a server, until they are cut.
pub struct Cut {
    pub address: SocketAddr,
    /// How often it was cut, and whether it is now.
    state: watch::Sender<(u32, bool)>,
    _tasks: JoinSet<()>,
}

impl Cut {
    pub async fn before(server: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (state, follow) = watch::channel((0, false));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let mut state = follow.clone();
                let (times, is_cut) = *state.borrow();
                if is_cut {
                    continue;
                }
                connections.spawn(async move {
                    let Ok(mut far) = TcpStream::connect(server).await else { return };
                    tokio::select! {
                        // Whoever ends it has ended it.
                        _ended = copy_bidirectional(&mut near, &mut far) => {}
                        _cut = state.wait_for(|(now, _)| *now != times) => {}
                    }
                });
            }
        });
        Ok(Self { address, state, _tasks: tasks })
    }

    /// Ends all connections; new ones are possible.
    pub fn snap(&self) {
        self.state.send_modify(|(times, _)| *times += 1);
    }

    /// Ends all connections, and lets nobody through.
    pub fn close(&self) {
        self.state.send_modify(|(times, is_cut)| {
            *times += 1;
            *is_cut = true;
        });
    }

    pub fn open(&self) {
        self.state.send_modify(|(_, is_cut)| *is_cut = false);
    }
}
