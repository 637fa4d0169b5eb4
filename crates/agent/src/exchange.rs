//! One request on a connection of its own to an application, in whatever it speaks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::task::JoinSet;

mod tls;

pub(crate) use tls::Alpn;

/// Probes come often: their sockets should not wait a minute each for packets that got lost.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
/// Each says its cause itself, because most are shown where nobody asks further.
pub(crate) enum ExchangeError {
    /// Nobody listens there, or its certificate cannot even be read.
    #[error("cannot connect to {host}:{port}: {cause}")]
    Connect { host: String, port: u16, cause: io::Error },
    /// The other side does not speak HTTP, or went away.
    #[error("request to {host}:{port} failed: {cause}")]
    Http { host: String, port: u16, cause: hyper::Error },
    /// What is to be sent cannot be.
    #[error("request to {host}:{port} cannot be made: {cause}")]
    Request { host: String, port: u16, cause: http::Error },
    #[error("the answer of {host}:{port} is larger than {limit} bytes")]
    TooLarge { host: String, port: u16, limit: usize },
}

#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The address to speak from, where the kernel should not choose.
    pub(crate) from: Option<IpAddr>,
    pub(crate) protocol: Protocol,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Http1,
    /// Without TLS, as gRPC does.
    Http2,
    Tls(Alpn),
}

/// What is sent, but for where to.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) method: Method,
    pub(crate) path: String,
    /// The host as the application is told it.
    pub(crate) authority: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    /// The rest is not wanted.
    Cut(usize),
    /// More is a mistake.
    Refuse(usize),
}

#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: HeaderMap,
}

impl Target {
    /// From which address a host is asked depends on its family.
    pub(crate) async fn connect(&self) -> Result<TcpStream, ExchangeError> {
        let failed = |cause| ExchangeError::Connect { host: self.host.clone(), port: self.port, cause };
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in addresses(&self.host, self.port).await.map_err(failed)? {
            match connect(address, self.from).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    /// Whoever asks gives it up when it takes too long.
    pub(crate) async fn exchange(&self, sent: Sent, limit: Limit) -> Result<Received, ExchangeError> {
        let stream = self.connect().await?;
        let failed = |cause| ExchangeError::Connect { host: self.host.clone(), port: self.port, cause };
        match self.protocol {
            Protocol::Http1 => self.http1(stream, sent, limit).await,
            Protocol::Http2 => self.http2(stream, "http", sent, limit).await,
            Protocol::Tls(alpn) => {
                let stream = tls::connect(stream, &self.host, alpn).await.map_err(failed)?;
                if tls::is_http2(&stream) {
                    self.http2(stream, "https", sent, limit).await
                } else {
                    self.http1(stream, sent, limit).await
                }
            }
        }
    }

    async fn http1<S>(&self, stream: S, sent: Sent, limit: Limit) -> Result<Received, ExchangeError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|cause| self.failed(cause))?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let mut request = self.request(&sent.path, &sent)?;
        if !sent.headers.contains_key(HOST) {
            let host = sent.authority.parse().map_err(|cause| self.unfit(http::Error::from(cause)))?;
            request.headers_mut().insert(HOST, host);
        }
        let response = sender.send_request(request).await.map_err(|cause| self.failed(cause))?;
        self.receive(response, limit).await
    }

    async fn http2<S>(
        &self,
        stream: S,
        scheme: &str,
        sent: Sent,
        limit: Limit,
    ) -> Result<Received, ExchangeError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|cause| self.failed(cause))?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let mut request = self.request(&format!("{scheme}://{}{}", sent.authority, sent.path), &sent)?;
        // The authority says it already.
        request.headers_mut().remove(HOST);
        let response = sender.send_request(request).await.map_err(|cause| self.failed(cause))?;
        self.receive(response, limit).await
    }

    fn request(&self, uri: &str, sent: &Sent) -> Result<Request<Full<Bytes>>, ExchangeError> {
        let request = Request::builder().method(sent.method.clone()).uri(uri);
        let mut request = request.body(Full::new(sent.body.clone())).map_err(|cause| self.unfit(cause))?;
        *request.headers_mut() = sent.headers.clone();
        Ok(request)
    }

    async fn receive(
        &self,
        response: hyper::Response<Incoming>,
        limit: Limit,
    ) -> Result<Received, ExchangeError> {
        let (parts, mut incoming) = response.into_parts();
        let (mut body, mut trailers) = (Vec::new(), HeaderMap::new());
        let (Limit::Cut(most) | Limit::Refuse(most)) = limit;
        while let Some(frame) = incoming.frame().await {
            match frame.map_err(|cause| self.failed(cause))?.into_data() {
                Ok(data) => body.extend_from_slice(&data),
                Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
            }
            if body.len() > most {
                match limit {
                    Limit::Cut(_) => body.truncate(most),
                    Limit::Refuse(limit) => {
                        return Err(ExchangeError::TooLarge {
                            host: self.host.clone(),
                            port: self.port,
                            limit,
                        });
                    }
                }
                break;
            }
        }
        Ok(Received { status: parts.status, headers: parts.headers, body, trailers })
    }

    fn failed(&self, cause: hyper::Error) -> ExchangeError {
        ExchangeError::Http { host: self.host.clone(), port: self.port, cause }
    }

    fn unfit(&self, cause: http::Error) -> ExchangeError {
        ExchangeError::Request { host: self.host.clone(), port: self.port, cause }
    }
}

/// `localhost` needs no resolver, which a container may not have.
async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if host == "localhost" {
        let both = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        return Ok(both.map(|ip| SocketAddr::new(ip, port)).to_vec());
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    Ok(lookup_host((host, port)).await?.collect())
}

async fn connect(to: SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    SockRef::from(&socket).set_linger(Some(LINGER))?;
    if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4())
        && let Err(error) = socket.bind(SocketAddr::new(from, 0))
    {
        // Only redirection gives a machine ::6; without it there is nothing to keep out of.
        tracing::debug!(%error, %from, "cannot speak from this address");
    }
    socket.connect(to).await
}
