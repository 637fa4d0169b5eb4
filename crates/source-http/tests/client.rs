//! The client over TLS, with several servers, and with answers that are too much.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pilot_source_http::{Client, ClientOptions, Secret, ServerAddress, TlsFiles};
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Answers everything that is asked with what was asked.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        asked.push(byte);
    }
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", asked.len());
    // Who has hung up does not read it.
    let _read = stream.write_all(&[head.into_bytes(), asked].concat()).await;
    let _closed = stream.shutdown().await;
}

async fn serve(tls: Option<TlsAcceptor>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            match &tls {
                None => answer(stream).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        answer(stream).await;
                    }
                }
            }
        }
    });
    (address, serving)
}

struct Authority {
    root: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap();
        Self { root, issuer: Issuer::new(params, key) }
    }

    fn issue(&self) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// A server that talks to nobody who has no certificate of ours.
    fn acceptor(&self) -> TlsAcceptor {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.root.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let (certificate, key) = self.issue();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_client_cert_verifier(verifier.build().unwrap());
        TlsAcceptor::from(Arc::new(config.with_single_cert(vec![certificate.der().clone()], key).unwrap()))
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn client(servers: &[String], tls: TlsFiles) -> Client {
    let servers = servers.iter().map(|text| ServerAddress::parse(text).unwrap()).collect();
    let secret = Secret::new("x-token", "open sesame");
    Client::new(ClientOptions { secret, tls, most_bytes: 4096, ..ClientOptions::new(servers) }).unwrap()
}

#[tokio::test]
async fn tls_is_spoken_with_who_is_trusted_and_by_who_has_a_certificate() {
    let (scratch, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (address, _serving) = serve(Some(authority.acceptor())).await;
    let server = [format!("https://user:word@{address}/base/")];
    let (certificate, key) = authority.issue();
    let roots = write(scratch.path(), "roots.pem", &authority.root.pem());
    let own = (
        write(scratch.path(), "own.pem", &certificate.pem()),
        write(scratch.path(), "key.pem", &key.serialize_pem()),
    );
    let trusting = TlsFiles { roots: Some(roots.clone()), own: Some(own.clone()) };
    let said = client(&server, trusting).page("/x?y=z", Duration::ZERO).await.unwrap();
    let said = String::from_utf8_lossy(&said.body).into_owned();
    assert!(said.starts_with("GET /base/x?y=z HTTP/1.1"), "{said}");
    assert!(
        said.contains("x-token: open sesame") && said.contains("authorization: Basic dXNlcjp3b3Jk"),
        "{said}"
    );

    let stranger = TlsFiles { roots: Some(roots), own: None };
    assert!(client(&server, stranger).page("/", Duration::ZERO).await.is_err());
    let other = write(scratch.path(), "other.pem", &Authority::new().root.pem());
    let suspicious = TlsFiles { roots: Some(other), own: Some(own) };
    let why = client(&server, suspicious).page("/", Duration::ZERO).await.unwrap_err().to_string();
    assert!(why.contains("cannot be asked") && !why.contains("word") && !why.contains("sesame"), "{why}");
    let empty = write(scratch.path(), "empty.pem", "");
    let servers = vec![ServerAddress::parse(&server[0]).unwrap()];
    let options =
        ClientOptions { tls: TlsFiles { roots: Some(empty), own: None }, ..ClientOptions::new(servers) };
    assert!(Client::new(options).err().unwrap().to_string().contains("has no certificate"));
}

#[tokio::test]
async fn from_a_server_that_fails_the_client_turns_to_the_next() {
    let (address, _serving) = serve(None).await;
    // Nobody listens at the first one.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let client = client(&[format!("http://{gone}"), format!("http://{address}")], TlsFiles::default());
    assert!(client.page("/", Duration::ZERO).await.is_err());
    assert!(client.page("/", Duration::ZERO).await.is_ok());
    let large = format!("/{}", "x".repeat(5000));
    let why = client.page(&large, Duration::ZERO).await.unwrap_err().to_string();
    assert!(why.contains("more than 4096 bytes"), "{why}");
}

/// Refuses whoever has another token than this one.
async fn guarded(listener: TcpListener, token: Arc<std::sync::Mutex<&'static str>>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(stream.read_u8().await.unwrap());
        }
        let right = format!("authorization: token={}\r\n", *token.lock().unwrap());
        let is_right = String::from_utf8(asked).unwrap().contains(&right);
        let status = if is_right { "200 OK" } else { "403 Forbidden" };
        let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n\n\n");
        stream.write_all(head.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn a_token_that_is_refused_is_read_again() {
    let scratch = tempfile::tempdir().unwrap();
    let file = write(scratch.path(), "token", "old\n");
    let right = Arc::new(std::sync::Mutex::new("old"));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let servers = vec![ServerAddress::parse(&listener.local_addr().unwrap().to_string()).unwrap()];
    let mut serving = JoinSet::new();
    serving.spawn(guarded(listener, Arc::clone(&right)));
    let secret = Secret::read("authorization", "token=", &file).unwrap();
    let client = Client::new(ClientOptions { secret, ..ClientOptions::new(servers) }).unwrap();
    assert!(client.page("/", Duration::ZERO).await.is_ok());
    *right.lock().unwrap() = "new";
    let why = client.page("/", Duration::ZERO).await.unwrap_err();
    assert_eq!(why.status().unwrap(), 403, "the file has the old one");
    write(scratch.path(), "token", "new");
    assert!(client.clone().events("/").await.is_ok(), "a stream");
    assert!(client.page("/", Duration::ZERO).await.is_ok(), "a page, with what the copy has read");
    *right.lock().unwrap() = "newer";
    write(scratch.path(), "token", "newer");
    assert!(client.page("/", Duration::ZERO).await.is_ok());
    // A file that is being replaced is not there.
    std::fs::remove_file(file).unwrap();
    assert!(client.page("/", Duration::ZERO).await.is_ok());
}

#[tokio::test]
async fn a_login_stands_in_a_file_and_is_read_again_when_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("login");
    std::fs::write(&file, "pilot:old\n").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = ServerAddress::parse(&listener.local_addr().unwrap().to_string()).unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        // `pilot:new`
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = vec![0; 4096];
            let read = stream.read(&mut asked).await.unwrap();
            let is_known =
                String::from_utf8_lossy(&asked[..read]).contains("authorization: Basic cGlsb3Q6bmV3");
            let status = if is_known { "200 OK" } else { "401 No" };
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
        }
    });
    let secret = Secret::login(&file).unwrap();
    let client = Client::new(ClientOptions { secret, ..ClientOptions::new(vec![server]) }).unwrap();
    assert_eq!(client.get("/", Duration::ZERO).await.unwrap().status, 401);
    std::fs::write(&file, "pilot:new\n").unwrap();
    assert_eq!(client.get("/", Duration::ZERO).await.unwrap().status, 200);
}
