//! Our agent and our server together, as programs, with real Envoys: configuration over the relay, certificates, mutual TLS.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::time::Duration;

use hyper_util::rt::TokioIo;
use pilot_envoy_api::envoy::service::discovery::v3::DiscoveryRequest;
use pilot_testkit::agent::{PilotAgent, Place};
use pilot_testkit::http_call;
use pilot_testkit::plane::Plane;
use pilot_testkit::process::free_address;
use pilot_testkit::shop::{self, Shop, Wire};
use pilot_testkit::tools::Tools;
use pilot_testkit::xds_client::{StateOfTheWorld, Stream, node};
use pilot_xds::TypeUrl;
use serde_json::Value;
use tokio::net::UnixStream;
use tonic::transport::Endpoint;

/// Filters that only Istio's own Envoy has are left out.
const STOCK: [(&str, &str); 2] =
    [("PILOT_ENABLE_ALPN_FILTER", "false"), ("PILOT_ENABLE_METADATA_EXCHANGE", "false")];

fn tools() -> Option<Tools> {
    let tools = Tools::of_environment();
    if let Some(why) = tools.why_skip_envoy() {
        println!("skipped: {why}");
        return None;
    }
    Some(tools)
}

/// A shop, and our server with TLS.
struct Mesh {
    plane: Plane,
    shop: Shop,
}

impl Mesh {
    async fn open() -> Self {
        let plane = Plane::start(&STOCK).await.unwrap();
        let shop = Shop::open(&plane.server.config, Wire::Mutual, Duration::ZERO).await.unwrap();
        Self { plane, shop }
    }

    fn sidecar(&self, name: &'static str) -> Place {
        Place::new(name, self.plane.secure)
            .trusting(self.plane.root().unwrap(), self.plane.token(name).unwrap())
    }

    async fn flows(&self) -> bool {
        self.shop.ask("/").await.is_some()
    }
}

async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    shop::until(what, holds).await.unwrap();
}

#[tokio::test]
async fn two_sidecars_know_each_other_by_their_certificates() {
    let Some(tools) = tools() else { return };
    let mesh = Mesh::open().await;
    let mut cart = PilotAgent::start(&mesh.sidecar("cart"), &tools).unwrap();
    let mut web = PilotAgent::start(&mesh.sidecar("web"), &tools).unwrap();
    cart.ready().await.unwrap();
    web.ready().await.unwrap();
    until("the call arrives", || async { mesh.flows().await }).await;
    let told = format!("{:?}", mesh.shop.ask("/").await.unwrap().request);
    assert!(told.contains("URI=spiffe://cluster.local/ns/default/sa/web"), "{told}");

    let plain = http_call::get(mesh.shop.door, "/").await;
    assert!(
        plain.is_err() || plain.is_ok_and(|(status, _)| status != 200),
        "who shows nothing is not let in"
    );

    mesh.shop.trust("somebody-else").unwrap();
    until("a server with another name is not taken", || async { !mesh.flows().await }).await;
    mesh.shop.trust("cart").unwrap();
    until("it is taken again", || async { mesh.flows().await }).await;

    let metrics = web.metrics().await;
    assert!(metrics.contains("istio_agent_num_outgoing_requests{request_type=\"csr\"} 1"), "{metrics}");
    assert!(metrics.contains("istio_agent_cert_expiry_seconds{resource_name=\"default\"}"), "{metrics}");
    assert!(web.process.terminate().await.unwrap().success());
    assert!(cart.process.terminate().await.unwrap().success());
}

/// The number of the certificate that Envoy shows.
async fn serial(agent: &PilotAgent) -> Option<String> {
    let page: Value = serde_json::from_str(&agent.envoy("/certs").await).ok()?;
    let chains = page["certificates"].as_array()?.iter();
    let serial =
        chains.flat_map(|certificate| certificate["cert_chain"].as_array().into_iter().flatten()).next()?;
    Some(serial["serial_number"].as_str()?.to_owned())
}

#[tokio::test]
async fn certificates_are_renewed_before_they_end_and_calls_go_on() {
    let Some(tools) = tools() else { return };
    let mesh = Mesh::open().await;
    let output = |place: Place| {
        place.env("SECRET_TTL", "20s").env("SECRET_GRACE_PERIOD_RATIO", "0.9").env("OUTPUT_CERTS", "out")
    };
    let mut cart = PilotAgent::start(&output(mesh.sidecar("cart")), &tools).unwrap();
    let mut web = PilotAgent::start(&output(mesh.sidecar("web")), &tools).unwrap();
    cart.ready().await.unwrap();
    web.ready().await.unwrap();
    until("the call arrives", || async { mesh.flows().await }).await;
    let first = serial(&web).await.unwrap();
    let file = std::fs::read_to_string(web.file("out/cert-chain.pem")).unwrap();
    until("Envoy shows another certificate", || async {
        serial(&web).await.is_some_and(|serial| serial != first)
    })
    .await;
    assert!(mesh.flows().await);
    assert_ne!(std::fs::read_to_string(web.file("out/cert-chain.pem")).unwrap(), file);
}

#[tokio::test]
async fn names_of_the_control_plane_reach_the_dns_server() {
    let Some(tools) = tools() else { return };
    let mesh = Mesh::open().await;
    let port = free_address().unwrap().port();
    let named = format!(
        "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: named, namespace: default}}
spec:
  hosts: [named.example]
  addresses: [240.240.1.1]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{{number: {port}, name: http, protocol: HTTP}}]
  endpoints: [{{address: 127.0.3.3}}]
"
    );
    std::fs::write(mesh.plane.server.config.join("named.yaml"), named).unwrap();
    let dns = free_address().unwrap().to_string();
    let place = mesh.sidecar("web").env("ISTIO_META_DNS_CAPTURE", "true").env("DNS_PROXY_ADDR", &dns);
    let mut web = PilotAgent::start(&place, &tools).unwrap();
    web.ready().await.unwrap();
    until("the name is known", || async {
        let page = http_call::get(web.status, "/debug/ndsz").await;
        page.is_ok_and(|(_, text)| text.contains("named.example") && text.contains("240.240.1.1"))
    })
    .await;
}

#[tokio::test]
async fn configuration_survives_the_loss_of_the_control_plane() {
    let Some(tools) = tools() else { return };
    let mut mesh = Mesh::open().await;
    let mut cart = PilotAgent::start(&mesh.sidecar("cart"), &tools).unwrap();
    let kept = mesh.sidecar("web").env("PILOT_AGENT_XDS_SNAPSHOT", "true");
    let mut web = PilotAgent::start(&kept, &tools).unwrap();
    cart.ready().await.unwrap();
    web.ready().await.unwrap();
    until("the call arrives", || async { mesh.flows().await }).await;
    until("there is a snapshot", || async { web.file("proxy/xds-snapshot").exists() }).await;

    mesh.plane.server.process.kill().await.unwrap();
    let envoy = envoy_of(&web);
    kill(envoy);
    until("another Envoy is ready", || async {
        envoy_of(&web) != envoy && web.envoy("/ready").await.contains("LIVE")
    })
    .await;
    until("the call arrives without a control plane", || async { mesh.flows().await }).await;
    let metrics = web.metrics().await;
    assert!(metrics.contains("istio_agent_xds_snapshot_in_use 1"), "{metrics}");
    assert!(metrics.contains("istio_agent_xds_snapshot_age_seconds"), "{metrics}");
    assert!(web.process.output().contains("Envoy starts from the snapshot"), "{}", web.process.output());

    mesh.plane.restart(&STOCK).await.unwrap();
    mesh.shop.trust("somebody-else").unwrap();
    until("news arrive again", || async { !mesh.flows().await }).await;
    let metrics = web.metrics().await;
    assert!(metrics.contains("istio_agent_xds_snapshot_in_use 0"), "{metrics}");
}

#[tokio::test]
async fn an_agent_that_starts_without_its_control_plane_has_the_snapshot() {
    let Some(tools) = tools() else { return };
    let mut plane = Plane::start(&STOCK).await.unwrap();
    let shop = Shop::open(&plane.server.config, Wire::Plain, Duration::ZERO).await.unwrap();
    let place = |name| Place::new(name, plane.server.grpc).plain();
    let mut cart = PilotAgent::start(&place("cart"), &tools).unwrap();
    let dns = free_address().unwrap().to_string();
    let kept = place("web")
        .env("PILOT_AGENT_XDS_SNAPSHOT", "true")
        .env("ISTIO_META_DNS_CAPTURE", "true")
        .env("DNS_PROXY_ADDR", &dns);
    let mut web = PilotAgent::start(&kept, &tools).unwrap();
    cart.ready().await.unwrap();
    web.ready().await.unwrap();
    until("the call arrives", || async { shop.ask("/").await.is_some() }).await;
    let file = web.file("proxy/xds-snapshot");
    let holds = |text: &str| {
        let bytes = std::fs::read(&file).unwrap_or_default();
        bytes.windows(text.len()).any(|part| part == text.as_bytes())
    };
    let is_whole =
        || async { ["RouteConfiguration", "ClusterLoadAssignment", "NameTable"].iter().all(|t| holds(t)) };
    until("all is in the snapshot", is_whole).await;

    plane.server.process.kill().await.unwrap();
    let mut again = PilotAgent::start_in(web.kill().await.unwrap(), &kept, &tools).unwrap();
    again.ready().await.unwrap();
    until("the call arrives without a control plane", || async { shop.ask("/").await.is_some() }).await;

    let folder = again.kill().await.unwrap();
    let file = folder.path().join("proxy/xds-snapshot");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let damaged = PilotAgent::start_in(folder, &kept, &tools).unwrap();
    until("it is refused", || async {
        let output = damaged.process.output();
        output.contains("is damaged (its checksum is another) and is not used; remove it")
    })
    .await;
}

fn envoy_of(agent: &PilotAgent) -> u32 {
    let output = agent.process.output();
    let line = output.lines().rfind(|line| line.contains("Envoy started")).unwrap();
    line.split("pid=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

fn kill(pid: u32) {
    assert!(std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
}

/// An application that speaks xDS itself has its stream at the same socket.
#[tokio::test]
async fn another_client_and_an_envoy_share_an_agent() {
    let Some(tools) = tools() else { return };
    let mesh = Mesh::open().await;
    let mut web = PilotAgent::start(&mesh.sidecar("web"), &tools).unwrap();
    web.ready().await.unwrap();
    let socket = web.file("proxy/XDS");
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    });
    let channel = Endpoint::from_static("http://agent").connect_with_connector(connector).await.unwrap();
    let mut stream = Stream::<StateOfTheWorld>::open_on(channel).await.unwrap();
    stream.send(DiscoveryRequest {
        type_url: TypeUrl::Cluster.as_str().to_owned(),
        node: Some(node("library")),
        ..DiscoveryRequest::default()
    });
    assert!(!stream.next().await.unwrap().unwrap().resources.is_empty());
    assert!(
        !web.metrics().await.contains("istio_agent_envoy_connection_terminations{"),
        "Envoy kept its stream"
    );
}

/// As on virtual machines: the first certificate is brought along, and is the one that is renewed.
#[tokio::test]
async fn a_machine_without_a_token_is_known_by_its_certificate() {
    let Some(tools) = tools() else { return };
    let plane = Plane::start(&STOCK).await.unwrap();
    let own = plane.certified("web").await.unwrap();
    let mut place = Place::new("web", plane.secure)
        .env("PROV_CERT", "prov")
        .env("OUTPUT_CERTS", "prov")
        .env("ISTIOD_SAN", "istiod.istio-system.svc");
    place.files = vec![
        ("prov/cert-chain.pem", own.chain.clone()),
        ("prov/key.pem", own.key),
        ("prov/root-cert.pem", plane.root().unwrap()),
    ];
    let mut web = PilotAgent::start(&place, &tools).unwrap();
    web.ready().await.unwrap();
    let chain = web.file("prov/cert-chain.pem");
    until("a new certificate", || async { std::fs::read_to_string(&chain).unwrap() != own.chain }).await;
}

#[tokio::test]
async fn what_is_wrong_with_certificates_is_told() {
    let Some(tools) = tools() else { return };
    let plane = Plane::start(&STOCK).await.unwrap();
    let stranger = Plane::start(&STOCK).await.unwrap();
    let says = async |place: Place, words: &[&str]| {
        let mut agent = PilotAgent::start(&place, &tools).unwrap();
        let output = agent.file(&format!("{}.log", place.name));
        let said = || {
            let text = std::fs::read_to_string(&output).unwrap_or_default();
            let all = words.iter().all(|word| text.contains(word));
            async move { all }
        };
        agent.process.until("a message", said).await.unwrap();
    };
    let (root, token) = (plane.root().unwrap(), plane.token("web").unwrap());
    let wrong_root = Place::new("web", plane.secure).trusting(stranger.root().unwrap(), token.clone());
    says(wrong_root, &["no TLS with", "holds the root of the server"]).await;
    let wrong_token = Place::new("web", plane.secure).trusting(root.clone(), stranger.token("web").unwrap());
    says(wrong_token, &["no certificate: Unauthenticated", "stream to the control plane failed"]).await;
    let mut wrong_name = Place::new("web", plane.secure).trusting(root, token);
    wrong_name.env.retain(|(name, _)| *name != "ISTIOD_SAN");
    says(wrong_name, &["the server's certificate is for 127.0.0.1"]).await;

    let mut agent = PilotAgent::start(&Place::new("web", plane.secure), &tools).unwrap();
    let log = agent.file("web.log");
    let said = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        async move { text.contains("root-cert.pem, does not exist") }
    };
    // It ends by itself, which is what is waited for.
    let _ended = agent.process.until("a message", said).await;
    assert!(agent.process.output().contains("XDS_ROOT_CA"), "{}", agent.process.output());
}
