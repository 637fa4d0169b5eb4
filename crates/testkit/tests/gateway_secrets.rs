//! Gateways are given certificates and keys from Secrets, and nobody else is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use data_encoding::BASE64;
use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::extensions::transport_sockets::tls::v3::{Secret, secret::Type};
use pilot_envoy_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use pilot_testkit::agent::{PilotAgent, Place};
use pilot_testkit::http_call;
use pilot_testkit::identity::connect;
use pilot_testkit::plane::{Plane, claims};
use pilot_testkit::process::free_address;
use pilot_testkit::shop::until;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{Delta, Stream};
use pilot_xds::TypeUrl;
use prost::Message as _;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A certificate that vouches for itself, and its key.
struct Pair {
    chain: String,
    key: String,
}

fn pair(name: &str) -> Pair {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["shop.example".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    Pair { chain: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

fn secret(namespace: &str, name: &str, pair: &Pair) -> String {
    let [chain, key] = [&pair.chain, &pair.key].map(|text| BASE64.encode(text.as_bytes()));
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {namespace}}}\ntype: kubernetes.io/tls\n\
         data: {{tls.crt: {chain}, tls.key: {key}, ca.crt: {chain}}}\n"
    )
}

fn write(scratch: &Path, name: &str, text: &str) {
    let config = scratch.join("config");
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join(format!(".{name}")), text).unwrap();
    std::fs::rename(config.join(format!(".{name}")), config.join(format!("{name}.yaml"))).unwrap();
}

async fn plane(files: &[(&str, String)]) -> Plane {
    let scratch = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| write(scratch.path(), name, text));
    let stock = [("PILOT_ENABLE_ALPN_FILTER", "false"), ("PILOT_ENABLE_METADATA_EXCHANGE", "false")];
    Plane::start_in(scratch, &[], &stock).await.unwrap()
}

/// Asks for Secrets, as a gateway or a sidecar does, with a token of a namespace or without any.
async fn ask(plane: &Plane, kind: &str, namespace: Option<&str>, names: &[&str]) -> Stream<Delta> {
    let id = format!("{kind}~10.0.0.1~edge.default~default.svc.cluster.local");
    let request = DeltaDiscoveryRequest {
        node: Some(Node { id, ..Node::default() }),
        type_url: TypeUrl::Secret.as_str().to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    let stream = match namespace {
        None => Stream::<Delta>::open(plane.server.grpc).await.unwrap(),
        Some(namespace) => {
            let mut claims = claims("edge");
            claims["sub"] = json!(format!("system:serviceaccount:{namespace}:edge"));
            let token = plane.issuer.token("one", &claims).unwrap();
            let channel = connect(plane.secure, &plane.root().unwrap(), None).await.unwrap();
            Stream::<Delta>::open_as(channel, Some(&token)).await.unwrap()
        }
    };
    stream.send(request);
    stream
}

fn accept(stream: &Stream<Delta>, response: &DeltaDiscoveryResponse) {
    let type_url = TypeUrl::Secret.as_str().to_owned();
    let response_nonce = response.nonce.clone();
    stream.send(DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() });
}

fn told(response: &DeltaDiscoveryResponse) -> Vec<(String, Type)> {
    let one = |resource: &pilot_envoy_api::envoy::service::discovery::v3::Resource| {
        let secret = Secret::decode(resource.resource.as_ref().unwrap().value.as_slice()).unwrap();
        assert_eq!(secret.name, resource.name);
        (secret.name, secret.r#type.unwrap())
    };
    let mut all: Vec<_> = response.resources.iter().map(one).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

const NAMES: [&str; 5] = [
    "kubernetes://cert",
    "kubernetes://cert-cacert",
    "kubernetes://default/cert",
    "kubernetes://other/cert",
    "kubernetes://nobody",
];

#[tokio::test]
async fn a_gateway_reads_the_secrets_of_its_namespace() {
    let (first, other) = (pair("first"), pair("other"));
    let plane =
        plane(&[("cert", secret("default", "cert", &first)), ("other", secret("other", "cert", &other))])
            .await;
    let mut stream = ask(&plane, "router", Some("default"), &NAMES).await;
    let response = stream.next().await.unwrap().unwrap();
    let all = told(&response);
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["kubernetes://cert", "kubernetes://cert-cacert", "kubernetes://default/cert"]);
    let inline =
        |source: &Option<pilot_envoy_api::envoy::config::core::v3::DataSource>| format!("{source:?}");
    match &all[0].1 {
        Type::TlsCertificate(certificate) => {
            let key = format!("{:?}", first.key.as_bytes());
            assert!(inline(&certificate.private_key).contains(&key));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(&all[1].1, Type::ValidationContext(context) if context.trusted_ca.is_some()));
    accept(&stream, &response);

    // Another certificate, and nothing else.
    let second = pair("second");
    write(plane.scratch.path(), "cert", &secret("default", "cert", &second));
    let response = stream.next().await.unwrap().unwrap();
    assert_eq!(told(&response).len(), 3);
    accept(&stream, &response);

    // Who looks into the server sees no key.
    let (_, page) =
        http_call::get(plane.server.monitoring, "/debug/config_dump?proxyID=edge&types=sds").await.unwrap();
    assert!(page.contains("[redacted]") && page.contains("kubernetes://cert"), "{page}");
    let body: String = second.key.lines().filter(|line| !line.starts_with('-')).collect();
    let keys = [BASE64.encode(second.key.as_bytes()), body];
    assert!(keys.iter().all(|key| !page.contains(key)), "{page}");
    assert!(keys.iter().all(|key| !plane.server.process.output().contains(key)));
}

#[tokio::test]
async fn nobody_else_reads_them() {
    let plane = plane(&[("cert", secret("default", "cert", &pair("first")))]).await;
    for (kind, namespace) in [("sidecar", Some("default")), ("router", None)] {
        let mut stream = ask(&plane, kind, namespace, &NAMES).await;
        match tokio::time::timeout(std::time::Duration::from_millis(500), stream.next()).await {
            Err(_) => {}
            Ok(response) => assert_eq!(told(&response.unwrap().unwrap()).len(), 0, "{kind} {namespace:?}"),
        }
    }
    let mut stream = ask(&plane, "router", Some("other"), &NAMES).await;
    assert!(stream.next().await.unwrap().is_err(), "it says it is of another namespace");
}

/// The certificate that a gateway shows, if it is the one that is expected.
async fn shows(door: SocketAddr, pair: &Pair) -> bool {
    use rustls::pki_types::pem::PemObject as _;
    let certificate = rustls::pki_types::CertificateDer::from_pem_slice(pair.chain.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let Ok(stream) = TcpStream::connect(door).await else { return false };
    let name = ServerName::try_from("shop.example").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.is_ok()
}

#[tokio::test]
async fn an_envoy_at_the_edge_shows_the_certificate_and_the_next_one() {
    let tools = Tools::of_environment();
    if let Some(why) = tools.why_skip_envoy() {
        println!("skipped: {why}");
        return;
    }
    let door = free_address().unwrap();
    let gateway = format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: edge, namespace: default}}\n\
         spec:\n  selector: {{app: edge}}\n  servers:\n  - port: {{number: {}, name: https, protocol: HTTPS}}\n    \
         hosts: [shop.example]\n    bind: 127.0.0.1\n    tls: {{mode: SIMPLE, credentialName: cert}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: shop, namespace: default}}\n\
         spec: {{hosts: [shop.example], gateways: [edge], http: [{{directResponse: {{status: 200}}}}]}}\n",
        door.port()
    );
    let (first, second) = (pair("first"), pair("second"));
    let plane = plane(&[("edge", gateway), ("cert", secret("default", "cert", &first))]).await;
    let place = Place::new("edge", plane.secure).router();
    let place = place.trusting(plane.root().unwrap(), plane.token("edge").unwrap());
    let mut edge = PilotAgent::start(&place, &tools).unwrap();
    edge.ready().await.unwrap();
    until("the gateway shows its certificate", || shows(door, &first)).await.unwrap();
    write(plane.scratch.path(), "cert", &secret("default", "cert", &second));
    until("the gateway shows the next one", || shows(door, &second)).await.unwrap();
    assert!(!shows(door, &first).await);
    assert!(edge.process.terminate().await.unwrap().success());
}
