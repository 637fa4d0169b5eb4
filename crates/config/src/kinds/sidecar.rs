mod rules;

use std::sync::Arc;

use pilot_api::networking as api;
use pilot_base::{Host, Labels, Name};
use pilot_model::{
    CaptureMode, DefaultEndpoint, Destination, EgressHost, EgressListener, EgressPort, IngressListener,
    OutboundMode, OutboundTrafficPolicy, Protocol, Sidecar,
};

use crate::check::Check;
use crate::kinds::destination_rule::connection_pool;
use crate::kinds::gateway::tls;

pub(crate) fn decode(message: api::Sidecar, check: &mut Check<'_>) -> Sidecar {
    rules::validate(&message, check);
    let egress = message.egress.into_iter().enumerate();
    let ingress = message.ingress.into_iter().enumerate();
    Sidecar {
        workload_selector: message.workload_selector.map(|selector| Labels::new(selector.labels)),
        ingress: ingress
            .map(|(i, listener)| self::ingress(listener, &format!("spec.ingress[{i}]"), check))
            .collect(),
        egress: egress
            .map(|(i, listener)| self::egress(listener, &format!("spec.egress[{i}]"), check))
            .collect(),
        outbound_traffic_policy: message.outbound_traffic_policy.map(|policy| outbound(policy, check)),
        inbound_connection_pool: message
            .inbound_connection_pool
            .map(|pool| connection_pool(pool, "spec.inboundConnectionPool", check)),
    }
}

fn ingress(listener: api::IstioIngressListener, path: &str, check: &mut Check<'_>) -> IngressListener {
    let capture = capture_mode(listener.capture_mode);
    let port = listener.port.unwrap_or_default();
    IngressListener {
        port: check.port(format!("{path}.port.number"), port.number),
        port_name: port.name.into(),
        protocol: Protocol::parse(&port.protocol),
        bind: listener.bind.into(),
        capture,
        default_endpoint: default_endpoint(&listener.default_endpoint, path, check),
        tls: listener.tls.map(|tls| Arc::new(tls::decode(tls, &format!("{path}.tls"), check))),
        connection_pool: listener
            .connection_pool
            .map(|pool| connection_pool(pool, &format!("{path}.connectionPool"), check)),
    }
}

fn default_endpoint(text: &str, path: &str, check: &mut Check<'_>) -> Option<DefaultEndpoint> {
    if text.is_empty() {
        return None;
    }
    if let Some(path) = text.strip_prefix("unix://") {
        return Some(DefaultEndpoint::Unix(Name::new(path)));
    }
    let valid = |port: &str| port.parse::<u16>().ok().filter(|port| *port > 0);
    // A port alone says no more than nothing: the application listens where it was called.
    if text.strip_prefix(':').and_then(valid).is_some() {
        return None;
    }
    let parsed = text.rsplit_once(':').and_then(|(host, port)| {
        let port = valid(port)?;
        match host {
            "127.0.0.1" => Some(DefaultEndpoint::Local { v6: false, port }),
            "[::1]" => Some(DefaultEndpoint::Local { v6: true, port }),
            "0.0.0.0" => Some(DefaultEndpoint::Instance { v6: false, port }),
            "[::]" => Some(DefaultEndpoint::Instance { v6: true, port }),
            _ => None,
        }
    });
    if parsed.is_none() {
        let message = format!(
            "{text:?} must be 127.0.0.1, 0.0.0.0, [::1] or [::] with a port behind a colon, or unix:// and a path"
        );
        check.reject(format!("{path}.defaultEndpoint"), message);
    }
    parsed
}

fn capture_mode(mode: i32) -> CaptureMode {
    match api::CaptureMode::try_from(mode).unwrap_or(api::CaptureMode::Default) {
        api::CaptureMode::Default => CaptureMode::Default,
        api::CaptureMode::Iptables => CaptureMode::Iptables,
        api::CaptureMode::None => CaptureMode::None,
    }
}

fn egress(listener: api::IstioEgressListener, path: &str, check: &mut Check<'_>) -> EgressListener {
    let mut hosts = Vec::new();
    for (i, text) in listener.hosts.iter().enumerate() {
        match egress_host(text) {
            Some(host) => hosts.push(host),
            None => {
                let message = format!(
                    "{text:?} is not of the form namespace/host, such as ./* or prod/api.example.com"
                );
                check.reject(format!("{path}.hosts[{i}]"), message);
            }
        }
    }
    let capture = capture_mode(listener.capture_mode);
    let unix = listener.bind.starts_with("unix://");
    let port = listener.port.map(|port| EgressPort {
        number: if unix { 0 } else { check.port(format!("{path}.port.number"), port.number) },
        name: port.name.into(),
        protocol: Protocol::parse(&port.protocol),
    });
    EgressListener { port, bind: listener.bind.into(), capture, hosts }
}

fn egress_host(text: &str) -> Option<EgressHost> {
    let (namespace, host) = text.split_once('/')?;
    let (exclude, namespace) = match namespace.strip_prefix('~') {
        // `~/*` reaches nothing at all, which is what leaving everything out amounts to.
        Some("") => (true, "*"),
        Some(namespace) => (true, namespace),
        None => (false, namespace),
    };
    if namespace.is_empty() || host.is_empty() || host.contains('/') {
        return None;
    }
    Some(EgressHost { namespace: Name::new(namespace), host: Host::new(host), exclude })
}

fn outbound(policy: api::OutboundTrafficPolicy, check: &mut Check<'_>) -> OutboundTrafficPolicy {
    use api::outbound_traffic_policy::Mode;
    let mode = match Mode::try_from(policy.mode).unwrap_or(Mode::RegistryOnly) {
        Mode::RegistryOnly => OutboundMode::RegistryOnly,
        Mode::AllowAny => OutboundMode::AllowAny,
    };
    let egress_proxy = policy.egress_proxy.map(|proxy| Destination {
        host: Host::new(&proxy.host),
        subset: proxy.subset.into(),
        port: proxy.port.map(|p| check.port("spec.outboundTrafficPolicy.egressProxy.port.number", p.number)),
    });
    OutboundTrafficPolicy { mode, egress_proxy }
}
