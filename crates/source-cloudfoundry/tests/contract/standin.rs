//! As much of Copilot as Pilot asks for, written from its public description: gRPC over TLS in which both sides prove
//! who they are.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use parking_lot::Mutex;
use pilot_source_cloudfoundry::{
    Backend, BackendSet, CfConfig, INTERNAL_ROUTES, InternalRoute, InternalRoutes, Nothing, ROUTES, Route,
    Routes,
};
use pilot_source_http::TlsFiles;
use rcgen::{CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic_prost::ProstCodec;

/// How Copilot answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Mood {
    #[default]
    Good,
    /// With something that is none of its messages.
    Malformed,
    /// Not at all.
    Refusing,
}

/// Where a request to a host goes: path, application and back end.
type Key = (String, String, SocketAddr);

#[derive(Default)]
pub(crate) struct World {
    pub(crate) mood: Mood,
    /// Weights by where they lead to, by host.
    routes: BTreeMap<Vec<u8>, BTreeMap<Key, i32>>,
    /// Back ends by host and virtual address.
    internal: BTreeMap<(String, String), Vec<SocketAddr>>,
}

impl World {
    pub(crate) fn map(&mut self, host: &[u8], to: Key, weight: i32) {
        self.routes.entry(host.to_vec()).or_default().insert(to, weight);
    }

    pub(crate) fn map_inside(&mut self, host: &str, vip: &str, backend: SocketAddr) {
        self.internal.entry((host.to_owned(), vip.to_owned())).or_default().push(backend);
    }

    /// An instance has stopped.
    pub(crate) fn stop(&mut self, backend: SocketAddr) {
        self.routes.values_mut().for_each(|all| all.retain(|(_, _, at), _| *at != backend));
        self.routes.retain(|_, all| !all.is_empty());
        self.internal.values_mut().for_each(|all| all.retain(|at| *at != backend));
    }

    fn routes(&self) -> Routes {
        let mut all: BTreeMap<(&Vec<u8>, &String, &String), (i32, Vec<Backend>)> = BTreeMap::new();
        for (host, to) in &self.routes {
            for ((path, app, at), weight) in to {
                let of_app = all.entry((host, path, app)).or_default();
                of_app.0 = *weight;
                of_app.1.push(backend(at));
            }
        }
        let route =
            |((host, path, app), (route_weight, backends)): ((&Vec<u8>, &String, &String), _)| Route {
                hostname: host.clone(),
                path: path.clone().into_bytes(),
                backends: Some(BackendSet { backends }),
                capi_process_guid: app.clone().into_bytes(),
                route_weight,
            };
        Routes { routes: all.into_iter().map(route).collect() }
    }

    fn internal_routes(&self) -> InternalRoutes {
        let route = |((host, vip), all): (&(String, String), &Vec<SocketAddr>)| InternalRoute {
            hostname: host.clone().into_bytes(),
            vip: vip.clone().into_bytes(),
            backends: Some(BackendSet { backends: all.iter().map(backend).collect() }),
        };
        InternalRoutes { internal_routes: self.internal.iter().map(route).collect() }
    }
}

fn backend(at: &SocketAddr) -> Backend {
    Backend { address: at.ip().to_string().into_bytes(), port: at.port().into() }
}

pub(crate) struct Standin {
    pub(crate) address: SocketAddr,
    pub(crate) world: Arc<Mutex<World>>,
    /// Certificates for both sides, in a folder.
    pub(crate) tls: TlsFiles,
    acceptor: TlsAcceptor,
    serving: JoinSet<()>,
}

impl Standin {
    pub(crate) async fn start(folder: &Path, address: SocketAddr) -> anyhow::Result<Self> {
        let (tls, server) = certificates(folder)?;
        let listener = TcpListener::bind(address).await?;
        let (address, world) = (listener.local_addr()?, Arc::default());
        let acceptor = TlsAcceptor::from(Arc::new(server));
        let mut standin = Self { address, world, tls, acceptor, serving: JoinSet::new() };
        standin.serve(listener);
        Ok(standin)
    }

    /// How Pilot is told to reach it at an address, which may be a way around.
    pub(crate) fn config(&self, at: SocketAddr) -> CfConfig {
        CfConfig {
            address: at.to_string(),
            tls: self.tls.clone(),
            every: Duration::from_millis(50),
            service_port: 8080,
            gateways: Vec::new(),
        }
    }

    pub(crate) async fn stop_and_start(&mut self) -> anyhow::Result<()> {
        self.serving.shutdown().await;
        let listener = TcpListener::bind(self.address).await?;
        self.serve(listener);
        Ok(())
    }

    fn serve(&mut self, listener: TcpListener) {
        let (acceptor, world) = (self.acceptor.clone(), Arc::clone(&self.world));
        self.serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, world) = (acceptor.clone(), Arc::clone(&world));
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| answer(request, Arc::clone(&world)));
                    // Whoever is cut off sees that for himself.
                    let _over = Builder::new(TokioExecutor::new())
                        .http2_only()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
    }
}

async fn answer(request: Request<Incoming>, world: Arc<Mutex<World>>) -> Result<Response<Body>, Infallible> {
    let (mood, routes, internal) = {
        let world = world.lock();
        (world.mood, world.routes(), world.internal_routes())
    };
    let answer = match (mood, request.uri().path()) {
        (Mood::Refusing, _) => Status::permission_denied("not you").into_http(),
        (Mood::Malformed, _) => say(Odd { routes: 7, internal: 7 }, request).await,
        (Mood::Good, ROUTES) => say(routes, request).await,
        (Mood::Good, INTERNAL_ROUTES) => say(internal, request).await,
        (Mood::Good, _) => Status::unimplemented("no such method").into_http(),
    };
    Ok(answer)
}

async fn say<T: prost::Message + Default + Clone + 'static>(
    what: T,
    request: Request<Incoming>,
) -> Response<Body> {
    let codec: ProstCodec<T, Nothing> = ProstCodec::default();
    Grpc::new(codec).unary(Says(what), request).await
}

struct Says<T>(T);

impl<T: prost::Message + Clone> UnaryService<Nothing> for Says<T> {
    type Response = T;
    type Future = Ready<Result<tonic::Response<T>, Status>>;

    fn call(&mut self, _: tonic::Request<Nothing>) -> Self::Future {
        ready(Ok(tonic::Response::new(self.0.clone())))
    }
}

/// Numbers where lists should be.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
struct Odd {
    #[prost(uint32, tag = "2")]
    routes: u32,
    #[prost(uint32, tag = "1")]
    internal: u32,
}

/// Somebody who vouches for Copilot and for Pilot; files for Pilot, and what Copilot serves with.
fn certificates(folder: &Path) -> anyhow::Result<(TlsFiles, ServerConfig)> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = params.self_signed(&key)?;
    let issuer = Issuer::new(params, key);
    let signed = |names: &[&str]| -> anyhow::Result<(String, String)> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    };
    let write = |name: &str, text: &str| -> anyhow::Result<PathBuf> {
        let path = folder.join(name);
        std::fs::write(&path, text)?;
        Ok(path)
    };
    let (own, own_key) = signed(&["pilot"])?;
    let files = TlsFiles {
        roots: Some(write("ca.pem", &root.pem())?),
        own: Some((write("client.pem", &own)?, write("client.key", &own_key)?)),
    };
    let (server, server_key) = signed(&["127.0.0.1", "localhost"])?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(root.der().clone())?;
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(server.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(server_key.as_bytes())?;
    let mut config = config.with_client_cert_verifier(clients).with_single_cert(chain?, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok((files, config))
}
