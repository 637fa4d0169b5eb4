use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, HOST};
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::{AppProbes, Audience, Order, Scrape, Status, bind, serve};
use crate::Env;
use crate::exchange::{Limit, Protocol, Received, Sent, Target};
use crate::http_client::Question;
use crate::metrics::Metrics;
use crate::name_table::{NameInfo, NameTable};
use crate::node::ProxyType;
use crate::ready::tests::READY;
use crate::ready::{Condition, Readiness};

/// A status server and what stands behind it.
struct Stage {
    tasks: JoinSet<std::io::Result<()>>,
    port: u16,
    readiness: Arc<Readiness>,
    orders: mpsc::Receiver<Order>,
    names: watch::Sender<Option<Bytes>>,
}

/// Waits for a thing to be so, far longer than a busy machine needs and not for ever.
async fn until(what: &str, look: impl AsyncFn() -> bool) {
    for _ in 0..3_000 {
        if look().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("waited in vain for {what}");
}

impl Stage {
    async fn new(env: &Env, admin_port: u16, envoy_metrics: u16) -> Self {
        let listener = bind(0).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (orders_sender, orders) = mpsc::channel(2);
        let (names, receiver) = watch::channel(None);
        let conditions = vec![Condition::Names(receiver.clone())];
        let readiness = Arc::new(Readiness::new(Some(admin_port), conditions));
        let status = Status {
            readiness: Arc::clone(&readiness),
            orders: orders_sender,
            metrics: Arc::new(Metrics::new().unwrap()),
            metrics_for: Audience::Everybody,
            scrape: Scrape::read(env, ProxyType::Sidecar, (port, envoy_metrics)).unwrap(),
            probes: AppProbes::read(env, IpAddr::from([127, 0, 0, 1])).unwrap(),
            names: receiver,
            port,
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, status));
        Self { tasks, port, readiness, orders, names }
    }

    async fn ask(&self, method: Method, path: &str) -> (u16, String) {
        let url = format!("http://localhost:{}{path}", self.port);
        let question = Question { method, url, body: String::new(), timeout: Duration::from_secs(60) };
        let answer = question.ask().await.unwrap();
        (answer.status.as_u16(), answer.body)
    }

    async fn get(&self, path: &str, headers: HeaderMap) -> Received {
        let target =
            Target { host: "localhost".to_owned(), port: self.port, from: None, protocol: Protocol::Http1 };
        let sent = Sent {
            method: Method::GET,
            path: path.to_owned(),
            authority: format!("pod:{}", self.port),
            headers,
            body: Bytes::new(),
        };
        target.exchange(sent, Limit::Refuse(1 << 30)).await.unwrap()
    }
}

async fn application(tasks: &mut JoinSet<std::io::Result<()>>, router: Router) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tasks.spawn(async move { axum::serve(listener, router).await });
    port
}

fn closed_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn readiness_follows_envoy_and_the_names() {
    let mut envoy = JoinSet::new();
    let admin = application(&mut envoy, Router::new().route("/stats", get(|| async { READY }))).await;
    let stage = Stage::new(&Env::default(), admin, 0).await;
    let told = (503, "no table of names from the xDS server yet\n".to_owned());
    assert_eq!(stage.ask(Method::GET, "/healthz/ready").await, told);
    stage.names.send_replace(Some(Bytes::new()));
    assert_eq!(stage.ask(Method::GET, "/healthz/ready").await, (200, String::new()));
    envoy.shutdown().await;
    // It was ready once, so nobody is asked any more.
    assert_eq!(stage.ask(Method::GET, "/healthz/ready").await.0, 200);
    stage.readiness.envoy_started();
    // Whether a connection that was accepted before is cut or refused is all the same.
    until("unreadiness", async || stage.ask(Method::GET, "/healthz/ready").await.0 == 503).await;
    let (status, reason) = stage.ask(Method::GET, "/healthz/ready").await;
    assert!(status == 503 && reason.starts_with("Envoy does not tell its state"), "{status} {reason}");
    stage.readiness.terminating();
    let told = (503, "the proxy is terminating\n".to_owned());
    assert_eq!(stage.ask(Method::GET, "/healthz/ready").await, told);
}

#[tokio::test]
async fn orders_are_posted() {
    let mut stage = Stage::new(&Env::default(), 0, 0).await;
    for (path, order) in [("/quitquitquit", Order::Quit), ("/drain", Order::Drain)] {
        assert_eq!(stage.ask(Method::GET, path).await.0, 405);
        assert!(stage.orders.try_recv().is_err());
        assert_eq!(stage.ask(Method::POST, path).await, (200, "OK".to_owned()));
        assert_eq!(stage.orders.try_recv(), Ok(order));
    }
}

#[tokio::test]
async fn a_taken_port_is_told_with_what_to_do() {
    let taken = bind(0).await.unwrap();
    let error = bind(taken.local_addr().unwrap().port()).await.unwrap_err();
    assert!(error.to_string().contains("statusPort in PROXY_CONFIG"), "{error}");
}

#[tokio::test]
async fn names_are_shown_as_they_came() {
    let stage = Stage::new(&Env::default(), 0, 0).await;
    assert_eq!(stage.ask(Method::GET, "/debug/ndsz").await, (404, "{}".to_owned()));
    let info = NameInfo { ips: vec!["10.0.0.1".to_owned()], ..NameInfo::default() };
    let table = NameTable { table: [("a.example".to_owned(), info)].into() };
    stage.names.send_replace(Some(table.encode_to_vec().into()));
    let shown = r#"{"table":{"a.example":{"ips":["10.0.0.1"]}}}"#;
    assert_eq!(stage.ask(Method::GET, "/debug/ndsz").await, (200, shown.to_owned()));
    stage.names.send_replace(Some(Bytes::from_static(b"\xff")));
    assert_eq!(stage.ask(Method::GET, "/debug/ndsz").await.0, 500);
}

async fn seen(headers: HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    format!("{} {}", text("host"), text("x-colour"))
}

async fn around(Query(query): Query<std::collections::BTreeMap<String, u32>>) -> Response {
    match query.get("n") {
        Some(0) => "arrived".into_response(),
        Some(n) => Redirect::to(&format!("/around?n={}", n - 1)).into_response(),
        None => StatusCode::BAD_REQUEST.into_response(),
    }
}

#[tokio::test]
async fn probes_of_http_are_kubelets() {
    let mut tasks = JoinSet::new();
    let router = Router::new()
        .route("/seen", get(seen))
        .route("/around", get(around))
        .route("/away", get(|| async { Redirect::to("http://elsewhere.example/") }))
        .route("/sick", get(|| async { (StatusCode::IM_A_TEAPOT, "x".repeat(20 << 10)) }));
    let port = application(&mut tasks, router).await;
    let probe = |name: &str, path: &str| {
        format!(
            r#""/app-health/{name}/livez":{{"httpGet":{{"path":"{path}","port":{port}}},"timeoutSeconds":60}}"#
        )
    };
    let text = [
        probe("seen", "seen"),
        probe("near", "/around?n=9"),
        probe("far", "/around?n=10"),
        probe("away", "/away"),
        probe("sick", "/sick"),
        format!(
            r#""/app-health/gone/readyz":{{"httpGet":{{"port":{}}},"timeoutSeconds":60}}"#,
            closed_port()
        ),
    ];
    let env = Env::from([("ISTIO_KUBE_APP_PROBERS", format!("{{{}}}", text.join(",")).as_str())]);
    let stage = Stage::new(&env, 0, 0).await;
    let colour = HeaderMap::from_iter([("x-colour".parse().unwrap(), "red".parse().unwrap())]);
    let received = stage.get("/app-health/seen/livez", colour).await;
    assert_eq!(String::from_utf8(received.body).unwrap(), format!("pod:{port} red"));
    let named = HeaderMap::from_iter([(HOST, "shop.example".parse().unwrap())]);
    assert_eq!(stage.get("/app-health/seen/livez", named).await.body, b"shop.example ");
    assert_eq!(stage.ask(Method::GET, "/app-health/near/livez").await, (200, "arrived".to_owned()));
    assert_eq!(stage.ask(Method::GET, "/app-health/far/livez").await.0, 500);
    assert_eq!(stage.ask(Method::GET, "/app-health/away/livez").await, (200, String::new()));
    let (status, body) = stage.ask(Method::GET, "/app-health/sick/livez").await;
    assert_eq!((status, body.len()), (418, 10 << 10));
    assert_eq!(stage.ask(Method::GET, "/app-health/gone/readyz").await.0, 500);
    assert_eq!(stage.ask(Method::GET, "/app-health/nobody/readyz").await.0, 400);
}

#[tokio::test]
async fn probes_of_tcp_come_from_the_proxys_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let text = format!(
        r#"{{"/app-health/a/startupz":{{"tcpSocket":{{"port":{port}}},"timeoutSeconds":60}},"/app-lifecycle/a/prestopz":{{"tcpSocket":{{"port":{}}}}}}}"#,
        closed_port()
    );
    let stage = Stage::new(&Env::from([("ISTIO_KUBE_APP_PROBERS", text.as_str())]), 0, 0).await;
    assert_eq!(stage.ask(Method::GET, "/app-health/a/startupz").await.0, 200);
    assert_eq!(listener.accept().await.unwrap().1.ip(), IpAddr::from([127, 0, 0, 6]));
    assert_eq!(stage.ask(Method::GET, "/app-lifecycle/a/prestopz").await.0, 500);
}

#[test]
fn wrong_probes_are_told() {
    let error = |text: &str| {
        let env = Env::from([("ISTIO_KUBE_APP_PROBERS", text)]);
        AppProbes::read(&env, IpAddr::from([127, 0, 0, 1])).unwrap_err().to_string()
    };
    assert!(error("nonsense").contains("not what the injector writes"));
    assert!(error(r#"{"/app-health/a/b/livez":{"tcpSocket":{"port":1}}}"#).contains("must be /app-health"));
    assert!(error(r#"{"/app-health/a/livez":{}}"#).contains("exactly one"));
    assert!(error(r#"{"/app-health/a/livez":{"tcpSocket":{"port":"http"}}}"#).contains("expected u16"));
}

#[tokio::test]
async fn metrics_of_all_are_one_answer() {
    let mut tasks = JoinSet::new();
    let envoy = Router::new().route(
        "/stats/prometheus",
        get(
            |uri: http::Uri| async move { format!("envoy_a 1\n# query {}", uri.query().unwrap_or_default()) },
        ),
    );
    let open = |text: &'static str| async move {
        ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0")], text)
    };
    let application_ = Router::new()
        .route("/one", get(move || open("app_one 1\n# EOF\n")))
        .route("/two", get(move || open("app_two 2\n# EOF")))
        .route("/text", get(|| async { "app_text 3" }));
    let envoy = application(&mut tasks, envoy).await;
    let port = application(&mut tasks, application_).await;
    let targets = |paths: &[&str]| {
        let list: Vec<String> =
            paths.iter().map(|path| format!(r#"{{"port":"{port}","path":"{path}"}}"#)).collect();
        let text = format!(r#"{{"scrape":"true","targets":[{}]}}"#, list.join(","));
        Env::from([("ISTIO_PROMETHEUS_ANNOTATIONS", text.as_str())])
    };
    let stage = Stage::new(&targets(&["/one", "/none", "/two"]), 0, envoy).await;
    let received = stage.get("/stats/prometheus?usedonly", HeaderMap::new()).await;
    assert!(
        received.headers[CONTENT_TYPE]
            .to_str()
            .unwrap()
            .starts_with("application/openmetrics-text; version=1")
    );
    let text = String::from_utf8(received.body).unwrap();
    let end = "envoy_a 1\n# query usedonly\napp_one 1\napp_two 2\n# EOF\n";
    assert!(text.starts_with("# HELP istio_agent_") && text.ends_with(end), "{text}");
    assert!(text.contains("istio_agent_process_resident_memory_bytes "), "{text}");
    let zipped = HeaderMap::from_iter([(ACCEPT_ENCODING, "br, gzip".parse().unwrap())]);
    let received = stage.get("/metrics", zipped).await;
    assert_eq!(received.headers[CONTENT_ENCODING], "gzip");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&received.body[..]), &mut text).unwrap();
    assert!(text.contains("istio_agent_scrape_failures_total{type=\"application\"} 2\n"), "{text}");
    assert!(text.contains("istio_agent_scrapes_total 2\n"), "{text}");

    let mixed = Stage::new(&targets(&["/one", "/text"]), 0, closed_port()).await;
    let received = mixed.get("/metrics", HeaderMap::new()).await;
    assert!(received.headers[CONTENT_TYPE].to_str().unwrap().starts_with("text/plain"));
    let text = String::from_utf8(received.body).unwrap();
    assert!(text.ends_with("app_one 1\napp_text 3\n"), "{text}");
    drop((stage.tasks, mixed.tasks));
}

/// An application that speaks TLS with a certificate that nobody vouches for, and what else it is told to.
async fn secured(tasks: &mut JoinSet<std::io::Result<()>>, alpn: &[&[u8]]) -> u16 {
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["nobody.example".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await?;
            let stream = acceptor.accept(stream).await?;
            let service =
                hyper::service::service_fn(|request: hyper::Request<hyper::body::Incoming>| async move {
                    let body = http_body_util::Full::new(Bytes::from(format!("{:?}", request.version())));
                    Ok::<_, std::convert::Infallible>(hyper::Response::new(body))
                });
            let builder = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
            let _gone = builder.serve_connection(hyper_util::rt::TokioIo::new(stream), service).await;
        }
    });
    port
}

#[tokio::test]
async fn probes_of_https_ask_nobody_who_it_is() {
    let mut tasks = JoinSet::new();
    for (alpn, version) in [(&[b"h2".as_slice(), b"http/1.1"][..], "HTTP/2.0"), (&[], "HTTP/1.1")] {
        let port = secured(&mut tasks, alpn).await;
        let text = format!(
            r#"{{"/app-health/a/livez":{{"httpGet":{{"port":{port},"scheme":"HTTPS"}},"timeoutSeconds":60}}}}"#
        );
        let stage = Stage::new(&Env::from([("ISTIO_KUBE_APP_PROBERS", text.as_str())]), 0, 0).await;
        assert_eq!(stage.ask(Method::GET, "/app-health/a/livez").await, (200, version.to_owned()));
    }
}

#[tokio::test]
async fn probes_of_grpc_ask_the_health_service() {
    let mut tasks = JoinSet::new();
    let (reporter, service) = tonic_health::server::health_reporter();
    let port = closed_port();
    let mut servers = JoinSet::new();
    servers.spawn(async move {
        let server = tonic::transport::Server::builder().add_service(service);
        server.serve(([127, 0, 0, 1], port).into()).await.unwrap();
    });
    let plain = application(&mut tasks, Router::new()).await;
    let probe = |name: &str, port: u16, service: &str| {
        format!(
            r#""/app-health/{name}/livez":{{"grpc":{{"port":{port},"service":{service}}},"timeoutSeconds":60}}"#
        )
    };
    let text = [
        probe("all", port, "null"),
        probe("shop", port, r#""shop""#),
        probe("other", port, r#""other""#),
        probe("plain", plain, "null"),
    ];
    let env = Env::from([("ISTIO_KUBE_APP_PROBERS", format!("{{{}}}", text.join(",")).as_str())]);
    let stage = Stage::new(&env, 0, 0).await;
    let ask = async |name: &str| stage.ask(Method::GET, &format!("/app-health/{name}/livez")).await.0;
    until("health", async || ask("all").await == 200).await;
    reporter.set_service_status("shop", tonic_health::ServingStatus::NotServing).await;
    assert_eq!((ask("shop").await, ask("other").await, ask("plain").await), (500, 500, 500));
    reporter.set_service_status("shop", tonic_health::ServingStatus::Serving).await;
    assert_eq!(ask("shop").await, 200);
}
