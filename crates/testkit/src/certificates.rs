//! Certificates for one scenario: an authority, and what it has signed for servers and for clients.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};

use crate::scenario::Call;

/// Where scenarios find the files: `$CERTS/ca.pem`, `server.pem`, `server-key.pem`, `client.pem`, `client-key.pem`.
pub const PLACE: &str = "$CERTS";

/// Names that the certificate for servers is good for.
const SERVER_NAMES: [&str; 3] = ["*.example.com", "*.default.svc.cluster.local", "localhost"];
const CLIENT_NAMES: [&str; 1] = ["client.example.com"];

#[derive(Clone)]
pub struct Certificates {
    pub server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    anonymous: Arc<ClientConfig>,
}

struct Signed {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Certificates {
    /// Makes new ones and writes them into a folder.
    pub fn create(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "behave");
        std::fs::write(folder.join("ca.pem"), params.self_signed(&key)?.pem())?;
        let authority = Issuer::new(params, key);
        let server = sign(&authority, folder, "server", &SERVER_NAMES)?;
        let client = sign(&authority, folder, "client", &CLIENT_NAMES)?;
        let verifier = Arc::new(Trusting);
        let config = || {
            Ok::<_, anyhow::Error>(
                ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                    .with_safe_default_protocol_versions()?
                    .dangerous()
                    .with_custom_certificate_verifier(verifier.clone()),
            )
        };
        let server = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![server.certificate], server.key)?;
        let client = config()?.with_client_auth_cert(vec![client.certificate], client.key)?;
        let anonymous = config()?.with_no_client_auth();
        Ok(Self { server: Arc::new(server), client: Arc::new(client), anonymous: Arc::new(anonymous) })
    }

    pub(crate) fn client(&self, call: &Call) -> Arc<ClientConfig> {
        Arc::clone(if call.certificate { &self.client } else { &self.anonymous })
    }
}

fn sign(
    authority: &Issuer<'_, KeyPair>,
    folder: &Path,
    name: &str,
    hosts: &[&str],
) -> anyhow::Result<Signed> {
    let key = KeyPair::generate()?;
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let signed = CertificateParams::new(hosts)?.signed_by(&key, authority)?;
    std::fs::write(folder.join(format!("{name}.pem")), signed.pem())?;
    std::fs::write(folder.join(format!("{name}-key.pem")), key.serialize_pem())?;
    let der = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg).context("a key")?;
    Ok(Signed { certificate: signed.der().clone(), key: der })
}

/// Callers of a scenario ask who answers, not whether to believe it.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384,
            SignatureScheme::ED25519,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PKCS1_SHA256,
        ]
    }
}
