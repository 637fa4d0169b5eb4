//! Connections over TLS: who is let through the handshake, and what is known of him then.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pilot_ca::SpiffeId;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::door::Door;
use crate::gather::Gather;
use crate::prompt::Prompt;

/// Who connects and says nothing does not keep a place.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// So many may be at it at once; the rest waits in the kernel. Each needs some tens of kilobytes meanwhile.
const HANDSHAKES: usize = 2048;
/// Enough to tell that there is somebody, whether he speaks HTTP/2 or less.
const SAID: usize = 1;
/// Connections that wait to be served.
pub(crate) const WAITING: usize = 64;

/// The newest certificate, and whom to trust.
pub(crate) type TlsConfig = watch::Receiver<Arc<ServerConfig>>;

/// What a handshake told about the other side. A connection without TLS has none of this.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: Option<SocketAddr>,
    /// Of a certificate that was verified; nothing if none was shown.
    pub(crate) identities: Option<Arc<[SpiffeId]>>,
}

pub(crate) struct Connection {
    stream: Prompt<TlsStream<Gather<TcpStream>>>,
    peer: Peer,
}

/// Takes connections until nobody wants them any more. What fails, fails alone.
pub(crate) async fn accept(
    listener: TcpListener,
    config: TlsConfig,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    let mut door = Door::of_streams(listener);
    let mut handshakes = JoinSet::new();
    loop {
        let may_accept = handshakes.len() < HANDSHAKES;
        tokio::select! {
            () = accepted.closed() => return,
            Some(_) = handshakes.join_next() => {}
            (stream, address) = door.next(), if may_accept => {
                let config = Arc::clone(&config.borrow());
                let accepted = accepted.clone();
                handshakes.spawn(async move {
                    if let Some(connection) = handshake(stream, address, config).await {
                        let _gone = accepted.send(Ok(connection)).await;
                    }
                });
            }
        }
    }
}

async fn handshake(stream: TcpStream, address: SocketAddr, config: Arc<ServerConfig>) -> Option<Connection> {
    // A client that is gone already shows it in the handshake.
    let _gone = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(Gather::waiting(stream))).await {
        Ok(Ok(stream)) => Some(Connection::new(stream)),
        Ok(Err(error)) => {
            tracing::debug!(target: "ads", "TLS handshake with {address} failed: {error}");
            None
        }
        Err(_) => {
            tracing::debug!(target: "ads", "TLS handshake with {address} took too long");
            None
        }
    }
}

impl Connection {
    fn new(mut stream: TlsStream<Gather<TcpStream>>) -> Self {
        stream.get_mut().0.start();
        let (tcp, session) = stream.get_ref();
        let leaf = session.peer_certificates().and_then(|chain| chain.first());
        let identities = leaf.map(|leaf| pilot_ca::identities(leaf).into());
        let peer = Peer { address: tcp.stream().peer_addr().ok(), identities };
        Self { stream: Prompt::new(stream, SAID), peer }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
