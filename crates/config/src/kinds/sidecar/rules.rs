//! What Istio asks of a Sidecar beyond the form of its fields.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use pilot_api::networking as api;
use pilot_model::Protocol;

use crate::check::Check;
use crate::check::host::{is_host_name, is_label, is_wildcard_host};

const UNIX: &str = "unix://";

pub(super) fn validate(message: &api::Sidecar, check: &mut Check<'_>) {
    if let Some(selector) = &message.workload_selector {
        self::selector(selector, check);
    }
    let empty = message.egress.is_empty()
        && message.ingress.is_empty()
        && message.outbound_traffic_policy.is_none()
        && message.inbound_connection_pool.is_none();
    if empty {
        check.reject(
            "spec",
            "says nothing: it needs egress, ingress, outboundTrafficPolicy or inboundConnectionPool",
        );
    }
    let mut ports = BTreeSet::new();
    for (i, listener) in message.ingress.iter().enumerate() {
        ingress(listener, &format!("spec.ingress[{i}]"), &mut ports, check);
    }
    let mut places = BTreeSet::new();
    for (i, listener) in message.egress.iter().enumerate() {
        let path = format!("spec.egress[{i}]");
        match &listener.port {
            None if i + 1 < message.egress.len() => {
                check.reject(
                    &path,
                    "has no port, so that it catches all that others leave: it must be the last",
                );
            }
            None => (),
            Some(port) => egress_port(listener, port, &path, &mut places, check),
        }
        hosts(&listener.hosts, &path, check);
    }
    if let Some(policy) = &message.outbound_traffic_policy {
        self::policy(policy, check);
    }
}

fn selector(selector: &api::WorkloadSelector, check: &mut Check<'_>) {
    let path = "spec.workloadSelector.labels";
    if selector.labels.is_empty() {
        check.warn("spec.workloadSelector", "has no labels: it applies to every workload of the namespace");
    }
    for (key, value) in &selector.labels {
        if key.is_empty() {
            check.reject(path, format!("{value:?} stands under an empty key"));
        }
        if key.contains('*') || value.contains('*') {
            check.reject(path, format!("{key}={value} has a wildcard, which labels cannot have"));
        }
    }
}

fn port(port: &api::SidecarPort, path: &str, check: &mut Check<'_>) {
    if !port.name.is_empty() && !is_label(&port.name) {
        check.reject(format!("{path}.port.name"), format!("{:?} is not the name of a port", port.name));
    }
    if !port.protocol.is_empty() && Protocol::parse(&port.protocol) == Protocol::Auto {
        let message = format!("{:?} is not a protocol; leave it out to have it found out", port.protocol);
        check.reject(format!("{path}.port.protocol"), message);
    }
    if port.target_port > 0 {
        check.reject(format!("{path}.port.targetPort"), "means nothing in a Sidecar");
    }
}

fn bind(text: &str, path: &str, check: &mut Check<'_>) {
    if !text.is_empty() && text.parse::<IpAddr>().is_err() {
        check.reject(format!("{path}.bind"), format!("{text:?} is not an address"));
    }
}

fn socket_file(text: &str, path: String, check: &mut Check<'_>) {
    let good = text.starts_with('@') || (text.starts_with('/') && !text.ends_with('/'));
    if !good {
        check.reject(path, format!("{text:?} is not an absolute path to a file"));
    }
}

fn ingress(
    listener: &api::IstioIngressListener,
    path: &str,
    seen: &mut BTreeSet<u32>,
    check: &mut Check<'_>,
) {
    let Some(port) = &listener.port else {
        check.reject(format!("{path}.port"), "is missing");
        return;
    };
    self::port(port, path, check);
    bind(&listener.bind, path, check);
    if !seen.insert(port.number) {
        check.reject(format!("{path}.port.number"), format!("{} is taken by a listener before", port.number));
    }
    if let Some(file) = listener.default_endpoint.strip_prefix(UNIX) {
        socket_file(file, format!("{path}.defaultEndpoint"), check);
    }
    if let Some(tls) = &listener.tls {
        ingress_tls(tls, port, path, check);
    }
    let http = listener.connection_pool.as_ref().is_some_and(|pool| pool.http.is_some());
    if http && !Protocol::parse(&port.protocol).is_http() {
        let message = format!("port {} does not speak HTTP: only limits for TCP count", port.number);
        check.warn(format!("{path}.connectionPool.http"), message);
    }
}

fn ingress_tls(tls: &api::ServerTlsSettings, port: &api::SidecarPort, path: &str, check: &mut Check<'_>) {
    use api::server_tls_settings::TlSmode;
    let mode = TlSmode::try_from(tls.mode).unwrap_or_default();
    let unsupported = [
        ("subjectAltNames", !tls.subject_alt_names.is_empty()),
        ("httpsRedirect", tls.https_redirect),
        ("credentialName", !tls.credential_name.is_empty()),
        ("credentialNames", !tls.credential_names.is_empty()),
        ("tlsCertificates", !tls.tls_certificates.is_empty()),
        ("mode", matches!(mode, TlSmode::IstioMutual | TlSmode::AutoPassthrough)),
    ];
    for (field, _) in unsupported.into_iter().filter(|(_, is_said)| *is_said) {
        check.reject(format!("{path}.tls.{field}"), "is not supported at a sidecar");
    }
    if !Protocol::parse(&port.protocol).is_tls() {
        check.reject(format!("{path}.tls"), "is only for ports that speak HTTPS or TLS");
    }
}

fn egress_port(
    listener: &api::IstioEgressListener,
    port: &api::SidecarPort,
    path: &str,
    seen: &mut BTreeSet<(u32, String)>,
    check: &mut Check<'_>,
) {
    self::port(port, path, check);
    let place = if port.number == 0 { (0, listener.bind.clone()) } else { (port.number, String::new()) };
    if !seen.insert(place) {
        check.reject(format!("{path}.port.number"), "is taken by a listener before");
    }
    if port.number > 0 {
        bind(&listener.bind, path, check);
        return;
    }
    match listener.bind.strip_prefix(UNIX) {
        Some(file) => socket_file(file, format!("{path}.bind"), check),
        None => check
            .reject(format!("{path}.port.number"), "is 0, which is only for a bind of unix:// and a path"),
    }
    if listener.capture_mode == api::CaptureMode::Iptables as i32 {
        check.reject(format!("{path}.captureMode"), "must be DEFAULT or NONE for a socket file");
    }
}

fn hosts(hosts: &[String], path: &str, check: &mut Check<'_>) {
    if hosts.is_empty() {
        check.reject(format!("{path}.hosts"), "is missing: say what may be reached, such as ./* or */*");
    }
    let own = check.object().namespace.to_string();
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (i, entry) in hosts.iter().enumerate() {
        let path = format!("{path}.hosts[{i}]");
        let Some((namespace, host)) = entry.split_once('/') else { continue };
        let name = namespace.strip_prefix('~').unwrap_or(namespace);
        if !matches!(name, "" | "*" | ".") && !is_label(name) {
            check.reject(&path, format!("{name:?} is not a namespace"));
        }
        host_part(host, &path, check);
        if namespace.starts_with('~') {
            continue;
        }
        let namespace = if namespace == "." { own.clone() } else { namespace.to_owned() };
        let others = seen.entry(namespace).or_default();
        let repeated =
            if host == "*" { !others.is_empty() } else { others.contains(host) || others.contains("*") };
        if repeated {
            check.warn(&path, format!("{entry:?} says again what an entry before it says"));
        }
        others.insert(host.to_owned());
    }
    if seen.len() > 1 && seen.get("*").is_some_and(|all| all.contains("*")) {
        check.warn(format!("{path}.hosts"), "*/* lets everything through; other entries add nothing");
    }
}

fn host_part(host: &str, path: &str, check: &mut Check<'_>) {
    if host != "*" && !host.contains('.') {
        check.reject(path, format!("{host:?} is a short name; write it in full"));
    } else if !is_wildcard_host(host) || (host.starts_with('*') && host.len() > 1 && !host.starts_with("*."))
    {
        check.reject(path, format!("{host:?} is not a host name"));
    }
}

fn policy(policy: &api::OutboundTrafficPolicy, check: &mut Check<'_>) {
    let path = "spec.outboundTrafficPolicy";
    let Some(proxy) = &policy.egress_proxy else { return };
    if policy.mode != api::outbound_traffic_policy::Mode::AllowAny as i32 {
        check.reject(format!("{path}.egressProxy"), "is only for the mode ALLOW_ANY");
        return;
    }
    if !is_host_name(&proxy.host) {
        check.reject(format!("{path}.egressProxy.host"), format!("{:?} is not a host name", proxy.host));
    }
    if proxy.port.is_none() {
        check.reject(format!("{path}.egressProxy.port"), "is missing");
    }
}
