//! Certificates and xDS over TLS: who is let in, as whom, and what becomes of an authority that changes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::time::Duration;

use pilot_ca::messages::CertificateRequest;
use pilot_envoy_api::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use pilot_testkit::backend::Backends;
use pilot_testkit::identity::{Certified, TokenIssuer, connect, create_certificate, signing_request};
use pilot_testkit::plane::{Plane, claims, request};
use pilot_testkit::process::free_address;
use pilot_testkit::scenario::Backend;
use pilot_testkit::server::PilotServer;
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{Delta, StateOfTheWorld, Stream, node};
use pilot_xds::TypeUrl;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::{Code, Status};

const ME: &str = "spiffe://cluster.local/ns/default/sa/cart";

fn code(answer: Result<Vec<String>, Status>) -> Code {
    answer.unwrap_err().code()
}

/// Does who trusts the root trust this too? And as whom.
fn identities(chain: &str, root: &str) -> Vec<String> {
    let chain: Vec<CertificateDer<'_>> =
        CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
    let verifier = pilot_ca::client_verifier(&[root]).unwrap();
    verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).unwrap();
    pilot_ca::identities(&chain[0]).iter().map(ToString::to_string).collect()
}

async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    for _ in 0..300 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what}: not within thirty seconds");
}

#[tokio::test]
async fn a_token_gets_a_certificate_and_that_the_next() {
    let plane = Plane::start(&[]).await.unwrap();
    let (csr, key) = signing_request("spiffe://cluster.local/ns/istio-system/sa/admin").unwrap();
    let texts = plane.ask(&csr, 3600, Some(&plane.token("cart").unwrap())).await.unwrap();
    assert_eq!(texts.len(), 2, "leaf and root");
    assert_eq!(texts[1], plane.root().unwrap());
    assert_eq!(identities(&texts[0], &texts[1]), [ME], "the caller's name, not the one that was asked for");

    let own = Certified { chain: texts[0].clone(), key };
    let channel = connect(plane.secure, &plane.root().unwrap(), Some(&own)).await.unwrap();
    let (csr, _) = signing_request("spiffe://cluster.local/ns/other/sa/other").unwrap();
    let renewed = create_certificate(channel, request(&csr, 0), None).await.unwrap();
    assert_eq!(identities(&renewed[0], &renewed[1]), [ME]);
    assert!(plane.metric("citadel_server_csr_count 2").await);
    assert!(plane.metric("citadel_server_success_cert_issuance_count 2").await);
    assert!(!plane.metric("citadel_server_root_cert_expiry_timestamp 0").await);
}

#[tokio::test]
async fn who_does_not_prove_who_he_is_gets_nothing() {
    let plane = Plane::start(&[]).await.unwrap();
    let (csr, _) = signing_request(ME).unwrap();
    assert_eq!(code(plane.ask(&csr, 0, None).await), Code::Unauthenticated);
    let thief = TokenIssuer::new().unwrap();
    let with = |claim: &str, value: Value| {
        let mut all = claims("cart");
        all[claim] = value;
        plane.issuer.token("one", &all).unwrap()
    };
    let bad = [
        "hello".to_owned(),
        thief.token("one", &claims("cart")).unwrap(),
        thief.token("two", &claims("cart")).unwrap(),
        with("exp", json!(1_700_000_000)),
        with("aud", json!(["other"])),
        with("iss", json!("other")),
        with("sub", json!("cart")),
    ];
    for token in &bad {
        let refused = plane.ask(&csr, 0, Some(token)).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert_eq!(refused.message(), "request authenticate failure", "it does not help who guesses");
    }
    assert!(plane.metric("citadel_server_authentication_failure_count 8").await);
    assert!(!plane.server.process.output().contains(&bad[3]), "tokens are not written down");
    assert!(plane.ask(&csr, 0, Some(&plane.token("cart").unwrap())).await.is_ok());
}

#[tokio::test]
async fn requests_that_cannot_be_met_say_why() {
    let plane = Plane::start(&[("MAX_WORKLOAD_CERT_TTL", "48h")]).await.unwrap();
    let token = plane.token("cart").unwrap();
    let (csr, _) = signing_request(ME).unwrap();
    let long = plane.ask(&csr, 48 * 3600 + 1, Some(&token)).await.unwrap_err();
    assert_eq!(long.code(), Code::InvalidArgument);
    assert!(long.message().contains("greater than the max allowed TTL"), "{}", long.message());
    assert_eq!(code(plane.ask("hello", 0, Some(&token)).await), Code::InvalidArgument);
    assert_eq!(code(plane.ask(&csr[..100], 0, Some(&token)).await), Code::InvalidArgument);
    assert!(plane.metric("citadel_server_csr_sign_err_count{error=\"TTL_ERROR\"} 1").await);
    assert!(plane.metric("citadel_server_csr_sign_err_count{error=\"CSR_ERROR\"} 2").await);
    let other = prost_types::Value { kind: Some(prost_types::value::Kind::StringValue(ME.to_owned())) };
    let metadata =
        prost_types::Struct { fields: [("ImpersonatedIdentity".to_owned(), other)].into_iter().collect() };
    let request = CertificateRequest { metadata: Some(metadata), ..request(&csr, 0) };
    let channel = connect(plane.secure, &plane.root().unwrap(), None).await.unwrap();
    assert_eq!(code(create_certificate(channel, request, Some(&token)).await), Code::Unauthenticated);
}

#[tokio::test]
async fn an_issuer_may_change_its_keys() {
    let plane = Plane::start(&[]).await.unwrap();
    let (csr, _) = signing_request(ME).unwrap();
    assert!(plane.ask(&csr, 0, Some(&plane.token("cart").unwrap())).await.is_ok());
    let next = TokenIssuer::new().unwrap();
    std::fs::write(plane.scratch.path().join("keys.json"), next.keys("two")).unwrap();
    let token = next.token("two", &claims("cart")).unwrap();
    until("the new key is known", || async { plane.ask(&csr, 0, Some(&token)).await.is_ok() }).await;
    assert_eq!(code(plane.ask(&csr, 0, Some(&plane.token("cart").unwrap())).await), Code::Unauthenticated);
}

#[tokio::test]
async fn an_issuer_that_tells_where_its_keys_are_is_good_for_certificates_only() {
    let (at, issuer) = (free_address().unwrap(), TokenIssuer::new().unwrap());
    let name = format!("http://{at}");
    let page = json!({"issuer": name, "jwks_uri": format!("{name}/keys")}).to_string();
    let serves = [("/.well-known/openid-configuration", page), ("/keys", issuer.keys("one"))];
    let serves = serves.map(|(path, text)| (path.to_owned(), text)).into_iter().collect();
    let backend = Backend { at, delay: Duration::ZERO, fail: None, tcp: false, tls: false, serves };
    let _issuer = Backends::start(&[("issuer".to_owned(), backend)].into(), None).await.unwrap();
    let plane = Plane::start(&[("TOKEN_ISSUER", &name), ("AUDIENCE", "mesh")]).await.unwrap();
    let (csr, _) = signing_request(ME).unwrap();
    let mut claims = claims("cart");
    claims["iss"] = json!(name);
    let token = |claims: &Value| issuer.token("one", claims).unwrap();
    assert_eq!(
        code(plane.ask(&csr, 0, Some(&token(&claims))).await),
        Code::Unauthenticated,
        "for another audience"
    );
    claims["aud"] = json!(["mesh"]);
    assert!(plane.ask(&csr, 0, Some(&token(&claims))).await.is_ok());
    assert_eq!(with_token(&plane, &token(&claims)).await, Err(Code::Unauthenticated));
    assert!(
        with_token(&plane, &plane.token("cart").unwrap()).await.unwrap() > 0,
        "JWT_RULE is good for both"
    );
}

/// The clusters of a proxy that comes with a token.
async fn with_token(plane: &Plane, token: &str) -> Result<usize, Code> {
    let channel = connect(plane.secure, &plane.root().unwrap(), None).await.unwrap();
    let mut stream = Stream::<Delta>::open_as(channel, Some(token)).await.unwrap();
    stream.send(subscribe("cart"));
    stream.next().await.unwrap().map(|response| response.resources.len()).map_err(|status| status.code())
}

#[tokio::test]
async fn our_own_authority_outlives_the_server() {
    let mut first = Plane::start(&[]).await.unwrap();
    let own = first.certified("cart").await.unwrap();
    let root = first.root().unwrap();
    assert!(first.server.process.terminate().await.unwrap().success());
    let Plane { scratch, .. } = first;
    let second = Plane::start_in(scratch, &["--tls-min-version=1.3"], &[]).await.unwrap();
    assert_eq!(second.root().unwrap(), root);
    let channel = connect(second.secure, &root, Some(&own)).await.unwrap();
    let (csr, _) = signing_request(ME).unwrap();
    assert!(
        create_certificate(channel, request(&csr, 0), None).await.is_ok(),
        "what it signed before is still good"
    );
}

fn subscribe(account: &str) -> DeltaDiscoveryRequest {
    let text = |text: &str| prost_types::Value {
        kind: Some(prost_types::value::Kind::StringValue(text.to_owned())),
    };
    let mut node = node("cart");
    let fields = [("SERVICE_ACCOUNT".to_owned(), text(account)), ("NAMESPACE".to_owned(), text("default"))];
    node.metadata = Some(prost_types::Struct { fields: fields.into_iter().collect() });
    DeltaDiscoveryRequest {
        type_url: TypeUrl::Cluster.as_str().to_owned(),
        node: Some(node),
        ..DeltaDiscoveryRequest::default()
    }
}

async fn clusters(plane: &Plane, own: Option<&Certified>, account: &str) -> Result<usize, Code> {
    let channel = connect(plane.secure, &plane.root().unwrap(), own).await.unwrap();
    let mut stream = Stream::<Delta>::open_on(channel).await.unwrap();
    stream.send(subscribe(account));
    stream.next().await.unwrap().map(|response| response.resources.len()).map_err(|status| status.code())
}

#[tokio::test]
async fn proxies_are_served_as_who_they_are() {
    let plane = Plane::start(&[]).await.unwrap();
    let own = plane.certified("cart").await.unwrap();
    assert!(clusters(&plane, Some(&own), "cart").await.unwrap() > 0);
    assert!(clusters(&plane, Some(&own), "").await.unwrap() > 0, "who does not say more is in its namespace");
    assert_eq!(clusters(&plane, Some(&own), "admin").await, Err(Code::PermissionDenied));
    assert_eq!(clusters(&plane, None, "cart").await, Err(Code::Unauthenticated));
    let stranger = Plane::start(&[]).await.unwrap().certified("cart").await.unwrap();
    let channel = connect(plane.secure, &plane.root().unwrap(), Some(&stranger)).await;
    let refused = match channel {
        Err(_) => true,
        Ok(channel) => Stream::<Delta>::open_on(channel).await.is_err(),
    };
    assert!(refused, "a certificate of another authority ends the handshake");

    let mut plain = Stream::<StateOfTheWorld>::open(plane.server.grpc).await.unwrap();
    plain.send(DiscoveryRequest {
        type_url: TypeUrl::Cluster.as_str().to_owned(),
        node: Some(node("anybody")),
        ..DiscoveryRequest::default()
    });
    assert!(plain.next().await.unwrap().is_ok(), "on the plain port nobody is asked");
}

#[tokio::test]
async fn switches_are_istios() {
    let lax = Plane::start(&[("XDS_AUTH", "false")]).await.unwrap();
    assert!(clusters(&lax, None, "cart").await.unwrap() > 0);
    let (csr, _) = signing_request(ME).unwrap();
    assert_eq!(
        code(lax.ask(&csr, 0, Some(&lax.token("cart").unwrap())).await),
        Code::Unauthenticated,
        "nobody is known"
    );

    let unchecked = Plane::start(&[("PILOT_ENABLE_XDS_IDENTITY_CHECK", "false")]).await.unwrap();
    let own = unchecked.certified("cart").await.unwrap();
    assert!(clusters(&unchecked, Some(&own), "admin").await.unwrap() > 0);

    let strict = Plane::start(&[("XDS_AUTH_PLAINTEXT", "true")]).await.unwrap();
    let mut plain = Stream::<StateOfTheWorld>::open(strict.server.grpc).await.unwrap();
    plain.send(DiscoveryRequest { node: Some(node("anybody")), ..DiscoveryRequest::default() });
    assert_eq!(plain.next().await.unwrap().unwrap_err().code(), Code::Unauthenticated);

    let mesh = tempfile::tempdir().unwrap();
    let file = mesh.path().join("mesh.yaml");
    std::fs::write(&file, "trustDomain: shop.example\n").unwrap();
    let flag = format!("--meshConfig={}", file.display());
    let named = Plane::start_in(tempfile::tempdir().unwrap(), &[&flag], &[]).await.unwrap();
    let own = named.certified("cart").await.unwrap();
    assert_eq!(identities(&own.chain, &named.root().unwrap()), ["spiffe://shop.example/ns/default/sa/cart"]);
}

#[tokio::test]
async fn garbage_and_silence_hurt_nobody() {
    let plane = Plane::start(&[]).await.unwrap();
    let own = plane.certified("cart").await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..50 {
        silent.push(TcpStream::connect(plane.secure).await.unwrap());
    }
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0x16, 3, 1, 255, 255],
        &[0; 70_000],
    ] {
        let mut stream = TcpStream::connect(plane.secure).await.unwrap();
        // It may be cut off meanwhile.
        let _cut = stream.write_all(garbage).await;
        let _cut = stream.shutdown().await;
        let mut answer = Vec::new();
        let _cut = stream.read_to_end(&mut answer).await;
        assert!(answer.len() < 100, "at most an alert");
    }
    assert!(clusters(&plane, Some(&own), "cart").await.unwrap() > 0);
    drop(silent);
}

fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "Acme");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// A company's root, which makes authorities for meshes.
struct Company {
    root: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Company {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let root = authority("root").self_signed(&key).unwrap().pem();
        Self { root, issuer: Issuer::new(authority("root"), key) }
    }

    /// An authority below it, in files of these names: certificate, key, chain and root.
    fn plug_in(&self, folder: &Path, name: &str, files: [&str; 4]) -> String {
        std::fs::create_dir_all(folder).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = authority(name).signed_by(&key, &self.issuer).unwrap().pem();
        let texts = [certificate.clone(), key.serialize_pem(), certificate.clone(), self.root.clone()];
        for (file, text) in files.iter().zip(texts) {
            std::fs::write(folder.join(file), text).unwrap();
        }
        certificate
    }
}

const ISTIOS: [&str; 4] = ["ca-cert.pem", "ca-key.pem", "cert-chain.pem", "root-cert.pem"];
const KUBERNETES: [&str; 4] = ["tls.crt", "tls.key", "tls.crt", "ca.crt"];

async fn issued(plane: &Plane, root: &str) -> Vec<String> {
    let channel = connect(plane.secure, root, None).await.unwrap();
    let (csr, _) = signing_request(ME).unwrap();
    create_certificate(channel, request(&csr, 0), Some(&plane.token("cart").unwrap())).await.unwrap()
}

#[tokio::test]
async fn an_authority_of_others_is_used_in_both_layouts_and_followed() {
    for files in [ISTIOS, KUBERNETES] {
        let (scratch, company) = (tempfile::tempdir().unwrap(), Company::new());
        let folder = scratch.path().join("etc/cacerts");
        let first = company.plug_in(&folder, "first", files);
        let plane = Plane::start_in(scratch, &[], &[]).await.unwrap();
        let texts = issued(&plane, &company.root).await;
        assert_eq!(texts.len(), 3);
        assert_eq!(texts[1].replace("\r\n", "\n"), first.replace("\r\n", "\n"));
        assert_eq!(texts[2], company.root);
        assert_eq!(identities(&texts[..2].concat(), &company.root), [ME]);
        assert!(!plane.scratch.path().join("var/lib/pilot/ca").exists(), "none of our own is made");
        assert!(!plane.metric("citadel_server_cert_chain_expiry_timestamp 0").await);

        let second = company.plug_in(&folder, "second", files);
        until("the new authority signs", || async { issued(&plane, &company.root).await[1] == second }).await;

        Company::new().plug_in(&folder, "third", files);
        until("it is told", || async { plane.server.process.output().contains("ISTIO_MULTIROOT_MESH") })
            .await;
        assert_eq!(issued(&plane, &company.root).await[2], company.root, "nobody would trust what it signs");
    }
}

/// Runs OpenSSL in a folder, and tells what it printed.
fn openssl(folder: &Path, line: &str) -> String {
    let output =
        std::process::Command::new("openssl").args(line.split(' ')).current_dir(folder).output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "openssl {line}: {text}");
    text
}

#[tokio::test]
async fn openssl_makes_the_authority_and_agrees_with_what_it_signs() {
    if let Some(why) = Tools::of_environment().why_skip_openssl() {
        eprintln!("skipped: {why}");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("etc/cacerts");
    std::fs::create_dir_all(&folder).unwrap();
    let extensions = "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign,cRLSign\n\
                      subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n";
    std::fs::write(folder.join("ca.ext"), extensions).unwrap();
    for line in [
        "req -x509 -newkey rsa:2048 -nodes -days 30 -subj /O=Acme/CN=Root -addext keyUsage=critical,keyCertSign,cRLSign -keyout root-key.pem -out root-cert.pem",
        "req -newkey rsa:2048 -nodes -subj /O=Acme/CN=Mesh -keyout key.pem -out ca.csr",
        "x509 -req -in ca.csr -CA root-cert.pem -CAkey root-key.pem -CAcreateserial -days 20 -extfile ca.ext -out ca-cert.pem",
        // The form in which Istio itself keeps keys.
        "rsa -in key.pem -traditional -out ca-key.pem",
    ] {
        openssl(&folder, line);
    }
    std::fs::copy(folder.join("ca-cert.pem"), folder.join("cert-chain.pem")).unwrap();
    let root = std::fs::read_to_string(folder.join("root-cert.pem")).unwrap();
    let plane = Plane::start_in(scratch, &[], &[]).await.unwrap();
    let texts = issued(&plane, &root).await;
    for (name, text) in ["leaf", "between", "root"].iter().zip(&texts) {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let verified = openssl(&folder, "verify -x509_strict -CAfile root -untrusted between leaf");
    assert_eq!(verified.trim(), "leaf: OK");
    let told = openssl(&folder, "x509 -in leaf -noout -text");
    assert!(told.contains(&format!("URI:{ME}")), "{told}");
    assert!(told.contains("Digital Signature, Key Encipherment"), "{told}");

    // As Istio's agent asks: with RSA, and with a common name where old servers need one.
    openssl(&folder, "req -new -newkey rsa:2048 -nodes -subj /CN=anything -keyout own.key -out own.csr");
    let csr = std::fs::read_to_string(folder.join("own.csr")).unwrap();
    let channel = connect(plane.secure, &root, None).await.unwrap();
    let texts =
        create_certificate(channel, request(&csr, 0), Some(&plane.token("cart").unwrap())).await.unwrap();
    std::fs::write(folder.join("own"), &texts[0]).unwrap();
    let subject = openssl(&folder, "x509 -in own -noout -subject -nameopt multiline");
    assert!(subject.contains(ME) && !subject.contains("anything"), "{subject}");
}

#[tokio::test]
async fn a_start_without_a_certificate_says_what_to_do() {
    let secure = format!("--secureGRPCAddr={}", free_address().unwrap());
    let ends = async |scratch: &Path, more: &[&str], env: &[(&str, &str)]| {
        let more: Vec<&str> = more.iter().copied().chain([secure.as_str()]).collect();
        let Err(error) = PilotServer::start_in(scratch, &more, env).await else {
            panic!("it must not start")
        };
        let text = format!("{error:#}");
        assert!(text.contains("exit status: 1"), "{text}");
        text
    };
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("etc/cacerts");
    Company::new().plug_in(&folder, "half", ISTIOS);
    std::fs::remove_file(folder.join("root-cert.pem")).unwrap();
    let text = ends(scratch.path(), &[], &[]).await;
    assert!(text.contains("ca-cert.pem but not root-cert.pem"), "{text}");
    std::fs::write(folder.join("root-cert.pem"), Company::new().root).unwrap();
    let text = ends(scratch.path(), &[], &[]).await;
    assert!(text.contains("check that the chain leads to the root"), "{text}");

    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("file"), "").unwrap();
    let text = ends(scratch.path(), &[], &[("SELF_SIGNED_CA_DIR", "file/ca")]).await;
    assert!(text.contains("file/ca") && text.contains("--secureGRPCAddr="), "{text}");
    let text = ends(scratch.path(), &["--tlsCertFile=a"], &[]).await;
    assert!(text.contains("go together"), "{text}");
    let text = ends(scratch.path(), &[], &[("JWT_RULE", "{}")]).await;
    assert!(text.contains("JWT_RULE") && text.contains("issuer"), "{text}");
}

#[tokio::test]
async fn a_certificate_of_others_is_shown_and_its_root_believed() {
    let (scratch, company) = (tempfile::tempdir().unwrap(), Company::new());
    let leaf = |name: &str, names: Vec<String>| {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(names).unwrap().signed_by(&key, &company.issuer).unwrap().pem();
        std::fs::write(scratch.path().join(format!("{name}.pem")), &certificate).unwrap();
        std::fs::write(scratch.path().join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
        Certified { chain: certificate, key: key.serialize_pem() }
    };
    leaf("server", vec!["istiod.istio-system.svc".to_owned()]);
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![rcgen::SanType::URI(ME.try_into().unwrap())];
    let key = KeyPair::generate().unwrap();
    let chain = params.signed_by(&key, &company.issuer).unwrap().pem();
    let own = Certified { chain, key: key.serialize_pem() };
    std::fs::write(scratch.path().join("root.pem"), &company.root).unwrap();
    let flags = ["--tlsCertFile=server.pem", "--tlsKeyFile=server-key.pem", "--caCertFile=root.pem"];
    let plane = Plane::start_in(scratch, &flags, &[]).await.unwrap();
    let channel = connect(plane.secure, &company.root, Some(&own)).await.unwrap();
    let (csr, _) = signing_request(ME).unwrap();
    let texts = create_certificate(channel, request(&csr, 0), None).await.unwrap();
    assert_eq!(
        identities(&texts[0], &plane.root().unwrap()),
        [ME],
        "who comes with another root is certified by ours"
    );
}

#[tokio::test]
async fn connections_end_well() {
    let mut plane = Plane::start(&[]).await.unwrap();
    let own = plane.certified("cart").await.unwrap();
    let channel = connect(plane.secure, &plane.root().unwrap(), Some(&own)).await.unwrap();
    let mut stream = Stream::<Delta>::open_on(channel).await.unwrap();
    stream.send(subscribe("cart"));
    assert!(stream.next().await.unwrap().is_ok());
    let (status, next) = tokio::join!(plane.server.process.terminate(), stream.next());
    assert!(status.unwrap().success());
    assert_eq!(next.unwrap().unwrap_err().code(), Code::Unavailable);
}
