pub(crate) mod tls;

use std::collections::BTreeSet;
use std::net::IpAddr;

use pilot_api::networking as api;
use pilot_base::{Host, Labels, Name};
use pilot_model::{Gateway, GatewayServer, HostNamespace, Protocol, ServerHost};

use crate::check::Check;
use crate::check::host::{is_label, is_wildcard_host};

const UNIX: &str = "unix://";

pub(crate) fn decode(message: api::Gateway, check: &mut Check<'_>) -> Gateway {
    if message.servers.is_empty() {
        check.reject("spec.servers", "is missing: a gateway needs at least one server");
    }
    let name = check.object().name.clone();
    if !is_label(&name) {
        check.reject("metadata.name", format!("{name:?} is not a DNS label: letters, digits and dashes"));
    }
    unique_port_names(&message.servers, check);
    let servers = message.servers.into_iter().enumerate();
    Gateway {
        selector: Labels::new(message.selector),
        servers: servers.map(|(i, s)| server(s, &format!("spec.servers[{i}]"), check)).collect(),
    }
}

/// Routes are called by the name of their port.
fn unique_port_names(servers: &[api::Server], check: &mut Check<'_>) {
    let mut names = BTreeSet::new();
    for (i, server) in servers.iter().enumerate() {
        let Some(port) = &server.port else { continue };
        if !names.insert(port.name.as_str()) {
            let message = format!("{:?} is the name of another server's port: names must differ", port.name);
            check.reject(format!("spec.servers[{i}].port.name"), message);
        }
    }
}

fn server(message: api::Server, path: &str, check: &mut Check<'_>) -> GatewayServer {
    let (number, protocol, port_name) = port(message.port.as_ref(), &message.bind, path, check);
    bind(&message.bind, message.port.as_ref(), path, check);
    if message.hosts.is_empty() {
        check.reject(format!("{path}.hosts"), "is missing: a server needs at least one host, or *");
    }
    let hosts = message.hosts.iter().enumerate();
    let mut hosts: Vec<ServerHost> =
        hosts.filter_map(|(i, text)| server_host(text, &format!("{path}.hosts[{i}]"), check)).collect();
    // Every host of every namespace: there is no point in naming others.
    if message.hosts.iter().any(|text| text == "*/*") {
        hosts = vec![ServerHost { namespace: HostNamespace::Any, host: Host::new("*") }];
    }
    if message.port.is_some() {
        fits_protocol(protocol, message.tls.as_ref(), path, check);
    }
    let tls = message.tls.map(|tls| tls::decode(tls, &format!("{path}.tls"), check));
    GatewayServer {
        name: message.name.into(),
        port: number,
        port_name,
        protocol,
        bind: message.bind.into(),
        hosts,
        tls,
    }
}

fn port(port: Option<&api::Port>, bind: &str, path: &str, check: &mut Check<'_>) -> (u16, Protocol, Name) {
    let path = format!("{path}.port");
    let Some(port) = port else {
        check.reject(path, "is missing");
        return (0, Protocol::Auto, Name::empty());
    };
    let protocol = Protocol::parse(&port.protocol);
    if protocol == Protocol::Auto {
        let known = "HTTP, HTTP2, GRPC, GRPC-Web, HTTPS, TLS, TCP, MONGO, REDIS and MYSQL";
        check.reject(
            format!("{path}.protocol"),
            format!("{:?} is not a protocol: known are {known}", port.protocol),
        );
    }
    if port.target_port > 0 {
        check.reject(format!("{path}.targetPort"), "has no meaning in a gateway: remove it");
    }
    if port.name.is_empty() {
        check.reject(format!("{path}.name"), "is missing");
    }
    let is_socket = port.number == 0 && bind.starts_with(UNIX);
    let number = if is_socket { 0 } else { check.port(format!("{path}.number"), port.number) };
    (number, protocol, Name::new(&port.name))
}

fn bind(bind: &str, port: Option<&api::Port>, path: &str, check: &mut Check<'_>) {
    let path = format!("{path}.bind");
    if let Some(socket) = bind.strip_prefix(UNIX) {
        if !socket.starts_with('/') || socket.ends_with('/') {
            check.reject(&path, format!("{socket:?} is not an absolute path to a file"));
        }
        if port.is_some_and(|port| port.number != 0) {
            check.reject(path, "is a socket in the file system, which has no port: port.number must be 0");
        }
    } else if !bind.is_empty() && bind.parse::<IpAddr>().is_err() {
        check.reject(path, format!("{bind:?} is neither an IP address nor {UNIX} and a path"));
    }
}

fn server_host(text: &str, path: &str, check: &mut Check<'_>) -> Option<ServerHost> {
    let (namespace, host) = match text.split_once('/') {
        None => (HostNamespace::Any, text),
        Some(("*", host)) => (HostNamespace::Any, host),
        Some((".", host)) => (HostNamespace::Own, host),
        Some((namespace, host)) => {
            if !is_label(namespace) {
                check.reject(path, format!("{namespace:?} is not a namespace, * or ."));
                return None;
            }
            (HostNamespace::Named(Name::new(namespace)), host)
        }
    };
    let is_host = is_wildcard_host(host) || host.parse::<IpAddr>().is_ok();
    let partial = host.contains('*') && host != "*" && !host.starts_with("*.");
    let short = host != "*" && !host.contains('.');
    if !is_host || partial || short {
        let message = format!("{host:?} is not a whole host name, an address, *.domain or *");
        check.reject(path, message);
        return None;
    }
    Some(ServerHost { namespace, host: Host::new(host) })
}

fn fits_protocol(
    protocol: Protocol,
    tls: Option<&api::ServerTlsSettings>,
    path: &str,
    check: &mut Check<'_>,
) {
    use api::server_tls_settings::TlSmode as Mode;
    let path = format!("{path}.tls");
    match tls {
        None if protocol.is_tls() => check.reject(path, format!("is missing: {protocol} needs TLS settings")),
        Some(tls) if protocol.is_http() => {
            let only_redirects = matches!(
                Mode::try_from(tls.mode).unwrap_or_default(),
                Mode::Passthrough | Mode::AutoPassthrough
            );
            let files = [&tls.server_certificate, &tls.private_key, &tls.ca_certificates];
            let has_files = files.iter().any(|file| !file.is_empty());
            if !only_redirects || has_files {
                check.reject(path, format!("{protocol} is not encrypted: only httpsRedirect can be set"));
            }
        }
        Some(_) if !protocol.is_tls() => {
            check.reject(path, format!("{protocol} is not encrypted: use TLS or HTTPS"));
        }
        Some(tls) if tls.https_redirect => {
            check.warn(format!("{path}.httpsRedirect"), "has a meaning only for servers of plain HTTP");
        }
        _ => (),
    }
}

#[cfg(test)]
mod tests;
