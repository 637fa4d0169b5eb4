//! Callers who prove who they are: with certificates, and with tokens of an issuer that a test makes up.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use data_encoding::BASE64URL_NOPAD;
use hyper_util::rt::TokioIo;
use pilot_ca::messages::{CREATE_CERTIFICATE, CertificateRequest, CertificateResponse};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::Status;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// The name that Istio's agents call the server by.
const SERVER: &str = "istiod.istio-system.svc";

/// A key, and what somebody has certified about it.
#[derive(Clone)]
pub struct Certified {
    /// The certificate, and what stands between it and the root.
    pub chain: String,
    pub key: String,
}

/// A connection with TLS to a server that the root vouches for.
pub async fn connect(server: SocketAddr, root: &str, own: Option<&Certified>) -> anyhow::Result<Channel> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(root.as_bytes()) {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let mut config = match own {
        None => config.with_no_client_auth(),
        Some(Certified { chain, key }) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
            config.with_client_auth_cert(chain?, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from(SERVER)?;
    let connect = tower::service_fn(move |_| {
        let (connector, name) = (connector.clone(), name.clone());
        async move {
            let stream = TcpStream::connect(server).await?;
            Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    Ok(Endpoint::from_shared(format!("http://{server}"))?.connect_with_connector(connect).await?)
}

/// Asks for a certificate, as agents do.
pub async fn create_certificate(
    channel: Channel,
    request: CertificateRequest,
    token: Option<&str>,
) -> Result<Vec<String>, Status> {
    create_certificate_in(channel, request, (token, None)).await
}

/// The same for who says in which cluster he is.
pub async fn create_certificate_in(
    channel: Channel,
    request: CertificateRequest,
    (token, cluster): (Option<&str>, Option<&str>),
) -> Result<Vec<String>, Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut request = tonic::Request::new(request);
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().map_err(|_| Status::internal("no header"))?;
        request.metadata_mut().insert("authorization", value);
    }
    if let Some(cluster) = cluster {
        let value = cluster.parse().map_err(|_| Status::internal("no header"))?;
        request.metadata_mut().insert("clusterid", value);
    }
    let codec: ProstCodec<CertificateRequest, CertificateResponse> = ProstCodec::default();
    let path = http::uri::PathAndQuery::from_static(CREATE_CERTIFICATE);
    Ok(grpc.unary(request, path, codec).await?.into_inner().cert_chain)
}

/// A new key, and a request that claims to be somebody.
pub fn signing_request(claim: &str) -> anyhow::Result<(String, String)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(claim.try_into()?)];
    Ok((params.serialize_request(&key)?.pem()?, key.serialize_pem()))
}

/// Whoever issues tokens.
pub struct TokenIssuer(EcdsaKeyPair);

impl TokenIssuer {
    pub fn new() -> anyhow::Result<Self> {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).ok().context("a key")?;
        Ok(Self(EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).ok().context("a key")?))
    }

    /// The public keys, as a text of JSON.
    pub fn keys(&self, id: &str) -> String {
        let point = self.0.public_key().as_ref();
        let [x, y] = [&point[1..33], &point[33..]].map(|half| BASE64URL_NOPAD.encode(half));
        json!({"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": id, "x": x, "y": y}]})
            .to_string()
    }

    pub fn token(&self, id: &str, claims: &Value) -> anyhow::Result<String> {
        let part = |value: &Value| BASE64URL_NOPAD.encode(value.to_string().as_bytes());
        let message = format!("{}.{}", part(&json!({"alg": "ES256", "kid": id})), part(claims));
        let signature = self.0.sign(&SystemRandom::new(), message.as_bytes()).ok().context("a signature")?;
        Ok(format!("{message}.{}", BASE64URL_NOPAD.encode(signature.as_ref())))
    }
}
