//! A connection that tests can cut, or keep from carrying anything.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Leads connections on to a server, until they are cut.
pub struct Cut {
    pub address: SocketAddr,
    state: watch::Sender<State>,
    connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// How often it was cut.
    times: u32,
    /// Is nobody let through?
    is_closed: bool,
    /// Is nothing carried, though nobody is told?
    is_frozen: bool,
}

impl Cut {
    pub async fn before(server: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (state, follow) = watch::channel(State::default());
        let connections = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&connections);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let now = *follow.borrow();
                if now.is_closed {
                    continue;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                open.spawn(lead(near, server, follow.clone(), now.times));
                while open.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, state, connections, _tasks: tasks })
    }

    /// How many connections were led on so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Ends all connections; new ones are possible.
    pub fn snap(&self) {
        self.state.send_modify(|state| state.times += 1);
    }

    /// Ends all connections, and lets nobody through.
    pub fn close(&self) {
        self.state.send_modify(|state| {
            state.times += 1;
            state.is_closed = true;
        });
    }

    /// Carries nothing any more, as if packets were lost on the way: connections stay open, and new ones can be made.
    pub fn freeze(&self) {
        self.state.send_modify(|state| state.is_frozen = true);
    }

    /// All is as it should be.
    pub fn open(&self) {
        self.state.send_modify(|state| (state.is_closed, state.is_frozen) = (false, false));
    }
}

async fn lead(mut near: TcpStream, server: SocketAddr, state: watch::Receiver<State>, times: u32) {
    let Ok(mut far) = TcpStream::connect(server).await else { return };
    let mut cut = state.clone();
    let ((near_in, near_out), (far_in, far_out)) = (near.split(), far.split());
    let both = async { tokio::join!(carry(near_in, far_out, state.clone()), carry(far_in, near_out, state)) };
    tokio::select! {
        // Whoever ends it has ended it.
        _ended = both => {}
        _cut = cut.wait_for(|state| state.times != times) => {}
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<State>,
) -> std::io::Result<()> {
    let mut piece = [0; 16 << 10];
    loop {
        let size = from.read(&mut piece).await?;
        // Without anybody who could say so, nothing is frozen.
        let _is_gone = state.wait_for(|state| !state.is_frozen).await.is_err();
        if size == 0 {
            return to.shutdown().await;
        }
        to.write_all(&piece[..size]).await?;
    }
}
