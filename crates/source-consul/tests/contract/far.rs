//! Consul in several datacenters, and behind TLS.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use pilot_model::Object;
use pilot_source::contract::{Follower, Mirror, Registered, RegistryRig as _, free_port};
use pilot_source_http::{ClientOptions, ServerAddress, TlsFiles};
use rcgen::{CertificateParams, IsCa, Issuer, KeyPair};

use crate::agent::{Agent, Consul, TOKEN, at, guarded, patient};

/// Host, locality and number of instances of each service.
fn told(mirror: &Mirror) -> Vec<String> {
    let each = |object: &Object| match object {
        Object::ServiceEntry(config) => {
            let spec = &config.spec;
            let locality = spec.endpoints.first().map(|one| one.locality.to_string()).unwrap_or_default();
            let hosts: Vec<&str> = spec.hosts.iter().map(pilot_base::Host::as_str).collect();
            Some(format!("{} {locality} {}", hosts.join(","), spec.endpoints.len()))
        }
        _ => None,
    };
    mirror.objects().filter_map(each).collect()
}

async fn in_datacenter(datacenter: &'static str) -> Option<Consul> {
    let http = free_port();
    let client = patient(at(SocketAddr::from(([127, 0, 0, 1], http)), TOKEN));
    Consul::start_as(Agent { datacenter, settings: vec![format!("ports {{ http = {http} }}")], http, client })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_datacenter_is_a_source_of_its_own_and_one_agent_is_asked_for_all() {
    let Some(mut near) = in_datacenter("dc1").await else { return };
    let Some(mut far) = in_datacenter("dc2").await else { return };
    near.ask(&format!("/v1/agent/join/127.0.0.1:{}?wan=true", far.wan), "").await;
    let client = near.client.clone();
    let reached = || async {
        let page = client.page("/v1/catalog/nodes?dc=dc2", std::time::Duration::ZERO).await;
        page.is_ok_and(|answer| answer.body.len() > 4)
    };
    near.server.until("the other datacenter is reached", reached).await;
    near.register(&Registered::new("shop", "near-1", 8080)).await;
    far.register(&Registered::new("shop", "far-1", 8080)).await;
    far.register(&Registered::new("shop", "far-2", 8080)).await;
    let asked = patient(at(near.address, TOKEN));
    let mut here = Follower::start(near.follow_at(asked.clone(), "dc1"));
    let mut there = Follower::start(near.follow_at(asked, "dc2"));
    here.until("what is near", |mirror| told(mirror) == ["shop.service.consul dc1 1"]).await;
    there
        .until("what is far", |mirror| told(mirror) == ["shop.service.consul,shop.service.dc2.consul dc2 2"])
        .await;
    far.deregister(&Registered::new("shop", "far-2", 8080)).await;
    there
        .until("a change far away", |mirror| {
            told(mirror) == ["shop.service.consul,shop.service.dc2.consul dc2 1"]
        })
        .await;
    // One that is cut off keeps what it said, and the other one goes on.
    far.server.stop().await;
    there.until("that it is away", |mirror| !mirror.issues.is_empty()).await;
    assert_eq!(
        told(&there.mirror),
        ["shop.service.consul,shop.service.dc2.consul dc2 1"],
        "a loss empties nothing"
    );
    near.register(&Registered::new("shop", "near-2", 8081)).await;
    here.until("a change nearby", |mirror| told(mirror) == ["shop.service.consul dc1 2"]).await;
    assert!(here.mirror.issues.is_empty(), "{:?}", here.mirror.issues);
    here.stop().await;
    there.stop().await;
}

/// A root, and certificates that it signed: Consul's, ours, and one of a stranger's.
struct Certificates {
    root: PathBuf,
    server: (PathBuf, PathBuf),
    own: (PathBuf, PathBuf),
}

fn certificates(folder: &Path) -> Certificates {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let write = |name: String, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let signed = |name: &str, hosts: &[&str]| {
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let certificate = CertificateParams::new(hosts).unwrap().signed_by(&key, &issuer).unwrap();
        (write(format!("{name}.pem"), certificate.pem()), write(format!("{name}.key"), key.serialize_pem()))
    };
    let server = signed("server", &["127.0.0.1", "localhost", "server.dc1.consul"]);
    let own = signed("own", &["pilot"]);
    Certificates { root: write("root.pem".to_owned(), root.pem()), server, own }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consul_behind_tls_wants_a_certificate_and_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let Certificates { root, server, own } = certificates(folder.path());
    let https = free_port();
    let settings = vec![
        guarded(),
        format!("ports {{ http = -1 https = {https} }}"),
        format!(
            "tls {{ https {{ ca_file = {:?} cert_file = {:?} key_file = {:?} verify_incoming = true }} }}",
            root, server.0, server.1
        ),
    ];
    let asked = |tls: TlsFiles, token: &str| {
        let servers = vec![ServerAddress::parse(&format!("https://localhost:{https}")).unwrap()];
        let plain = at(SocketAddr::from(([127, 0, 0, 1], https)), token);
        patient(ClientOptions { servers, tls, ..plain })
    };
    let trusted = TlsFiles { roots: Some(root), own: Some(own) };
    let client = asked(trusted.clone(), TOKEN);
    let agent = Agent { datacenter: "dc1", settings, http: https, client: client.clone() };
    let Some(mut consul) = Consul::start_as(agent).await else { return };
    consul.register(&Registered::new("shop", "shop-1", 8080)).await;
    let mut follower = Follower::start(consul.follow_at(client, "dc1"));
    follower.until("a service", |mirror| told(mirror) == ["shop.service.consul dc1 1"]).await;
    follower.stop().await;
    let wrong = "99999999-2222-3333-4444-555555555555";
    let nobody = TlsFiles { own: None, ..trusted.clone() };
    let distrusting = TlsFiles { roots: None, ..trusted.clone() };
    for (tls, token) in [(nobody, TOKEN), (distrusting, TOKEN), (trusted, wrong)] {
        let mut follower = Follower::start(consul.follow_at(asked(tls, token), "dc1"));
        follower.until("a refusal", |mirror| !mirror.issues.is_empty()).await;
        let issue = follower.mirror.issues.values().flatten().next().unwrap().to_string();
        assert!(!follower.mirror.ready && !issue.contains(token), "{issue}");
        follower.stop().await;
    }
}
