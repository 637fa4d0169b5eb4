//! What a route does with a request.

use std::net::SocketAddr;
use std::time::Duration;

use pilot_base::Hash64;
use pilot_envoy_api::envoy::config::core::v3::{RuntimeFractionalPercent, data_source};
use pilot_envoy_api::envoy::config::route::v3::redirect_action::{
    PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
};
use pilot_envoy_api::envoy::config::route::v3::route::Action;
use pilot_envoy_api::envoy::config::route::v3::route_action::hash_policy::PolicySpecifier;
use pilot_envoy_api::envoy::config::route::v3::route_action::{ClusterSpecifier, HostRewriteSpecifier};
use pilot_envoy_api::envoy::config::route::v3::route_match::PathSpecifier;
use pilot_envoy_api::envoy::config::route::v3::virtual_host::TlsRequirementType;
use pilot_envoy_api::envoy::config::route::v3::weighted_cluster::ClusterWeight;
use pilot_envoy_api::envoy::config::route::v3::{
    RedirectAction, RetryPolicy, Route, RouteAction, VirtualHost,
};
use pilot_envoy_api::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier;
use pilot_envoy_api::envoy::extensions::filters::http::cors::v3::CorsPolicy;
use pilot_envoy_api::envoy::extensions::filters::http::fault::v3::HttpFault;
use pilot_envoy_api::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType;
use pilot_envoy_api::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use pilot_envoy_api::envoy::r#type::v3::FractionalPercent;
use pilot_envoy_api::envoy::r#type::v3::fractional_percent::DenominatorType;
use pilot_envoy_api::from_any;
use regex::Regex;

use super::upstream::{Retry, Upstream, ejects_after, endpoints, endpoints_at_once};
use super::{Answer, Branch, HeaderOps, HttpCall, Snapshot, matching, route, tls};

pub(super) fn http(
    snapshot: &Snapshot,
    manager: &HttpConnectionManager,
    call: &HttpCall,
    to: SocketAddr,
) -> Result<Vec<Branch>, String> {
    let certain = |answer| Ok(vec![Branch { chance: 1.0, delay: Duration::ZERO, answer }]);
    let Some(table) = route::table(snapshot, manager)? else { return certain(Answer::status(404)) };
    let Some((host, route)) = route::find(table, call)? else { return certain(Answer::status(404)) };
    if let Some(answer) = preflight(route, call)? {
        return certain(answer);
    }
    let answers = match &route.action {
        Some(Action::Redirect(redirect)) => vec![(1.0, redirected(route, redirect, call)?)],
        Some(Action::DirectResponse(direct)) => {
            let body = match direct.body.as_ref().and_then(|body| body.specifier.as_ref()) {
                Some(data_source::Specifier::InlineString(text)) => text.clone(),
                Some(data_source::Specifier::InlineBytes(bytes)) => {
                    String::from_utf8_lossy(bytes).into_owned()
                }
                _ => String::new(),
            };
            let status = u16::try_from(direct.status).map_err(|e| e.to_string())?;
            let mut headers = Vec::new();
            response_ops(host, route, None).apply(&mut headers);
            vec![(1.0, Answer::Direct { status, headers, body })]
        }
        Some(Action::Route(action)) => forwarded(snapshot, Matched { host, route, action }, call, to)?,
        other => return Err(format!("route {} does something unknown: {other:?}", route.name)),
    };
    Ok(with_faults(route, &answers))
}

/// Where a host sends clients that come without TLS, if it insists on it.
pub(super) fn must_be_secure(
    snapshot: &Snapshot,
    manager: &HttpConnectionManager,
    call: &HttpCall,
) -> Result<Option<Answer>, String> {
    let host = route::table(snapshot, manager)?.and_then(|table| route::virtual_host(table, &call.authority));
    let insists = host.is_some_and(|host| host.require_tls() == TlsRequirementType::All);
    let location = || ("location".to_owned(), format!("https://{}{}", call.authority, call.path));
    Ok(insists.then(|| Answer::Direct { status: 301, headers: vec![location()], body: String::new() }))
}

#[derive(Clone, Copy)]
struct Matched<'a> {
    host: &'a VirtualHost,
    route: &'a Route,
    action: &'a RouteAction,
}

/// What a route allows browsers from other places to do, if this request comes from one that it allows.
fn cors(route: &Route, call: &HttpCall) -> Result<Option<(CorsPolicy, String)>, String> {
    let Some(policy) = route.typed_per_filter_config.get("envoy.filters.http.cors") else { return Ok(None) };
    let policy: CorsPolicy = from_any(policy).ok_or("the CORS policy cannot be read")?;
    let Some(origin) = header(call, "origin") else { return Ok(None) };
    let mut allowed = false;
    for matcher in &policy.allow_origin_string_match {
        allowed |= matching::text(matcher, &origin)?;
    }
    Ok(allowed.then_some((policy, origin)))
}

fn header(call: &HttpCall, name: &str) -> Option<String> {
    call.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone())
}

/// A browser asks beforehand whether it may call.
fn preflight(route: &Route, call: &HttpCall) -> Result<Option<Answer>, String> {
    if call.method != "OPTIONS" || header(call, "access-control-request-method").is_none() {
        return Ok(None);
    }
    let Some((policy, origin)) = cors(route, call)? else { return Ok(None) };
    let credentials = if policy.allow_credentials == Some(true) { "true" } else { "" };
    let said = [
        ("access-control-allow-origin", origin),
        ("access-control-allow-methods", policy.allow_methods),
        ("access-control-allow-headers", policy.allow_headers),
        ("access-control-max-age", policy.max_age),
        ("access-control-allow-credentials", credentials.to_owned()),
    ];
    let headers = said.into_iter().filter(|(_, v)| !v.is_empty()).map(|(n, v)| (n.to_owned(), v)).collect();
    Ok(Some(Answer::Direct { status: 200, headers, body: String::new() }))
}

/// What an answer to a browser from another place says besides.
fn with_cors(ops: HeaderOps, route: &Route, call: &HttpCall) -> Result<HeaderOps, String> {
    let Some((policy, origin)) = cors(route, call)? else { return Ok(ops) };
    let mut ops = ops.set("access-control-allow-origin", &origin);
    if policy.allow_credentials == Some(true) {
        ops = ops.set("access-control-allow-credentials", "true");
    }
    if !policy.expose_headers.is_empty() {
        ops = ops.set("access-control-expose-headers", &policy.expose_headers);
    }
    Ok(ops)
}

fn redirected(route: &Route, redirect: &RedirectAction, call: &HttpCall) -> Result<Answer, String> {
    let (path, query) = call.path.split_once('?').map_or((call.path.as_str(), None), |(p, q)| (p, Some(q)));
    let authority = match (redirect.host_redirect.as_str(), redirect.port_redirect) {
        ("", 0) => call.authority.clone(),
        ("", port) => format!("{}:{port}", call.authority.split(':').next().unwrap_or_default()),
        (host, 0) => host.to_owned(),
        (host, port) => format!("{host}:{port}"),
    };
    let scheme = match &redirect.scheme_rewrite_specifier {
        Some(SchemeRewriteSpecifier::SchemeRedirect(scheme)) => scheme.clone(),
        Some(SchemeRewriteSpecifier::HttpsRedirect(true)) => "https".to_owned(),
        _ => "http".to_owned(),
    };
    let path = match &redirect.path_rewrite_specifier {
        None => path.to_owned(),
        Some(PathRewriteSpecifier::PathRedirect(to)) if to.is_empty() => path.to_owned(),
        Some(PathRewriteSpecifier::PathRedirect(path)) => path.clone(),
        Some(PathRewriteSpecifier::PrefixRewrite(prefix)) => rewrite_prefix(route, path, prefix),
        Some(other) => return Err(format!("unknown redirect {other:?}")),
    };
    let query = query.filter(|_| !redirect.strip_query && !path.contains('?'));
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    let status = match redirect.response_code() {
        RedirectResponseCode::MovedPermanently => 301,
        RedirectResponseCode::Found => 302,
        RedirectResponseCode::SeeOther => 303,
        RedirectResponseCode::TemporaryRedirect => 307,
        RedirectResponseCode::PermanentRedirect => 308,
    };
    let headers = vec![("location".to_owned(), format!("{scheme}://{authority}{path}{query}"))];
    Ok(Answer::Direct { status, headers, body: String::new() })
}

fn rewrite_prefix(route: &Route, path: &str, prefix: &str) -> String {
    let matched = match route.r#match.as_ref().and_then(|m| m.path_specifier.as_ref()) {
        Some(PathSpecifier::Prefix(matched) | PathSpecifier::PathSeparatedPrefix(matched)) => matched.len(),
        _ => path.len(),
    };
    format!("{prefix}{}", &path[matched.min(path.len())..])
}

fn forwarded(
    snapshot: &Snapshot,
    matched: Matched<'_>,
    call: &HttpCall,
    to: SocketAddr,
) -> Result<Vec<(f64, Answer)>, String> {
    let one = |name: &str| {
        vec![ClusterWeight { name: name.to_owned(), weight: Some(1), ..ClusterWeight::default() }]
    };
    let clusters = match &matched.action.cluster_specifier {
        Some(ClusterSpecifier::Cluster(name)) => one(name),
        Some(ClusterSpecifier::WeightedClusters(weighted)) => weighted.clusters.clone(),
        other => return Err(format!("route {} names no cluster: {other:?}", matched.route.name)),
    };
    let total: u32 = clusters.iter().filter_map(|c| c.weight).sum();
    let mut answers = Vec::new();
    for cluster in clusters.iter().filter(|c| c.weight != Some(0)) {
        let chance = f64::from(cluster.weight.unwrap_or(0)) / f64::from(total.max(1));
        answers.push((chance, to_cluster(snapshot, matched, cluster, call, to)?));
    }
    Ok(answers)
}

fn to_cluster(
    snapshot: &Snapshot,
    Matched { host, route, action }: Matched<'_>,
    cluster: &ClusterWeight,
    call: &HttpCall,
    to: SocketAddr,
) -> Result<Answer, String> {
    let key = hash_key(action, call);
    let Some(endpoints) = endpoints(snapshot, &cluster.name, to, key) else { return Ok(Answer::status(503)) };
    let mut request = call.clone();
    request.headers.iter_mut().for_each(|(name, _)| *name = name.to_lowercase());
    request.path = rewritten(route, action, &call.path)?;
    match &action.host_rewrite_specifier {
        None => {}
        Some(HostRewriteSpecifier::HostRewriteLiteral(host)) => request.authority.clone_from(host),
        Some(other) => return Err(format!("unknown host rewrite {other:?}")),
    }
    let ops = HeaderOps::default()
        .level(&cluster.request_headers_to_add, &cluster.request_headers_to_remove)
        .level(&route.request_headers_to_add, &route.request_headers_to_remove)
        .level(&host.request_headers_to_add, &host.request_headers_to_remove);
    ops.apply(&mut request.headers);
    let timeout = match &action.timeout {
        None => Some(Duration::from_secs(15)),
        Some(timeout) => span(timeout).filter(|timeout| !timeout.is_zero()),
    };
    let retry = action.retry_policy.as_ref().or(host.retry_policy.as_ref()).map(retry).unwrap_or_default();
    let tls = tls::upstream(snapshot, &cluster.name, Some(&request.authority));
    Ok(Answer::Forward(Box::new(Upstream {
        cluster: cluster.name.clone(),
        tls,
        endpoints,
        request: Some(request),
        response: with_cors(response_ops(host, route, Some(cluster)), route, call)?,
        counts_attempts: host.include_request_attempt_count,
        ejects_after: ejects_after(snapshot, &cluster.name),
        timeout,
        retry,
        mirrors: mirrors(snapshot, action, to),
    })))
}

fn response_ops(host: &VirtualHost, route: &Route, cluster: Option<&ClusterWeight>) -> HeaderOps {
    let ops = HeaderOps::default();
    let ops = match cluster {
        Some(c) => ops.level(&c.response_headers_to_add, &c.response_headers_to_remove),
        None => ops,
    };
    ops.level(&route.response_headers_to_add, &route.response_headers_to_remove)
        .level(&host.response_headers_to_add, &host.response_headers_to_remove)
}

fn mirrors(snapshot: &Snapshot, action: &RouteAction, to: SocketAddr) -> Vec<(SocketAddr, f64)> {
    let mut all = Vec::new();
    for policy in &action.request_mirror_policies {
        let chance = runtime_fraction(policy.runtime_fraction.as_ref());
        let endpoints = endpoints_at_once(snapshot, &policy.cluster, to, None).unwrap_or_default();
        all.extend(endpoints.into_iter().map(|(address, share)| (address, share * chance)));
    }
    all
}

fn rewritten(route: &Route, action: &RouteAction, path: &str) -> Result<String, String> {
    let (only_path, query) =
        path.split_once('?').map_or((path, String::new()), |(p, q)| (p, format!("?{q}")));
    if !action.prefix_rewrite.is_empty() {
        return Ok(format!("{}{query}", rewrite_prefix(route, only_path, &action.prefix_rewrite)));
    }
    if let Some(rewrite) = &action.regex_rewrite {
        let pattern = rewrite.pattern.as_ref().map_or("", |pattern| pattern.regex.as_str());
        let regex = Regex::new(pattern).map_err(|error| error.to_string())?;
        // `\1` is how Envoy writes what this crate calls `${1}`.
        let digits = Regex::new(r"\\(\d)").map_err(|error| error.to_string())?;
        let substitution = digits.replace_all(&rewrite.substitution, "$${$1}").into_owned();
        return Ok(format!("{}{query}", regex.replace_all(only_path, substitution.as_str())));
    }
    Ok(path.to_owned())
}

fn retry(policy: &RetryPolicy) -> Retry {
    Retry {
        attempts: policy.num_retries.unwrap_or(1),
        on: policy.retry_on.split(',').map(|c| c.trim().to_owned()).collect(),
        statuses: policy.retriable_status_codes.clone(),
        per_try_timeout: policy.per_try_timeout.as_ref().and_then(span).filter(|t| !t.is_zero()),
        elsewhere: policy.retry_host_predicate.iter().any(|p| p.name.ends_with("previous_hosts")),
    }
}

/// The first policy that finds something in the request decides.
fn hash_key(action: &RouteAction, call: &HttpCall) -> Option<u64> {
    let find = |policy: &PolicySpecifier| match policy {
        PolicySpecifier::Header(wanted) => header(call, &wanted.header_name),
        PolicySpecifier::QueryParameter(wanted) => {
            let query = call.path.split_once('?')?.1;
            query
                .split('&')
                .filter_map(|pair| pair.split_once('='))
                .find(|(n, _)| *n == wanted.name)
                .map(|(_, v)| v.to_owned())
        }
        PolicySpecifier::Cookie(wanted) => {
            let cookies = header(call, "cookie").unwrap_or_default();
            let mut pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
            pairs.find(|(name, _)| *name == wanted.name).map(|(_, value)| value.to_owned())
        }
        PolicySpecifier::ConnectionProperties(wanted) => wanted.source_ip.then(|| "127.0.0.1".to_owned()),
        PolicySpecifier::FilterState(_) => None,
    };
    let policies = action.hash_policy.iter().filter_map(|policy| policy.policy_specifier.as_ref());
    policies.filter_map(find).next().map(|text| Hash64::of(text.as_bytes()).0)
}

/// Faults come before the call goes on: some are delayed, some are answered with an error.
fn with_faults(route: &Route, answers: &[(f64, Answer)]) -> Vec<Branch> {
    let config = route.typed_per_filter_config.get("envoy.filters.http.fault");
    let fault = config.and_then(from_any::<HttpFault>).unwrap_or_default();
    let delay = fault.delay.as_ref().and_then(|delay| {
        let Some(FaultDelaySecifier::FixedDelay(span_of)) = &delay.fault_delay_secifier else { return None };
        Some((fraction(delay.percentage.as_ref()), span(span_of)?))
    });
    let abort = fault.abort.as_ref().and_then(|abort| match abort.error_type {
        Some(ErrorType::HttpStatus(status)) => {
            Some((fraction(abort.percentage.as_ref()), u16::try_from(status).ok()?))
        }
        _ => None,
    });
    let (late, wait) = delay.unwrap_or((0.0, Duration::ZERO));
    let (failed, status) = abort.unwrap_or((0.0, 0));
    let mut branches = Vec::new();
    for (chance, delay) in [(late, wait), (1.0 - late, Duration::ZERO)] {
        branches.push(Branch { chance: chance * failed, delay, answer: Answer::status(status) });
        for (share, answer) in answers {
            let chance = chance * (1.0 - failed) * share;
            branches.push(Branch { chance, delay, answer: answer.clone() });
        }
    }
    branches.retain(|branch| branch.chance > 0.0);
    branches
}

fn fraction(percent: Option<&FractionalPercent>) -> f64 {
    let Some(percent) = percent else { return 0.0 };
    let of = match percent.denominator() {
        DenominatorType::Hundred => 100.0,
        DenominatorType::TenThousand => 10_000.0,
        DenominatorType::Million => 1_000_000.0,
    };
    f64::from(percent.numerator) / of
}

fn runtime_fraction(percent: Option<&RuntimeFractionalPercent>) -> f64 {
    percent.map_or(1.0, |percent| fraction(percent.default_value.as_ref()))
}

fn span(duration: &prost_types::Duration) -> Option<Duration> {
    Duration::try_from(*duration).ok()
}
