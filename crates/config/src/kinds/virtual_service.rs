mod reach;
mod rules;

use std::collections::BTreeMap;

use pilot_api::networking as api;
use pilot_base::{Host, Labels, Name};
use pilot_model::{
    Abort, AbortError, Body, Cors, Delay, Delegate, Destination, DirectResponse, ExportTo, Fault, HeaderOps,
    Headers, HttpMatch, HttpRoute, L4Destination, L4Match, Mirror, Percent, Redirect, RedirectPort, Retries,
    Rewrite, StringMatch, TcpRoute, TlsMatch, TlsRoute, UriRewrite, VirtualService, WeightedDestination,
};

use crate::check::host::{is_label, is_wildcard_host};
use crate::check::{Check, fitted, names};

pub(crate) fn decode(message: api::VirtualService, check: &mut Check<'_>) -> VirtualService {
    rules::validate(&message, check);
    reach::warn(&message, check);
    let api::VirtualService { hosts, gateways, http, tls, tcp, export_to } = message;
    let each = |kind: &str, i: usize| format!("spec.{kind}[{i}]");
    VirtualService {
        hosts: hosts.iter().map(|host| Host::new(host)).collect(),
        gateways: names(gateways),
        http: fitted(http.into_iter().enumerate().map(|(i, r)| http_route(r, &each("http", i), check))),
        tls: tls.into_iter().enumerate().map(|(i, r)| tls_route(r, &each("tls", i), check)).collect(),
        tcp: tcp.into_iter().enumerate().map(|(i, r)| tcp_route(r, &each("tcp", i), check)).collect(),
        export_to: ExportTo::parse(export_to.iter().map(String::as_str)),
    }
}

fn http_route(route: api::HttpRoute, path: &str, check: &mut Check<'_>) -> HttpRoute {
    let mirror_percent = match (route.mirror_percentage, route.mirror_percent) {
        (Some(p), _) => Some(Percent::Exact(p.value)),
        (None, whole) => whole.map(Percent::Whole),
    };
    let mut mirrors = Vec::new();
    for (i, mirror) in route.mirrors.into_iter().enumerate() {
        let path = format!("{path}.mirrors[{i}]");
        let Some(target) = mirror.destination else {
            check.reject(path, "has no destination");
            continue;
        };
        let percent = mirror.percentage.map_or(Percent::Whole(100), |p| Percent::Exact(p.value));
        mirrors.push(Mirror {
            destination: destination(target, &format!("{path}.destination"), check),
            percent,
        });
    }
    let matches = route.r#match.into_iter().enumerate();
    HttpRoute {
        name: route.name.into(),
        matches: fitted(matches.map(|(i, m)| http_match(m, &format!("{path}.match[{i}]"), check))),
        route: weighted(route.route, path, check),
        redirect: route.redirect.map(|r| redirect(r, &format!("{path}.redirect"), check)),
        direct_response: route
            .direct_response
            .map(|d| direct_response(d, &format!("{path}.directResponse"), check)),
        delegate: route.delegate.map(|d| Delegate { name: d.name.into(), namespace: d.namespace.into() }),
        rewrite: route.rewrite.map(|r| rewrite(r, &format!("{path}.rewrite"), check)),
        timeout: check.span(format!("{path}.timeout"), route.timeout),
        retries: route.retries.map(|r| retries(r, &format!("{path}.retries"), check)),
        fault: route.fault.map(|f| fault(f, &format!("{path}.fault"), check)),
        mirror: route.mirror.map(|mirror| destination(mirror, &format!("{path}.mirror"), check)),
        mirror_percent,
        mirrors,
        cors: route.cors_policy.map(|c| cors(c, &format!("{path}.corsPolicy"), check)),
        headers: route.headers.map(headers),
    }
}

fn weighted(
    routes: Vec<api::HttpRouteDestination>,
    path: &str,
    check: &mut Check<'_>,
) -> Vec<WeightedDestination> {
    let total: i64 = routes.iter().map(|r| i64::from(r.weight)).sum();
    if routes.len() > 1 && total == 0 {
        check.reject(format!("{path}.route"), "no destination has a weight");
    }
    let each = routes.into_iter().enumerate();
    fitted(each.map(|(i, route)| {
        let path = format!("{path}.route[{i}]");
        let target = route.destination.unwrap_or_default();
        WeightedDestination {
            destination: destination(target, &format!("{path}.destination"), check),
            weight: check.count(format!("{path}.weight"), route.weight),
            headers: route.headers.map(headers),
        }
    }))
}

fn destination(message: api::Destination, path: &str, check: &mut Check<'_>) -> Destination {
    if message.host.is_empty() {
        check.reject(format!("{path}.host"), "is missing");
    } else if message.host == "*" {
        check.reject(format!("{path}.host"), "a route cannot lead to every host");
    } else if !is_wildcard_host(&message.host) && message.host.parse::<std::net::IpAddr>().is_err() {
        check.reject(format!("{path}.host"), format!("{:?} is not a host name", message.host));
    }
    if !message.subset.is_empty() && !is_label(&message.subset) {
        check.reject(format!("{path}.subset"), format!("{:?} is not the name of a subset", message.subset));
    }
    let port = message.port.map(|p| check.port(format!("{path}.port.number"), p.number));
    Destination { host: Host::new(&message.host), subset: message.subset.into(), port }
}

/// An empty pattern asks for nothing.
/// Prefixes of paths are meant as whole segments; `/` is the prefix of all.
pub(crate) fn match_segments(rule: &mut VirtualService) {
    let matches = rule.http.iter_mut().flat_map(|route| &mut route.matches);
    for uri in matches.filter_map(|wanted| wanted.uri.as_mut()) {
        if let StringMatch::Prefix(prefix) = uri
            && prefix.as_str() != "/"
        {
            *uri = StringMatch::Segments(Name::new(prefix.strip_suffix('/').unwrap_or(prefix)));
        }
    }
}

fn string_match(message: api::StringMatch, path: &str, check: &mut Check<'_>) -> Option<StringMatch> {
    use api::string_match::MatchType;
    if let Some(MatchType::Regex(pattern)) = &message.match_type {
        check.regex(path, pattern);
    }
    Some(match message.match_type? {
        MatchType::Exact(text) => StringMatch::Exact(text.into()),
        MatchType::Prefix(text) => StringMatch::Prefix(text.into()),
        MatchType::Regex(text) => StringMatch::Regex(text.into()),
    })
}

fn string_matches(
    messages: BTreeMap<String, api::StringMatch>,
    path: &str,
    check: &mut Check<'_>,
) -> BTreeMap<Name, Option<StringMatch>> {
    let mut each = |(name, message): (String, api::StringMatch)| {
        let path = format!("{path}.{name}");
        let matcher = string_match(message, &path, check);
        (name.into(), matcher)
    };
    messages.into_iter().map(&mut each).collect()
}

fn http_match(message: api::HttpMatchRequest, path: &str, check: &mut Check<'_>) -> HttpMatch {
    let port = (message.port != 0).then(|| check.port(format!("{path}.port"), message.port));
    let mut one = |field: &str, message: Option<api::StringMatch>| {
        message.and_then(|message| string_match(message, &format!("{path}.{field}"), check))
    };
    let (uri, scheme) = (one("uri", message.uri), one("scheme", message.scheme));
    let (method, authority) = (one("method", message.method), one("authority", message.authority));
    let mut many = |field: &str, messages| string_matches(messages, &format!("{path}.{field}"), check);
    HttpMatch {
        name: message.name.into(),
        uri,
        scheme,
        method,
        authority,
        headers: many("headers", message.headers),
        without_headers: many("withoutHeaders", message.without_headers),
        query_params: many("queryParams", message.query_params),
        ignore_uri_case: message.ignore_uri_case,
        port,
        source_labels: Labels::new(message.source_labels),
        source_namespace: message.source_namespace.into(),
        gateways: names(message.gateways),
        stat_prefix: message.stat_prefix.into(),
    }
}

fn redirect(message: api::HttpRedirect, path: &str, check: &mut Check<'_>) -> Redirect {
    use api::http_redirect::{RedirectPort as Port, RedirectPortSelection};
    if !matches!(message.redirect_code, 0 | 301 | 302 | 303 | 307 | 308) {
        let code = message.redirect_code;
        check.reject(format!("{path}.redirectCode"), format!("{code} is none of 301, 302, 303, 307 and 308"));
    }
    check.header_text(format!("{path}.uri"), &message.uri);
    check.header_text(format!("{path}.authority"), &message.authority);
    let port = message.redirect_port.map(|port| match port {
        Port::Port(number) => RedirectPort::Number(check.port(format!("{path}.port"), number)),
        Port::DerivePort(how) if how == RedirectPortSelection::FromRequestPort as i32 => {
            RedirectPort::FromRequestPort
        }
        Port::DerivePort(_) => RedirectPort::FromProtocolDefault,
    });
    Redirect {
        uri: message.uri.into(),
        authority: message.authority.into(),
        port,
        scheme: message.scheme.into(),
        code: message.redirect_code,
        prefix_rewrite: message.prefix_rewrite.into(),
    }
}

/// Answers are sent to every proxy that may have to give them.
const LARGE_BODY: usize = 100 << 10;
const MOST_BODY: usize = 1 << 20;

fn direct_response(message: api::HttpDirectResponse, path: &str, check: &mut Check<'_>) -> DirectResponse {
    use api::http_body::Specifier;
    if !(200..=599).contains(&message.status) {
        check.reject(format!("{path}.status"), format!("{} is not an HTTP status", message.status));
    }
    let size = match message.body.as_ref().and_then(|body| body.specifier.as_ref()) {
        Some(Specifier::String(text)) => text.len(),
        Some(Specifier::Bytes(bytes)) => bytes.len(),
        None => 0,
    };
    if size > MOST_BODY {
        check.reject(format!("{path}.body"), "is longer than 1 MiB, which every proxy would have to hold");
    } else if size > LARGE_BODY {
        check.warn(format!("{path}.body"), "is long, and every proxy has to hold it");
    }
    let body = message.body.and_then(|body| body.specifier).map(|body| match body {
        Specifier::String(text) => Body::Text(text.into()),
        Specifier::Bytes(bytes) => Body::Bytes(bytes),
    });
    DirectResponse { status: message.status, body }
}

fn rewrite(message: api::HttpRewrite, path: &str, check: &mut Check<'_>) -> Rewrite {
    check.header_text(format!("{path}.uri"), &message.uri);
    check.header_text(format!("{path}.authority"), &message.authority);
    if let Some(regex) = &message.uri_regex_rewrite {
        check.regex(format!("{path}.uriRegexRewrite.match"), &regex.r#match);
    }
    let uri = match message.uri_regex_rewrite {
        Some(regex) => {
            Some(UriRewrite::Regex { pattern: regex.r#match.into(), substitution: regex.rewrite.into() })
        }
        None if message.uri.is_empty() => None,
        None => Some(UriRewrite::Prefix(message.uri.into())),
    };
    Rewrite { uri, authority: message.authority.into() }
}

/// Envoy's conditions for another try.
const RETRY_ON: [&str; 16] = [
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "retriable-4xx",
    "refused-stream",
    "retriable-status-codes",
    "retriable-headers",
    "envoy-ratelimited",
    "http3-post-connect-failure",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
];

/// Codes that have a meaning in HTTP's registry.
fn is_status(code: u32) -> bool {
    matches!(code, 100..=103 | 200..=208 | 226 | 300..=305 | 307 | 308 | 400..=418 | 421..=426 | 428 | 429 | 431 | 451
        | 500..=508 | 510 | 511)
}

pub(crate) fn retries(message: api::HttpRetry, path: &str, check: &mut Check<'_>) -> Retries {
    if message.attempts < 0 {
        check.reject(format!("{path}.attempts"), "must not be negative");
    }
    let more = message.per_try_timeout.is_some()
        || !message.retry_on.is_empty()
        || message.retry_remote_localities.is_some();
    if message.attempts == 0 && more {
        check.reject(
            format!("{path}.attempts"),
            "is 0, so that nothing is tried again, but says when and how",
        );
    }
    let known = |condition: &str| RETRY_ON.contains(&condition) || condition.parse().is_ok_and(is_status);
    for condition in message.retry_on.split(',').filter(|c| !message.retry_on.is_empty() && !known(c)) {
        check.reject(format!("{path}.retryOn"), format!("{condition:?} is not a condition that Envoy knows"));
    }
    Retries {
        attempts: message.attempts,
        per_try_timeout: check.span(format!("{path}.perTryTimeout"), message.per_try_timeout),
        retry_on: message.retry_on.into(),
        remote_localities: message.retry_remote_localities,
        ignore_previous_hosts: message.retry_ignore_previous_hosts,
        backoff: check.span(format!("{path}.backoff"), message.backoff),
    }
}

fn percent(message: &api::Percent, path: &str, check: &mut Check<'_>) -> Percent {
    if !(0.0..=100.0).contains(&message.value) {
        check.reject(format!("{path}.value"), format!("{} is not between 0 and 100", message.value));
    }
    Percent::Exact(message.value)
}

fn fault(message: api::HttpFaultInjection, path: &str, check: &mut Check<'_>) -> Fault {
    let delay = message.delay.and_then(|d| delay(d, &format!("{path}.delay"), check));
    let abort = message.abort.and_then(|a| abort(a, &format!("{path}.abort"), check));
    Fault { delay, abort }
}

fn delay(message: api::http_fault_injection::Delay, path: &str, check: &mut Check<'_>) -> Option<Delay> {
    use api::http_fault_injection::delay::HttpDelayType;
    let percent = match message.percentage {
        Some(p) => percent(&p, &format!("{path}.percentage"), check),
        None => Percent::Whole(check.count(format!("{path}.percent"), message.percent)),
    };
    match message.http_delay_type {
        Some(HttpDelayType::FixedDelay(duration)) => {
            let fixed = check.span(format!("{path}.fixedDelay"), Some(duration))?;
            Some(Delay { percent, fixed })
        }
        Some(HttpDelayType::ExponentialDelay(_)) => {
            check.reject(format!("{path}.exponentialDelay"), "is not supported by Envoy; use fixedDelay");
            None
        }
        None => None,
    }
}

fn abort(message: api::http_fault_injection::Abort, path: &str, check: &mut Check<'_>) -> Option<Abort> {
    use api::http_fault_injection::abort::ErrorType;
    let percent = message.percentage.map(|p| percent(&p, &format!("{path}.percentage"), check));
    let error = match message.error_type {
        Some(ErrorType::HttpStatus(status)) => {
            match u32::try_from(status).ok().filter(|s| (200..600).contains(s)) {
                Some(status) => AbortError::Http(status),
                None => {
                    check.reject(format!("{path}.httpStatus"), format!("{status} is not an HTTP status"));
                    return None;
                }
            }
        }
        Some(ErrorType::GrpcStatus(name)) => match grpc_status(&name) {
            Some(code) => AbortError::Grpc(code),
            None => {
                check.reject(format!("{path}.grpcStatus"), format!("{name:?} is not a gRPC status"));
                return None;
            }
        },
        Some(ErrorType::Http2Error(_)) => {
            check.reject(
                format!("{path}.http2Error"),
                "is not supported by Envoy; use httpStatus or grpcStatus",
            );
            return None;
        }
        None => {
            check.warn(path, "says no status, so that nothing is aborted");
            return None;
        }
    };
    Some(Abort { percent, error })
}

fn grpc_status(name: &str) -> Option<u32> {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    (0u32..).zip(NAMES).find(|(_, n)| *n == name).map(|(code, _)| code)
}

fn cors(message: api::CorsPolicy, path: &str, check: &mut Check<'_>) -> Cors {
    let ignore = api::cors_policy::UnmatchedPreflights::Ignore as i32;
    let allow_origins = if message.allow_origins.is_empty() {
        message.allow_origin.into_iter().map(|origin| StringMatch::Exact(origin.into())).collect()
    } else {
        let each = message.allow_origins.into_iter().enumerate();
        each.filter_map(|(i, m)| string_match(m, &format!("{path}.allowOrigins[{i}]"), check)).collect()
    };
    Cors {
        allow_origins,
        allow_methods: names(message.allow_methods),
        allow_headers: names(message.allow_headers),
        expose_headers: names(message.expose_headers),
        max_age: check.span(format!("{path}.maxAge"), message.max_age),
        allow_credentials: message.allow_credentials,
        ignore_unmatched_preflights: message.unmatched_preflights == ignore,
    }
}

fn headers(message: api::Headers) -> Headers {
    let ops = |ops: Option<api::headers::HeaderOperations>| {
        let ops = ops.unwrap_or_default();
        let map =
            |map: BTreeMap<String, String>| map.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        HeaderOps { set: map(ops.set), add: map(ops.add), remove: names(ops.remove) }
    };
    Headers { request: ops(message.request), response: ops(message.response) }
}

fn tls_route(route: api::TlsRoute, path: &str, check: &mut Check<'_>) -> TlsRoute {
    if route.r#match.is_empty() {
        check.reject(path, "needs a match with sniHosts");
    }
    let matches = route.r#match.into_iter().enumerate().map(|(i, m)| {
        let path = format!("{path}.match[{i}]");
        if m.sni_hosts.is_empty() {
            check.reject(format!("{path}.sniHosts"), "is missing");
        }
        let port = (m.port != 0).then(|| check.port(format!("{path}.port"), m.port));
        let base = L4Match {
            destination_subnets: names(m.destination_subnets),
            port,
            source_labels: Labels::new(m.source_labels),
            gateways: names(m.gateways),
            source_namespace: m.source_namespace.into(),
        };
        TlsMatch { sni_hosts: names(m.sni_hosts), base }
    });
    TlsRoute { matches: matches.collect(), route: l4_destinations(route.route, path, check) }
}

fn tcp_route(route: api::TcpRoute, path: &str, check: &mut Check<'_>) -> TcpRoute {
    let matches = route.r#match.into_iter().enumerate().map(|(i, m)| {
        let port = (m.port != 0).then(|| check.port(format!("{path}.match[{i}].port"), m.port));
        L4Match {
            destination_subnets: names(m.destination_subnets),
            port,
            source_labels: Labels::new(m.source_labels),
            gateways: names(m.gateways),
            source_namespace: m.source_namespace.into(),
        }
    });
    TcpRoute { matches: matches.collect(), route: l4_destinations(route.route, path, check) }
}

fn l4_destinations(
    routes: Vec<api::RouteDestination>,
    path: &str,
    check: &mut Check<'_>,
) -> Vec<L4Destination> {
    if routes.is_empty() {
        check.reject(format!("{path}.route"), "is missing");
    }
    let total: i64 = routes.iter().map(|r| i64::from(r.weight)).sum();
    if routes.len() > 1 && total == 0 {
        check.reject(format!("{path}.route"), "no destination has a weight");
    }
    let each = routes.into_iter().enumerate();
    each.map(|(i, route)| {
        let path = format!("{path}.route[{i}]");
        L4Destination {
            destination: destination(
                route.destination.unwrap_or_default(),
                &format!("{path}.destination"),
                check,
            ),
            weight: check.count(format!("{path}.weight"), route.weight),
        }
    })
    .collect()
}
