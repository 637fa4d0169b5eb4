//! People look into the server: over xDS, as istioctl does, and over HTTP.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::path::Path;

use pilot_envoy_api::envoy::admin::v3::{ClustersConfigDump, RoutesConfigDump};
use pilot_envoy_api::envoy::config::core::v3::Node;
use pilot_envoy_api::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use pilot_envoy_api::envoy::service::status::v3::{ClientConfig, ConfigStatus};
use pilot_envoy_api::from_any;
use pilot_testkit::http_call;
use pilot_testkit::identity::connect;
use pilot_testkit::plane::{Plane, claims};
use pilot_testkit::xds_client::{StateOfTheWorld, Stream, node};
use pilot_xds::TypeUrl;
use prost_types::{Struct, Value, value::Kind};
use serde_json::json;
use tonic::{Code, Status};

const ENTRY: &str = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a, namespace: default}\n\
    spec: {hosts: [a.example], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.1.0.1}]}\n";

async fn start(env: &[(&str, &str)]) -> Plane {
    let scratch = tempfile::tempdir().unwrap();
    write(scratch.path());
    Plane::start_in(scratch, &[], env).await.unwrap()
}

fn write(scratch: &Path) {
    std::fs::create_dir_all(scratch.join("config")).unwrap();
    std::fs::write(scratch.join("config/a.yaml"), ENTRY).unwrap();
}

/// A proxy with settings of its own, as agents send them.
fn sidecar(name: &str) -> Node {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let config = Value { kind: Some(Kind::StructValue(Struct::default())) };
    let fields = [("PROXY_CONFIG", config), ("ISTIO_VERSION", text("1.30.0")), ("CLUSTER_ID", text("far"))];
    let fields = fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Node { metadata: Some(Struct { fields }), ..node(name) }
}

/// Connects a proxy that accepts everything it asks for but its routes.
async fn proxy(plane: &Plane) -> Stream<StateOfTheWorld> {
    let mut stream = Stream::<StateOfTheWorld>::open(plane.server.grpc).await.unwrap();
    let ask = |type_url: TypeUrl, names: &[&str]| DiscoveryRequest {
        node: Some(sidecar("web-1")),
        type_url: type_url.as_str().to_owned(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DiscoveryRequest::default()
    };
    for (type_url, names) in [
        (TypeUrl::Cluster, &[][..]),
        (TypeUrl::Endpoint, &["outbound|80||a.example"]),
        (TypeUrl::Listener, &[]),
        (TypeUrl::Route, &["80"]),
    ] {
        stream.send(ask(type_url, names));
        let response = stream.next().await.unwrap().unwrap();
        assert_eq!(response.type_url, type_url.as_str());
        if type_url != TypeUrl::Route {
            let version_info = response.version_info;
            stream.send(DiscoveryRequest {
                response_nonce: response.nonce,
                version_info,
                ..ask(type_url, names)
            });
        }
    }
    stream
}

/// Asks as istioctl does, with a made-up nonce.
async fn ask(
    plane: &Plane,
    token: Option<&str>,
    type_url: &str,
    names: &[&str],
) -> Result<DiscoveryResponse, Status> {
    let channel = connect(plane.secure, &plane.root().unwrap(), None).await.unwrap();
    let mut stream = Stream::<StateOfTheWorld>::open_as(channel, token).await.unwrap();
    let resource_names = names.iter().map(|name| (*name).to_owned()).collect();
    let node =
        Node { id: "sidecar~1.2.3.4~test-1.default~default.svc.cluster.local".to_owned(), ..Node::default() };
    let response_nonce = "2026-11-19 20:00:00".to_owned();
    let type_url = type_url.to_owned();
    stream.send(DiscoveryRequest {
        node: Some(node),
        type_url,
        resource_names,
        response_nonce,
        ..Default::default()
    });
    let response = stream.next().await.unwrap()?;
    // Who says that it has arrived is not told again.
    let (type_url, response_nonce) = (response.type_url.clone(), response.nonce.clone());
    stream.send(DiscoveryRequest { type_url, response_nonce, ..Default::default() });
    assert!(stream.is_silent().await);
    Ok(response)
}

fn token_of(plane: &Plane, namespace: &str) -> String {
    let mut claims = claims("default");
    claims["sub"] = json!(format!("system:serviceaccount:{namespace}:default"));
    plane.issuer.token("one", &claims).unwrap()
}

fn text(response: &DiscoveryResponse) -> String {
    let [only] = &response.resources[..] else { panic!("one page was asked for") };
    assert_eq!(only.type_url, "istio.io/debug");
    String::from_utf8(only.value.clone()).unwrap()
}

#[tokio::test]
async fn istioctl_is_told_what_each_proxy_has() {
    let plane = start(&[("POD_NAME", "istiod-7")]).await;
    let _web = proxy(&plane).await;
    let admin = token_of(&plane, "istio-system");

    let told = ask(&plane, Some(&admin), "istio.io/debug/syncz", &[]).await.unwrap();
    let identifier = told.control_plane.unwrap().identifier;
    assert!(identifier.contains(r#""ID":"istiod-7""#) && identifier.contains(r#""Component":"istiod""#));
    let [client] = &told.resources[..] else { panic!("there is one proxy, and who asks is none") };
    let client: ClientConfig = from_any(client).unwrap();
    let node = client.node.unwrap();
    assert_eq!(node.id, "web-1.default");
    let metadata = format!("{:?}", node.metadata.unwrap());
    assert!(metadata.contains("1.30.0") && metadata.contains("far"), "{metadata}");
    let state = |t: TypeUrl| {
        let of = client.generic_xds_configs.iter().find(|config| config.type_url == t.as_str());
        of.map(|config| config.config_status())
    };
    assert_eq!(state(TypeUrl::Cluster), Some(ConfigStatus::Synced));
    assert_eq!(state(TypeUrl::Route), Some(ConfigStatus::Stale), "it was sent and not answered");
    assert_eq!(state(TypeUrl::ExtensionConfig), None, "nobody asked for it");

    let dump = ask(&plane, Some(&admin), "istio.io/debug/config_dump", &["web-1.default"]).await.unwrap();
    assert!(dump.control_plane.is_none());
    let clusters: ClustersConfigDump = dump.resources.iter().find_map(from_any).unwrap();
    assert!(clusters.dynamic_active_clusters.len() >= 3, "{clusters:?}");
    let routes: RoutesConfigDump = dump.resources.iter().find_map(from_any).unwrap();
    assert_eq!(routes.dynamic_route_configs.len(), 0, "what it has not accepted it does not have");
    let nobody = ask(&plane, Some(&admin), "istio.io/debug/config_dump", &["web-2.default"]).await.unwrap();
    assert_eq!(nobody.resources.len(), 0);

    let page =
        ask(&plane, Some(&admin), "istio.io/debug", &["config_dump?proxyID=web-1&types=eds"]).await.unwrap();
    assert!(text(&page).contains("10.1.0.1"), "{}", text(&page));
    let page = ask(&plane, Some(&admin), "istio.io/debug", &["nonsense"]).await.unwrap();
    assert_eq!(text(&page), "404 page not found\n");
    let page = ask(&plane, Some(&admin), "istio.io/debug", &["list"]).await.unwrap();
    assert!(text(&page).contains("\"syncz\""));
    let none = ask(&plane, Some(&admin), "istio.io/debug", &[]).await.unwrap_err();
    assert_eq!(none.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_namespace_sees_only_what_is_its_own() {
    let plane = start(&[("DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES", "watchers, more")]).await;
    let _web = proxy(&plane).await;
    let syncz = async |token: Option<&str>| ask(&plane, token, "istio.io/debug/syncz", &[]).await;
    assert_eq!(syncz(None).await.unwrap_err().code(), Code::Unauthenticated);
    for (namespace, proxies) in [("default", 1), ("elsewhere", 0), ("watchers", 1), ("more", 1)] {
        let told = syncz(Some(&token_of(&plane, namespace))).await.unwrap();
        assert_eq!(told.resources.len(), proxies, "{namespace}");
    }
    let own = token_of(&plane, "default");
    let dump = ask(&plane, Some(&own), "istio.io/debug", &["edsz?proxyID=web-1"]).await.unwrap();
    assert!(text(&dump).contains("10.1.0.1"));
    let other = token_of(&plane, "elsewhere");
    let dump = ask(&plane, Some(&other), "istio.io/debug", &["edsz?proxyID=web-1"]).await.unwrap();
    assert!(text(&dump).starts_with("Proxy not connected to this Pilot instance."));
    let refused = ask(&plane, Some(&own), "istio.io/debug", &["issues"]).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);

    // In plain text nobody can say who he is.
    let mut plain = Stream::<StateOfTheWorld>::open(plane.server.grpc).await.unwrap();
    plain.send(DiscoveryRequest { type_url: "istio.io/debug/syncz".to_owned(), ..Default::default() });
    assert_eq!(plain.next().await.unwrap().unwrap_err().code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_proxy_is_shown_in_envoys_form() {
    let plane = start(&[]).await;
    let _web = proxy(&plane).await;
    let get =
        async |page: &str| http_call::get(plane.server.monitoring, &format!("/debug/{page}")).await.unwrap();
    assert_eq!(
        get("config_dump").await,
        (400, "You must provide a proxyID in the query string\n".to_owned())
    );
    let (status, text) = get("config_dump?proxyID=nobody").await;
    assert_eq!(status, 404);
    assert_eq!(
        text,
        "Proxy not connected to this Pilot instance. It may be connected to another instance.\n"
    );
    let (status, text) = get("config_dump?proxyID=web-1.default-").await;
    assert_eq!(status, 200);
    let dump: serde_json::Value = serde_json::from_str(&text).unwrap();
    let types: Vec<_> =
        dump["configs"].as_array().unwrap().iter().map(|c| c["@type"].as_str().unwrap()).collect();
    let short: Vec<_> = types.iter().map(|t| t.rsplit_once('.').unwrap().1).collect();
    let all = [
        "BootstrapConfigDump",
        "ClustersConfigDump",
        "ListenersConfigDump",
        "ScopedRoutesConfigDump",
        "RoutesConfigDump",
        "SecretsConfigDump",
        "EcdsConfigDump",
    ];
    assert_eq!(short, all);
    let clusters = dump["configs"][1]["dynamicActiveClusters"].as_array().unwrap();
    let names: Vec<_> = clusters.iter().map(|c| c["cluster"]["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"outbound|80||a.example"), "{names:?}");
    assert!(!text.contains("unreadable") && !text.contains("10.1.0.1"), "{text}");
    let (_, text) = get("config_dump?proxyID=web-1&include_eds").await;
    assert!(text.contains("EndpointsConfigDump") && text.contains("10.1.0.1"));
}

#[tokio::test]
async fn pages_can_be_kept_off_http() {
    let plane = start(&[("ENABLE_DEBUG_ON_HTTP", "false")]).await;
    for port in [plane.server.http, plane.server.monitoring] {
        for page in ["/debug", "/debug/syncz"] {
            assert_eq!(http_call::get(port, page).await.unwrap().0, 404);
        }
    }
    assert_eq!(http_call::get(plane.server.http, "/ready").await.unwrap().0, 200);
    let admin = token_of(&plane, "istio-system");
    let page = ask(&plane, Some(&admin), "istio.io/debug", &["list"]).await.unwrap();
    assert!(text(&page).contains("\"syncz\""));
}
