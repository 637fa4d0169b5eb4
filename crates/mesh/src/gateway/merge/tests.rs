use std::sync::Arc;

use pilot_base::{Host, Labels, Name};
use pilot_model::{
    Config, ConfigId, Created, Gateway, GatewayServer, HostNamespace, Protocol, ServerHost, ServerTls,
    ServerTlsMode,
};

use super::merge_gateways;
use crate::gateway::{GatewaySet, MergedGateway};

fn server(
    port: u16,
    protocol: Protocol,
    host: &str,
    change: impl FnOnce(&mut GatewayServer),
) -> GatewayServer {
    let mut server = GatewayServer {
        port,
        port_name: Name::from(format!("{protocol}-{host}")),
        protocol,
        hosts: vec![ServerHost { namespace: HostNamespace::Any, host: Host::new(host) }],
        ..GatewayServer::default()
    };
    change(&mut server);
    server
}

fn tls(mode: ServerTlsMode) -> impl FnOnce(&mut GatewayServer) {
    move |server| server.tls = Some(ServerTls { mode, ..ServerTls::default() })
}

fn merged(gateways: Vec<Vec<GatewayServer>>, ports: &[(u16, u16)]) -> MergedGateway {
    let gateways: Vec<Arc<Config<Gateway>>> = gateways
        .into_iter()
        .enumerate()
        .map(|(i, servers)| {
            Arc::new(Config {
                id: ConfigId::new("ns", format!("g{i}")),
                created: Created::default(),
                labels: Labels::default(),
                annotations: Labels::default(),
                spec: Gateway { servers, ..Gateway::default() },
            })
        })
        .collect();
    let set = GatewaySet { ports: ports.iter().copied().collect(), ..GatewaySet::default() };
    merge_gateways(&gateways, &set)
}

/// Each port, with how many servers it has.
fn shape(merged: &MergedGateway) -> Vec<(u16, String, usize)> {
    merged.ports.iter().map(|p| (p.port, p.protocol.to_string(), p.servers.len())).collect()
}

#[test]
fn plain_http_is_shared_between_gateways() {
    let http = |host| server(80, Protocol::Http, host, |_| ());
    let merged = merged(vec![vec![http("a.com")], vec![http("b.com")]], &[(80, 8080)]);
    assert_eq!(shape(&merged), [(8080, "HTTP".to_owned(), 2)]);
    assert_eq!(merged.routes[&Name::new("http.8080")].len(), 2);
    assert!(merged.left_out.is_empty());
}

#[test]
fn tcp_cannot_share_a_port_with_http_nor_with_tcp() {
    let first = server(80, Protocol::Http, "a.com", |_| ());
    let tcp = || server(80, Protocol::Tcp, "b.com", |_| ());
    let merged = merged(vec![vec![first], vec![tcp()], vec![tcp()]], &[]);
    assert_eq!(shape(&merged), [(80, "HTTP".to_owned(), 1)]);
    assert_eq!(merged.left_out.len(), 2);
}

#[test]
fn tls_is_told_apart_by_host() {
    let https = |host| server(443, Protocol::Https, host, tls(ServerTlsMode::Simple));
    let merged = merged(vec![vec![https("a.com"), https("b.com")], vec![https("a.com")]], &[]);
    assert_eq!(shape(&merged), [(443, "HTTPS".to_owned(), 2)]);
    let routes: Vec<&str> = merged.routes.keys().map(Name::as_str).collect();
    assert_eq!(routes, ["https.443.HTTPS-a.com.g0.ns", "https.443.HTTPS-b.com.g0.ns"]);
    assert_eq!(merged.left_out.len(), 1, "the host is taken");
}

#[test]
fn another_address_is_another_listener() {
    let at = |bind: &str| {
        let bind = Name::new(bind);
        server(80, Protocol::Http, "a.com", move |s| s.bind = bind)
    };
    let tcp = server(80, Protocol::Tcp, "a.com", |s| s.bind = Name::new("10.0.0.2"));
    let merged = merged(vec![vec![at(""), at("10.0.0.1"), tcp]], &[]);
    assert_eq!(merged.ports.len(), 3);
    let routes: Vec<&str> = merged.routes.keys().map(Name::as_str).collect();
    assert_eq!(routes, ["http.80", "http.80.10.0.0.1"]);
}

#[test]
fn passed_on_tls_has_no_routes_of_requests() {
    let merged = merged(vec![vec![server(443, Protocol::Tls, "*", tls(ServerTlsMode::Passthrough))]], &[]);
    assert!(merged.routes.is_empty());
    assert_eq!(merged.ports[0].servers[0].server_names(), [Name::new("*")]);
}
