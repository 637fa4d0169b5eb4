//! Keys of token issuers, fetched by the server from servers that change them, go away and come back.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
use pilot_testkit::backend::Backends;
use pilot_testkit::certificates::Certificates;
use pilot_testkit::http_call;
use pilot_testkit::process::free_address;
use pilot_testkit::scenario::Backend;
use pilot_testkit::server::PilotServer;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream, node};
use pilot_xds::TypeUrl;

/// Part of the key that is sent where there are none.
const NOBODYS: &str = "0xObjM0UvS_oaazjpEYl";

fn keys(name: &str) -> String {
    format!(r#"{{"keys": [{{"kty": "oct", "kid": "{name}", "k": "aGVsbG8"}}]}}"#)
}

fn policy(uri: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: tokens, namespace: istio-system}}\n\
         spec: {{jwtRules: [{{issuer: issuer.example.com, jwksUri: \"{uri}\"}}]}}\n"
    )
}

fn issuer(at: SocketAddr, name: &str, certificates: Option<&Certificates>) -> BTreeMap<String, Backend> {
    let serves = BTreeMap::from([("/keys".to_owned(), keys(name))]);
    let tls = certificates.is_some();
    let backend = Backend { at, delay: Duration::ZERO, fail: None, tcp: false, tls, serves };
    BTreeMap::from([("issuer".to_owned(), backend)])
}

/// What a workload is told about its own traffic.
async fn listeners(server: &PilotServer) -> String {
    let mut stream = Stream::<StateOfTheWorld>::open(server.grpc).await.unwrap();
    stream.send(DiscoveryRequest {
        type_url: TypeUrl::Listener.as_str().to_owned(),
        node: Some(node("asks-for-keys")),
        ..DiscoveryRequest::default()
    });
    let response = stream.next().await.unwrap().unwrap();
    let bytes: Vec<u8> = response.resources.iter().flat_map(|any| any.value.clone()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn until_told(server: &PilotServer, text: &str) {
    for _ in 0..100 {
        if listeners(server).await.contains(text) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{text} was not sent within ten seconds");
}

async fn issues(server: &PilotServer) -> String {
    http_call::get(server.http, "/debug/issues").await.unwrap().1
}

async fn until_issues(server: &PilotServer, there: &str, are: impl Fn(&str) -> bool) {
    for _ in 0..100 {
        if are(&issues(server).await) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("issues are still not {there}: {}", issues(server).await);
}

#[tokio::test]
async fn keys_are_followed_and_kept_while_their_server_is_gone() {
    let scratch = tempfile::tempdir().unwrap();
    let at = free_address().unwrap();
    let first = Backends::start(&issuer(at, "first", None), None).await.unwrap();
    std::fs::create_dir_all(scratch.path().join("config")).unwrap();
    let file = scratch.path().join("config/policy.yaml");
    std::fs::write(&file, policy(&format!("http://{at}/keys"))).unwrap();
    let often = [("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL", "1s")];
    let server = PilotServer::start_in(scratch.path(), &[], &often).await.unwrap();
    let told = listeners(&server).await;
    assert!(told.contains("first"), "whoever is served at all is told the keys");
    assert!(!told.contains(NOBODYS));

    drop(first);
    until_issues(&server, "told", |all| {
        all.contains("spec.jwtRules[0].jwksUri") && all.contains("still used")
    })
    .await;
    assert!(listeners(&server).await.contains("first"), "the last keys are kept");

    let second = Backends::start(&issuer(at, "second", None), None).await.unwrap();
    until_told(&server, "second").await;
    until_issues(&server, "well again", |all| !all.contains("jwksUri")).await;
    assert!(!listeners(&server).await.contains("first"));

    let nowhere = free_address().unwrap();
    std::fs::write(&file, policy(&format!("http://{nowhere}/keys"))).unwrap();
    until_told(&server, NOBODYS).await;
    until_issues(&server, "told", |all| all.contains("are refused meanwhile")).await;
    drop(second);
}

#[tokio::test]
async fn servers_of_keys_are_believed_by_their_certificate() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("certs");
    let certificates = Certificates::create(&folder).unwrap();
    let at = free_address().unwrap();
    let _issuer =
        Backends::start(&issuer(at, "over-tls", Some(&certificates)), Some(&certificates)).await.unwrap();
    std::fs::create_dir_all(scratch.path().join("config")).unwrap();
    let uri = format!("https://localhost:{}/keys", at.port());
    std::fs::write(scratch.path().join("config/policy.yaml"), policy(&uri)).unwrap();
    let ca = folder.join("ca.pem").display().to_string();
    let roots = ("SSL_CERT_FILE", ca.as_str());

    let server = PilotServer::start_in(scratch.path(), &[], &[roots]).await.unwrap();
    assert!(listeners(&server).await.contains("over-tls"));

    let server = PilotServer::start_in(scratch.path(), &[], &[]).await.unwrap();
    assert!(listeners(&server).await.contains(NOBODYS), "nobody vouches for the server");

    let blocked = [roots, ("BLOCKED_CIDRS_IN_JWKS_URIS", "10.0.0.0/8,127.0.0.0/8,::1/128")];
    let server = PilotServer::start_in(scratch.path(), &[], &blocked).await.unwrap();
    assert!(listeners(&server).await.contains(NOBODYS));
    assert!(issues(&server).await.contains("BLOCKED_CIDRS_IN_JWKS_URIS"));
}

#[tokio::test]
async fn a_start_that_waits_for_keys_ends_when_it_is_told_to() {
    let scratch = tempfile::tempdir().unwrap();
    let issuer = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    std::fs::create_dir_all(scratch.path().join("config")).unwrap();
    let policy = policy(&format!("http://{}/keys", issuer.local_addr().unwrap()));
    let patient = policy.replace("jwksUri", "timeout: 60s, jwksUri");
    std::fs::write(scratch.path().join("config/policy.yaml"), patient).unwrap();
    let mut server = PilotServer::launch_in(scratch.path(), &[], &[]).unwrap();
    // Whoever asks is not answered.
    let _asking = issuer.accept().await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), server.process.terminate()).await;
    let status = ended.expect("it does not wait for the keys, which would be ten seconds").unwrap();
    assert!(status.success(), "{}", server.process.output());
}
