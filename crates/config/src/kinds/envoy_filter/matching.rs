//! What a patch is for.

use pilot_api::networking::envoy_filter as api;
use pilot_base::Name;
use pilot_model::{
    ApplyTo, ChainMatch, ClusterMatch, ListenerMatch, ObjectMatch, RouteActionKind, RouteConfigurationMatch,
    RouteMatch, VirtualHostMatch,
};

use crate::check::Check;

pub(super) const CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";

/// Names that filters had before Envoy gave them the ones they have.
const OLD_NAMES: [(&str, &str); 27] = [
    ("envoy.buffer", "envoy.filters.http.buffer"),
    ("envoy.cors", "envoy.filters.http.cors"),
    ("envoy.csrf", "envoy.filters.http.csrf"),
    ("envoy.http_dynamo_filter", "envoy.filters.http.dynamo"),
    ("envoy.ext_authz", "envoy.filters.http.ext_authz"),
    ("envoy.fault", "envoy.filters.http.fault"),
    ("envoy.grpc_http1_bridge", "envoy.filters.http.grpc_http1_bridge"),
    ("envoy.grpc_json_transcoder", "envoy.filters.http.grpc_json_transcoder"),
    ("envoy.grpc_web", "envoy.filters.http.grpc_web"),
    ("envoy.gzip", "envoy.filters.http.gzip"),
    ("envoy.health_check", "envoy.filters.http.health_check"),
    ("envoy.ip_tagging", "envoy.filters.http.ip_tagging"),
    ("envoy.lua", "envoy.filters.http.lua"),
    ("envoy.rate_limit", "envoy.filters.http.ratelimit"),
    ("envoy.router", "envoy.filters.http.router"),
    ("envoy.squash", "envoy.filters.http.squash"),
    ("envoy.listener.http_inspector", "envoy.filters.listener.http_inspector"),
    ("envoy.listener.original_dst", "envoy.filters.listener.original_dst"),
    ("envoy.listener.original_src", "envoy.filters.listener.original_src"),
    ("envoy.listener.proxy_protocol", "envoy.filters.listener.proxy_protocol"),
    ("envoy.listener.tls_inspector", "envoy.filters.listener.tls_inspector"),
    ("envoy.client_ssl_auth", "envoy.filters.network.client_ssl_auth"),
    ("envoy.http_connection_manager", CONNECTION_MANAGER),
    ("envoy.mongo_proxy", "envoy.filters.network.mongo_proxy"),
    ("envoy.ratelimit", "envoy.filters.network.ratelimit"),
    ("envoy.redis_proxy", "envoy.filters.network.redis_proxy"),
    ("envoy.tcp_proxy", "envoy.filters.network.tcp_proxy"),
];

/// Nothing, if the patch cannot be used.
pub(super) fn object(
    path: &str,
    apply_to: ApplyTo,
    object: Option<api::envoy_config_object_match::ObjectTypes>,
    check: &mut Check<'_>,
) -> Option<ObjectMatch> {
    use api::envoy_config_object_match::ObjectTypes as Api;
    let wanted = match apply_to {
        ApplyTo::Listener | ApplyTo::FilterChain | ApplyTo::NetworkFilter | ApplyTo::HttpFilter => "listener",
        ApplyTo::RouteConfiguration | ApplyTo::VirtualHost | ApplyTo::HttpRoute => "routeConfiguration",
        ApplyTo::Cluster => "cluster",
        ApplyTo::ListenerFilter | ApplyTo::ExtensionConfig | ApplyTo::Bootstrap => "",
    };
    let (given, object) = match object {
        None => return Some(ObjectMatch::Any),
        Some(Api::Listener(matching)) => ("listener", listener(path, apply_to, matching, check)?),
        Some(Api::RouteConfiguration(matching)) => ("routeConfiguration", route_configuration(matching)),
        Some(Api::Cluster(matching)) => ("cluster", cluster(matching)),
        Some(Api::Waypoint(_)) => ("waypoint", ObjectMatch::Any),
    };
    if !wanted.is_empty() && given != wanted {
        let message = format!("cannot be matched by {apply_to}: use match.{wanted}");
        check.leave_out(format!("{path}.{given}"), message);
        return None;
    }
    Some(object)
}

/// The field that would have to say which filter is meant, if it does not.
pub(super) fn missing_filter(apply_to: ApplyTo, object: &ObjectMatch) -> Option<&'static str> {
    let listener = match object {
        ObjectMatch::Listener(listener) => Some(listener),
        _ => None,
    };
    let chain = listener.and_then(|listener| listener.filter_chain.as_ref());
    match apply_to {
        ApplyTo::HttpFilter if chain.is_none_or(|chain| chain.sub_filter.is_none()) => {
            Some("match.listener.filterChain.filter.subFilter")
        }
        ApplyTo::NetworkFilter if chain.is_none_or(|chain| chain.filter.is_none()) => {
            Some("match.listener.filterChain.filter")
        }
        ApplyTo::ListenerFilter if listener.is_none_or(|listener| listener.listener_filter.is_empty()) => {
            Some("match.listener.listenerFilter")
        }
        _ => None,
    }
}

fn listener(
    path: &str,
    apply_to: ApplyTo,
    matching: api::ListenerMatch,
    check: &mut Check<'_>,
) -> Option<ObjectMatch> {
    let path = format!("{path}.listener");
    if !matching.port_name.is_empty() {
        check.warn(format!("{path}.portName"), "has no effect, as in Istio: use portNumber or name");
    }
    let filter_chain = match matching.filter_chain {
        Some(chain) => Some(self::chain(&format!("{path}.filterChain"), apply_to, chain, check)?),
        None => None,
    };
    Some(ObjectMatch::Listener(ListenerMatch {
        name: matching.name.into(),
        port: number(matching.port_number),
        listener_filter: matching.listener_filter.into(),
        filter_chain,
    }))
}

fn chain(
    path: &str,
    apply_to: ApplyTo,
    matching: api::listener_match::FilterChainMatch,
    check: &mut Check<'_>,
) -> Option<ChainMatch> {
    let path = format!("{path}.filter");
    let (mut filter, mut sub_filter) = (None, None);
    if let Some(wanted) = matching.filter {
        if matches!(apply_to, ApplyTo::Listener | ApplyTo::FilterChain) {
            check.warn(&path, format!("has no effect on {apply_to}"));
        }
        if wanted.name.is_empty() {
            check.leave_out(format!("{path}.name"), "is missing");
            return None;
        }
        sub_filter = match wanted.sub_filter {
            Some(below) => {
                Some(self::sub_filter(&format!("{path}.subFilter"), apply_to, &wanted.name, below, check)?)
            }
            None => None,
        };
        old_name(&format!("{path}.name"), &wanted.name, check);
        filter = Some(Name::from(wanted.name));
    }
    let protocols = matching.application_protocols.as_str();
    Some(ChainMatch {
        name: matching.name.into(),
        sni: matching.sni.into(),
        transport_protocol: matching.transport_protocol.into(),
        application_protocols: protocols
            .split(',')
            .filter(|_| !protocols.is_empty())
            .map(Name::new)
            .collect(),
        destination_port: number(matching.destination_port),
        filter,
        sub_filter,
    })
}

fn sub_filter(
    path: &str,
    apply_to: ApplyTo,
    filter: &str,
    matching: api::listener_match::SubFilterMatch,
    check: &mut Check<'_>,
) -> Option<Name> {
    let why = if apply_to != ApplyTo::HttpFilter {
        "can only be matched by HTTP_FILTER".to_owned()
    } else if filter != CONNECTION_MANAGER && filter != "envoy.http_connection_manager" {
        format!("is only in {CONNECTION_MANAGER}: match that in filter.name")
    } else if matching.name.is_empty() {
        "has no name".to_owned()
    } else {
        old_name(&format!("{path}.name"), &matching.name, check);
        return Some(matching.name.into());
    };
    check.leave_out(path, why);
    None
}

fn old_name(path: &str, name: &str, check: &mut Check<'_>) {
    if let Some((_, new)) = OLD_NAMES.iter().find(|(old, _)| *old == name) {
        check.warn(
            path,
            format!("{name} is what the filter was called long ago: no filter matches it, use {new}"),
        );
    }
}

fn route_configuration(matching: api::RouteConfigurationMatch) -> ObjectMatch {
    ObjectMatch::RouteConfiguration(RouteConfigurationMatch {
        name: matching.name.into(),
        port: number(matching.port_number),
        port_name: matching.port_name.into(),
        gateway: matching.gateway.into(),
        vhost: matching.vhost.map(|host| VirtualHostMatch {
            name: host.name.into(),
            domain: host.domain_name.into(),
            route: host.route.map(route),
        }),
    })
}

fn route(matching: api::route_configuration_match::RouteMatch) -> RouteMatch {
    use api::route_configuration_match::route_match::Action;
    let action = match Action::try_from(matching.action).unwrap_or(Action::Any) {
        Action::Any => None,
        Action::Route => Some(RouteActionKind::Route),
        Action::Redirect => Some(RouteActionKind::Redirect),
        Action::DirectResponse => Some(RouteActionKind::DirectResponse),
    };
    RouteMatch { name: matching.name.into(), action }
}

fn cluster(matching: api::ClusterMatch) -> ObjectMatch {
    ObjectMatch::Cluster(ClusterMatch {
        name: matching.name.into(),
        service: matching.service.into(),
        subset: matching.subset.into(),
        port: number(matching.port_number),
    })
}

/// Zero means that nothing was said.
fn number(number: u32) -> Option<u32> {
    Some(number).filter(|number| *number > 0)
}
