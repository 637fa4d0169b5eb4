use pilot_api::networking as api;
use pilot_base::{Host, Labels, Name};
use pilot_model::{
    Destination, EgressHost, EgressListener, IngressListener, OutboundMode, OutboundTrafficPolicy, Protocol,
    Sidecar,
};

use crate::check::Check;
use crate::kinds::destination_rule::connection_pool;

pub(crate) fn decode(message: api::Sidecar, check: &mut Check<'_>) -> Sidecar {
    let egress = message.egress.into_iter().enumerate();
    if !message.ingress.is_empty() {
        check.not_yet("spec.ingress");
    }
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
    let port = listener.port.unwrap_or_default();
    IngressListener {
        port: check.port(format!("{path}.port.number"), port.number),
        port_name: port.name.into(),
        protocol: Protocol::parse(&port.protocol),
        bind: listener.bind.into(),
        default_endpoint: listener.default_endpoint.into(),
        connection_pool: listener
            .connection_pool
            .map(|pool| connection_pool(pool, &format!("{path}.connectionPool"), check)),
    }
}

fn egress(listener: api::IstioEgressListener, path: &str, check: &mut Check<'_>) -> EgressListener {
    if listener.hosts.is_empty() {
        check.reject(format!("{path}.hosts"), "is missing: say what may be reached, such as ./* or */*");
    }
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
    if listener.port.is_some() {
        check.warn(format!("{path}.port"), "is not supported yet: the hosts are let through at every port");
    }
    let port = listener.port.map(|port| {
        let number = check.port(format!("{path}.port.number"), port.number);
        (number, Name::from(port.name), Protocol::parse(&port.protocol))
    });
    EgressListener { port, bind: listener.bind.into(), hosts }
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
