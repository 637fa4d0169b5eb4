//! Routes: what becomes of a request.

mod action;
mod claim;
mod hash;
mod header;
mod matching;
mod retry;

use std::collections::BTreeMap;

use pilot_base::{Host, Name};
use pilot_envoy_api::envoy::config::route::v3 as api;
use pilot_mesh::{RouteRule, TrafficPlan};
use pilot_model::{Destination, HttpMatch, HttpRoute, Kind, Protocol, Service};

use crate::convert::seconds;
use crate::http_filter::stateful_session::{self, STATEFUL_SESSION};
use crate::http_filter::{CORS, FAULT, cors, fault};
use crate::metadata;
use crate::settings::{RouteTraits, Settings};

pub(crate) use hash::{hash_policy, of_service as hash_of_service};

const DEFAULT: &str = "default";

/// Who asks for routes, and where.
pub(crate) struct Context<'a> {
    /// The port that was called; zero where a table serves all ports.
    pub(crate) port: u16,
    /// `mesh` for sidecars, `namespace/name` for who serves a Gateway.
    pub(crate) gateway: &'a str,
    /// Is the request decrypted here?
    pub(crate) tls: bool,
    /// The namespace of the asking proxies, if they share one.
    pub(crate) client: Option<&'a Name>,
    pub(crate) traits: &'a RouteTraits,
    pub(crate) settings: Settings<'a>,
    /// What is said about the traffic to a destination.
    pub(crate) traffic: &'a dyn Fn(&Destination) -> Option<&'a TrafficPlan>,
    /// Who serves a destination.
    pub(crate) service: &'a dyn Fn(&Destination) -> Option<&'a Service>,
    /// The port at which a destination is called that does not say one, if that is not the one that was called.
    pub(crate) only_port: &'a dyn Fn(&Destination) -> Option<u16>,
    /// The host that another name stands for.
    pub(crate) real_host: &'a dyn Fn(&Host) -> Host,
}

/// The routes of a VirtualService, up to the first that takes everything.
pub(crate) fn of_rule(rule: &RouteRule, context: &Context<'_>) -> Vec<api::Route> {
    let mut out = Vec::new();
    for http in rule.spec.http.iter().filter(|http| leads_somewhere(http)) {
        if http.matches.is_empty() {
            out.push(route(rule, http, None, context));
            return out;
        }
        for wanted in http.matches.iter().filter(|wanted| applies(wanted, context)) {
            let route = route(rule, http, Some(wanted), context);
            let last = takes_everything(&route);
            out.push(route);
            if last {
                return out;
            }
        }
    }
    out
}

/// Envoy refuses all routes of a port because of one without a destination.
fn leads_somewhere(http: &HttpRoute) -> bool {
    http.redirect.is_some()
        || http.direct_response.is_some()
        || http.route.len() == 1
        || http.route.iter().any(|share| share.weight > 0)
}

/// Can a request of these clients, at this port, match at all?
fn applies(wanted: &HttpMatch, context: &Context<'_>) -> bool {
    if wanted.port.is_some_and(|port| port != context.port) {
        return false;
    }
    if !wanted.gateways.is_empty() {
        return wanted.gateways.iter().any(|gateway| gateway == context.gateway);
    }
    let namespace = wanted.source_namespace.is_empty() || context.client == Some(&wanted.source_namespace);
    namespace && wanted.source_labels.subset_of(&context.traits.labels)
}

fn route(
    rule: &RouteRule,
    http: &HttpRoute,
    wanted: Option<&HttpMatch>,
    context: &Context<'_>,
) -> api::Route {
    let mut out = api::Route {
        name: name(http, wanted),
        r#match: Some(matching::route_match(wanted)),
        metadata: metadata::of_config(Kind::VirtualService, &rule.id),
        stat_prefix: wanted.map(|wanted| wanted.stat_prefix.to_string()).unwrap_or_default(),
        typed_per_filter_config: per_filter(http),
        ..api::Route::default()
    };
    let headers = http.headers.as_ref().map(header::operations).unwrap_or_default();
    let authority = headers.apply(&mut out);
    if let Some(redirect) = &http.redirect {
        out.action = action::redirect(redirect, context).map(api::route::Action::Redirect);
    } else if let Some(response) = &http.direct_response {
        out.action = Some(api::route::Action::DirectResponse(action::direct_response(response)));
    } else {
        action::forward(&mut out, http, authority, context);
        keep_sessions(&mut out, http, context);
    }
    out.decorator = Some(decorator(operation(&out, &rule.id.name, context.port)));
    out
}

fn keep_sessions(route: &mut api::Route, http: &HttpRoute, context: &Context<'_>) {
    if !context.settings.options.features.persistent_sessions {
        return;
    }
    let shares = http.route.iter().filter(|share| http.route.len() == 1 || share.weight > 0);
    let services = shares.map(|share| (context.service)(&share.destination));
    if let Some(session) = stateful_session::of_services(services, context.settings) {
        let config = stateful_session::per_route(session);
        route.typed_per_filter_config.insert(STATEFUL_SESSION.to_owned(), config);
    }
}

fn name(http: &HttpRoute, wanted: Option<&HttpMatch>) -> String {
    match wanted.map(|wanted| &wanted.name).filter(|name| !name.is_empty()) {
        Some(suffix) => format!("{}.{suffix}", http.name),
        None => http.name.to_string(),
    }
}

fn per_filter(http: &HttpRoute) -> BTreeMap<String, prost_types::Any> {
    let fault = http.fault.as_ref().map(|fault| (FAULT.to_owned(), fault::per_route(fault)));
    let cors = http.cors.as_ref().map(|cors| (CORS.to_owned(), cors::per_route(cors)));
    fault.into_iter().chain(cors).collect()
}

/// What a trace calls the request: the host it goes to, if that is one host.
fn operation(route: &api::Route, rule: &Name, port: u16) -> String {
    use api::route::Action;
    use api::route_action::ClusterSpecifier;
    use api::route_match::PathSpecifier;
    let path = match route.r#match.as_ref().and_then(|m| m.path_specifier.as_ref()) {
        Some(PathSpecifier::Prefix(prefix)) => format!("{prefix}*"),
        Some(PathSpecifier::Path(path)) => path.clone(),
        Some(PathSpecifier::SafeRegex(regex)) => regex.regex.clone(),
        _ => "/*".to_owned(),
    };
    if let Some(Action::Route(action)) = &route.action
        && let Some(ClusterSpecifier::Cluster(cluster)) = &action.cluster_specifier
        && let [_, port, _, host] = cluster.split('|').collect::<Vec<_>>()[..]
    {
        return format!("{host}:{port}{path}");
    }
    format!("{rule}:{port}{path}")
}

fn decorator(operation: String) -> api::Decorator {
    api::Decorator { operation, ..api::Decorator::default() }
}

pub(crate) fn takes_everything(route: &api::Route) -> bool {
    use api::route_match::PathSpecifier;
    let Some(wanted) = &route.r#match else { return false };
    let any_path = match &wanted.path_specifier {
        Some(PathSpecifier::Prefix(prefix)) => prefix == "/",
        Some(PathSpecifier::SafeRegex(regex)) => regex.regex == ".*",
        _ => false,
    };
    any_path
        && wanted.headers.is_empty()
        && wanted.query_parameters.is_empty()
        && wanted.dynamic_metadata.is_empty()
}

/// Everything to one cluster, for a host that no rule speaks of.
pub(crate) fn to_cluster(
    cluster: &Name,
    operation: String,
    hash: Option<api::route_action::HashPolicy>,
    settings: Settings<'_>,
) -> api::Route {
    let mut action = action::to(cluster);
    action::set_timeout(&mut action, None);
    action.retry_policy = retry::policy(settings.mesh.retries.as_ref(), retry::Spread::Anywhere);
    action.hash_policy = hash.into_iter().collect();
    default_route(operation, action)
}

/// Everything to the application beside the proxy.
pub(crate) fn inbound(cluster: &Name, operation: String, protocol: Protocol) -> api::Route {
    let mut action = action::to(cluster);
    let never = Some(seconds(0));
    action.timeout = never;
    action.max_stream_duration = Some(api::route_action::MaxStreamDuration {
        max_stream_duration: never,
        grpc_timeout_header_max: never,
        ..api::route_action::MaxStreamDuration::default()
    });
    // A stream that has begun cannot be begun again.
    if !protocol.is_grpc() {
        action.retry_policy = Some(api::RetryPolicy {
            retry_on: "reset-before-request".to_owned(),
            num_retries: Some(2),
            ..api::RetryPolicy::default()
        });
    }
    default_route(operation, action)
}

fn default_route(operation: String, action: api::RouteAction) -> api::Route {
    api::Route {
        name: DEFAULT.to_owned(),
        r#match: Some(matching::route_match(None)),
        decorator: Some(decorator(operation)),
        action: Some(api::route::Action::Route(action)),
        ..api::Route::default()
    }
}

/// What happens to requests for hosts that nobody knows.
#[allow(clippy::fn_params_excessive_bools, reason = "a field of the message")]
pub(crate) fn catch_all(name: &str, target: Option<&Name>, append_x_forwarded_host: bool) -> api::Route {
    use api::route::Action;
    let action = match target {
        Some(cluster) => {
            let mut action = action::to(cluster);
            action::set_timeout(&mut action, None);
            action.append_x_forwarded_host = append_x_forwarded_host;
            Action::Route(action)
        }
        None => Action::DirectResponse(api::DirectResponseAction {
            status: 502,
            ..api::DirectResponseAction::default()
        }),
    };
    api::Route {
        name: name.to_owned(),
        r#match: Some(matching::route_match(None)),
        action: Some(action),
        ..api::Route::default()
    }
}
