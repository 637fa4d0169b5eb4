//! The certificates of a scenario, served to Envoy at the place where it asks its agent for secrets.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pilot_envoy_api::envoy::config::core::v3::{DataSource, data_source};
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, TlsCertificate, secret,
};
use pilot_envoy_api::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use pilot_envoy_api::to_any;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// Where Envoy looks for its agent, seen from the folder it was started in.
const SOCKET: &str = "var/run/secrets/workload-spiffe-uds/socket";

/// A server of secrets. It ends with the scenario.
pub struct Secrets {
    _task: JoinSet<()>,
}

impl Secrets {
    /// Serves `certs`, and every file that Envoy asks for by name.
    pub fn serve(folder: &Path, certs: &Path) -> anyhow::Result<Self> {
        let socket = folder.join(SOCKET);
        if let Some(parent) = socket.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let incoming = UnixListenerStream::new(UnixListener::bind(socket)?);
        let service = Service(Arc::new(certs.to_owned()));
        let server = tonic::transport::Server::builder().add_service(service);
        let mut task = JoinSet::new();
        task.spawn(async move {
            // It ends with the set; whoever is cut off by an error shows it by what is missing then.
            let _stopped = server.serve_with_incoming(incoming).await;
        });
        Ok(Self { _task: task })
    }
}

#[derive(Clone)]
struct Service(Arc<PathBuf>);

impl NamedService for Service {
    const NAME: &'static str = "envoy.service.secret.v3.SecretDiscoveryService";
}

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl tower_service::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let codec: ProstCodec<DiscoveryResponse, DiscoveryRequest> = ProstCodec::default();
            Ok(Grpc::new(codec).streaming(service, request).await)
        })
    }
}

impl StreamingService<DiscoveryRequest> for Service {
    type Response = DiscoveryResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<DiscoveryResponse, Status>> + Send>>;
    type Future = Answer<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<DiscoveryRequest>>) -> Self::Future {
        let certs = Arc::clone(&self.0);
        let mut told: Vec<String> = Vec::new();
        let responses = request.into_inner().filter_map(move |request| {
            let request = request.ok()?;
            // What was told does not change; a request for it is Envoy's thanks.
            if request.resource_names == told {
                return None;
            }
            told.clone_from(&request.resource_names);
            let secrets = told.iter().filter_map(|name| secret(name, &certs));
            Some(Ok(DiscoveryResponse {
                version_info: "1".to_owned(),
                nonce: told.join(","),
                type_url: request.type_url,
                resources: secrets.map(|secret| to_any(&secret)).collect(),
                ..DiscoveryResponse::default()
            }))
        });
        let responses: Self::ResponseStream = Box::pin(responses);
        Box::pin(async move { Ok(Response::new(responses)) })
    }
}

/// The secret of a name: files that the name spells out, or the scenario's own.
fn secret(name: &str, certs: &Path) -> Option<Secret> {
    let own = |file: &str| certs.join(file);
    let kind = if let Some(files) = name.strip_prefix("file-cert:") {
        let (certificate, key) = files.split_once('~')?;
        pair(Path::new(certificate), Path::new(key))?
    } else if let Some(file) = name.strip_prefix("file-root:") {
        trusted(Path::new(file))?
    } else if name == "ROOTCA" || name.ends_with("-cacert") {
        trusted(&own("ca.pem"))?
    } else {
        pair(&own("server.pem"), &own("server-key.pem"))?
    };
    Some(Secret { name: name.to_owned(), r#type: Some(kind) })
}

fn pair(certificate: &Path, key: &Path) -> Option<secret::Type> {
    Some(secret::Type::TlsCertificate(TlsCertificate {
        certificate_chain: Some(content(certificate)?),
        private_key: Some(content(key)?),
        ..TlsCertificate::default()
    }))
}

fn trusted(file: &Path) -> Option<secret::Type> {
    Some(secret::Type::ValidationContext(CertificateValidationContext {
        trusted_ca: Some(content(file)?),
        ..CertificateValidationContext::default()
    }))
}

fn content(file: &Path) -> Option<DataSource> {
    let bytes = std::fs::read(file).ok()?;
    Some(DataSource { specifier: Some(data_source::Specifier::InlineBytes(bytes)), ..DataSource::default() })
}
