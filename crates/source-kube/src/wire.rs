//! Connections to an API server, with TLS where it asks for that.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::access::{Access, AccessError, Trust};

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// A server that is gone without a word is noticed after about half a minute.
const KEEPALIVE: TcpKeepalive = TcpKeepalive::new()
    .with_time(Duration::from_secs(15))
    .with_interval(Duration::from_secs(5))
    .with_retries(3);

/// Opens connections.
#[derive(Clone)]
pub(crate) struct Connector {
    tls: Arc<ClientConfig>,
    server_name: Option<String>,
}

impl Connector {
    pub(crate) fn new(access: &Access) -> Result<Self, AccessError> {
        Ok(Self { tls: Arc::new(client_config(access)?), server_name: access.server_name.clone() })
    }

    async fn connect(self, uri: Uri) -> std::io::Result<Wire> {
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let stream = TcpStream::connect((host.as_str(), port)).await?;
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&KEEPALIVE)?;
        if !secure {
            return Ok(Wire { io: TokioIo::new(Box::new(stream)), h2: false });
        }
        let name = self.server_name.unwrap_or(host);
        let name = ServerName::try_from(name).map_err(std::io::Error::other)?;
        let stream = TlsConnector::from(self.tls).connect(name, stream).await?;
        let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Wire { io: TokioIo::new(Box::new(stream)), h2 })
    }
}

impl Service<Uri> for Connector {
    type Response = Wire;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Wire>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.clone().connect(uri);
        Box::pin(async move {
            let connected = tokio::time::timeout(CONNECT_PATIENCE, connecting).await;
            connected.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        })
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// An open connection.
pub(crate) struct Wire {
    io: TokioIo<Box<dyn Io>>,
    h2: bool,
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        if self.h2 { Connected::new().negotiated_h2() } else { Connected::new() }
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl Write for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

fn client_config(access: &Access) -> Result<ClientConfig, AccessError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = match &access.trust {
        Trust::Anybody => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider))),
        Trust::System => builder.with_root_certificates(system_roots()),
        Trust::Roots(pem) => builder.with_root_certificates(roots(pem, &access.server)?),
    };
    let mut config = match &access.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let wrong = |what: String| AccessError::Wrong { place: access.server.clone(), what };
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&identity.certificate).collect();
            let chain = chain.map_err(|error| wrong(format!("client-certificate: {error:?}")))?;
            let key = PrivateKeyDer::from_pem_slice(&identity.key);
            let key = key.map_err(|error| wrong(format!("client-key: {error:?}")))?;
            builder.with_client_auth_cert(chain, key)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn roots(pem: &[u8], server: &str) -> Result<RootCertStore, AccessError> {
    let mut store = RootCertStore::empty();
    let wrong = |what: String| AccessError::Wrong { place: server.to_owned(), what };
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| wrong(format!("certificate-authority: {error:?}")))?;
        store.add(certificate).map_err(|error| wrong(format!("certificate-authority: {error}")))?;
    }
    if store.is_empty() {
        return Err(wrong("certificate-authority: no certificate in it".to_owned()));
    }
    Ok(store)
}

fn system_roots() -> RootCertStore {
    let mut store = RootCertStore::empty();
    // One that cannot be read is one less to trust.
    let _unreadable = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    store
}

/// For a kubeconfig that says `insecure-skip-tls-verify`.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
