//! Connections in plain text and over TLS, as the client's pool wants them.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use crate::tls::{TlsError, TlsFiles};

/// A server that does not even take a connection for so long is not there.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection that says nothing may have been forgotten on the way, or with the machine at its end. The kernel asks
/// about that, and gives up before the longest question of any adapter is over.
const QUIET: Duration = Duration::from_secs(15);
const BETWEEN: Duration = Duration::from_secs(5);
const GIVE_UP: Duration = Duration::from_secs(30);

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<Stream>>> + Send>>;

#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) tls: Option<TlsConnector>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tls = self.tls.clone().filter(|_| uri.scheme() == Some(&Scheme::HTTPS));
        Box::pin(connect(uri, tls))
    }
}

/// Connects to servers of gRPC, always over TLS.
#[derive(Clone)]
pub struct GrpcConnector {
    tls: TlsConnector,
}

impl GrpcConnector {
    pub fn new(files: &TlsFiles) -> Result<Self, TlsError> {
        Ok(Self { tls: files.connector(&[b"h2"])? })
    }
}

impl Service<Uri> for GrpcConnector {
    type Response = TokioIo<Stream>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(connect(uri, Some(self.tls.clone())))
    }
}

async fn connect(uri: Uri, tls: Option<TlsConnector>) -> io::Result<TokioIo<Stream>> {
    let connected = tokio::time::timeout(PATIENCE, connect_to(&uri, tls)).await;
    connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut))).map(TokioIo::new)
}

async fn connect_to(uri: &Uri, tls: Option<TlsConnector>) -> io::Result<Stream> {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(QUIET).with_interval(BETWEEN))?;
    socket.set_tcp_user_timeout(Some(GIVE_UP))?;
    match tls {
        None => Ok(Stream::Plain(stream)),
        Some(tls) => {
            let name = ServerName::try_from(host).map_err(io::Error::other)?;
            Ok(Stream::Tls(Box::new(tls.connect(name, stream).await?)))
        }
    }
}

/// A connection.
pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
