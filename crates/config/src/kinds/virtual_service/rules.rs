//! What Istio asks of a VirtualService beyond the form of its fields.

use std::net::IpAddr;

use pilot_api::networking as api;
use pilot_base::Host;

use crate::check::header::{HeaderUse, is_claim};
use crate::check::host::{is_label, is_wildcard_host};
use crate::check::{Check, Exported};

const MESH: &str = "mesh";

/// Who reads the rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Sidecars,
    Gateways,
}

/// Does it route hosts, or do others leave routes to it?
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Root,
    Delegate,
}

pub(super) fn validate(message: &api::VirtualService, check: &mut Check<'_>) {
    let for_mesh = message.gateways.is_empty() || message.gateways.iter().any(|gateway| gateway == MESH);
    let whom = if for_mesh { For::Sidecars } else { For::Gateways };
    let part = if message.hosts.is_empty() { Part::Delegate } else { Part::Root };
    if part == Part::Delegate {
        delegate(message, check);
    }
    check.gateway_names("spec.gateways", &message.gateways);
    hosts(message, whom, check);
    if message.http.is_empty() && message.tls.is_empty() && message.tcp.is_empty() {
        check.reject("spec", "has no route: one of http, tls and tcp is needed");
    }
    for (i, route) in message.http.iter().enumerate() {
        let path = format!("spec.http[{i}]");
        http_route(route, part, &path, check);
        for (j, wanted) in route.r#match.iter().enumerate() {
            http_match(wanted, whom, &format!("{path}.match[{j}]"), check);
        }
    }
    for (i, route) in message.tls.iter().enumerate() {
        for (j, wanted) in route.r#match.iter().enumerate() {
            let path = format!("spec.tls[{i}].match[{j}]");
            for (k, name) in wanted.sni_hosts.iter().enumerate() {
                sni(name, &message.hosts, &format!("{path}.sniHosts[{k}]"), check);
            }
            l4_match(&wanted.destination_subnets, &path, check);
            check.label_map(&format!("{path}.sourceLabels"), &wanted.source_labels);
            check.gateway_names(&format!("{path}.gateways"), &wanted.gateways);
        }
    }
    for (i, route) in message.tcp.iter().enumerate() {
        for (j, wanted) in route.r#match.iter().enumerate() {
            let path = format!("spec.tcp[{i}].match[{j}]");
            l4_match(&wanted.destination_subnets, &path, check);
            check.label_map(&format!("{path}.sourceLabels"), &wanted.source_labels);
            check.gateway_names(&format!("{path}.gateways"), &wanted.gateways);
        }
    }
    check.export_to(&message.export_to, Exported::Rule);
}

/// One without hosts is there for others to leave routes to.
fn delegate(message: &api::VirtualService, check: &mut Check<'_>) {
    let said = [
        ("gateways", !message.gateways.is_empty()),
        ("tls", !message.tls.is_empty()),
        ("tcp", !message.tcp.is_empty()),
    ];
    for (field, _) in said.into_iter().filter(|(_, is_said)| *is_said) {
        let message =
            "is not allowed without hosts: others can leave only http routes to this VirtualService";
        check.reject(format!("spec.{field}"), message);
    }
}

fn hosts(message: &api::VirtualService, whom: For, check: &mut Check<'_>) {
    let for_mesh = whom == For::Sidecars;
    let made_up = |host: &str| !for_mesh && host.starts_with("outbound_.") && !message.tls.is_empty();
    let mut all_good = true;
    for (i, host) in message.hosts.iter().enumerate() {
        let path = format!("spec.hosts[{i}]");
        let good = is_wildcard_host(host) || host.parse::<IpAddr>().is_ok() || made_up(host);
        if !good {
            check.reject(path, format!("{host:?} is not a host name"));
        } else if for_mesh && host == "*" {
            check.reject(path, "* stands for every host, which only a rule for a gateway may claim");
        }
        all_good &= good && !(for_mesh && host == "*");
    }
    for (i, host) in message.hosts.iter().enumerate().filter(|_| all_good) {
        let overlapping = message.hosts[..i].iter().find(|other| Host::new(other).overlaps(&Host::new(host)));
        if let Some(other) = overlapping {
            check.reject(
                format!("spec.hosts[{i}]"),
                format!("{host:?} and {other:?} stand for the same hosts"),
            );
        }
    }
}

fn sni(name: &str, hosts: &[String], path: &str, check: &mut Check<'_>) {
    if !is_wildcard_host(name) && !name.starts_with("outbound_.") {
        if name.parse::<IpAddr>().is_ok() {
            check.warn(path, format!("{name:?} is an address; hardly any client asks for one by name"));
        } else {
            check.reject(path, format!("{name:?} is not a host name"));
        }
        return;
    }
    if !hosts.iter().any(|host| Host::new(name).subset_of(&Host::new(host))) {
        let message = format!("{name:?} is none of the hosts of this VirtualService: {}", hosts.join(", "));
        check.reject(path, message);
    }
}

fn l4_match(subnets: &[String], path: &str, check: &mut Check<'_>) {
    for (i, subnet) in subnets.iter().enumerate() {
        let good = match subnet.split_once('/') {
            Some((address, bits)) => match (address.parse::<IpAddr>(), bits.parse::<u8>()) {
                (Ok(address), Ok(bits)) => bits <= if address.is_ipv4() { 32 } else { 128 },
                _ => false,
            },
            None => subnet.parse::<IpAddr>().is_ok(),
        };
        if !good {
            let message = format!("{subnet:?} is neither an address nor a range like 10.0.0.0/8");
            check.reject(format!("{path}.destinationSubnets[{i}]"), message);
        }
    }
}

fn http_match(wanted: &api::HttpMatchRequest, whom: For, path: &str, check: &mut Check<'_>) {
    let maps = [("headers", &wanted.headers), ("withoutHeaders", &wanted.without_headers)];
    for (field, names) in maps {
        for name in names.keys() {
            let path = format!("{path}.{field}.{name}");
            if whom == For::Sidecars && is_claim(name) {
                check.reject(path, "claims of a token can be matched only at a gateway");
            } else {
                check.matched_header(&path, name);
            }
        }
    }
    let texts = [("scheme", &wanted.scheme), ("method", &wanted.method), ("authority", &wanted.authority)];
    for (field, text) in texts {
        not_empty(text.as_ref(), &format!("{path}.{field}"), check);
    }
    let named = wanted.headers.iter().map(|entry| ("headers", entry));
    let named = named.chain(wanted.without_headers.iter().map(|entry| ("withoutHeaders", entry)));
    for (field, (name, text)) in named.chain(wanted.query_params.iter().map(|entry| ("queryParams", entry))) {
        not_empty(Some(text), &format!("{path}.{field}.{name}"), check);
    }
    check.label_map(&format!("{path}.sourceLabels"), &wanted.source_labels);
    check.gateway_names(&format!("{path}.gateways"), &wanted.gateways);
    if !wanted.source_namespace.is_empty() && !is_label(&wanted.source_namespace) {
        let message = format!("{:?} is not the name of a namespace", wanted.source_namespace);
        check.reject(format!("{path}.sourceNamespace"), message);
    }
}

fn not_empty(text: Option<&api::StringMatch>, path: &str, check: &mut Check<'_>) {
    use api::string_match::MatchType;
    match text.and_then(|text| text.match_type.as_ref()) {
        Some(MatchType::Prefix(text)) if text.is_empty() => {
            check.reject(path, "an empty prefix matches everything");
        }
        Some(MatchType::Regex(text)) if text.is_empty() => {
            check.reject(path, "an empty pattern matches nothing");
        }
        _ => (),
    }
}

fn http_route(route: &api::HttpRoute, part: Part, path: &str, check: &mut Check<'_>) {
    action(route, part, path, check);
    headers(route.headers.as_ref(), &format!("{path}.headers"), check);
    for (i, share) in route.route.iter().enumerate() {
        let path = format!("{path}.route[{i}]");
        if share.destination.is_none() {
            check.reject(format!("{path}.destination"), "is missing");
        }
        headers(share.headers.as_ref(), &format!("{path}.headers"), check);
    }
    if let Some(percent) = route.mirror_percent {
        check.warn(format!("{path}.mirrorPercent"), "is deprecated; use mirrorPercentage");
        if percent > 100 {
            check.reject(format!("{path}.mirrorPercent"), format!("{percent} is more than 100"));
        }
    }
    let mirrors = route.mirrors.iter().enumerate();
    let mirrors = mirrors.map(|(i, mirror)| (format!("{path}.mirrors[{i}].percentage"), &mirror.percentage));
    let first = std::iter::once((format!("{path}.mirrorPercentage"), &route.mirror_percentage));
    for (path, percentage) in first.chain(mirrors) {
        if let Some(percent) = percentage.as_ref().filter(|p| !(0.0..=100.0).contains(&p.value)) {
            check.reject(path, format!("{} is not between 0 and 100", percent.value));
        }
    }
    if let Some(cors) = &route.cors_policy {
        self::cors(cors, &format!("{path}.corsPolicy"), check);
    }
    if route.fault.as_ref().is_some_and(|fault| fault.delay.is_none() && fault.abort.is_none()) {
        check.reject(format!("{path}.fault"), "has neither a delay nor an abort");
    }
    if let Some(redirect) = &route.redirect {
        self::redirect(redirect, &route.r#match, &format!("{path}.redirect"), check);
    }
    if let Some(rewrite) = &route.rewrite {
        self::rewrite(rewrite, route.headers.as_ref(), &format!("{path}.rewrite"), check);
    }
}

/// What a route does with requests: one thing, and nothing that cannot go with it.
fn action(route: &api::HttpRoute, part: Part, path: &str, check: &mut Check<'_>) {
    if route.delegate.is_some() && part == Part::Delegate {
        check.reject(format!("{path}.delegate"), "cannot be passed on once more");
    }
    if route.delegate.is_some() && part == Part::Root {
        for (field, is_said) in [("redirect", route.redirect.is_some()), ("route", !route.route.is_empty())] {
            if is_said {
                check.reject(format!("{path}.{field}"), "is not allowed beside delegate, which says it");
            }
        }
        return;
    }
    let (does, answers) = match (&route.redirect, &route.direct_response) {
        (Some(_), _) => ("redirect", true),
        (None, Some(_)) => ("directResponse", true),
        (None, None) => ("route", false),
    };
    let beside = [
        ("route", !route.route.is_empty()),
        ("fault", route.fault.is_some()),
        ("rewrite", route.rewrite.is_some()),
        ("directResponse", route.direct_response.is_some() && does == "redirect"),
    ];
    for (field, _) in beside.into_iter().filter(|(_, is_said)| *is_said && answers) {
        check.reject(format!("{path}.{field}"), format!("cannot stand beside {does}"));
    }
    if !answers && route.route.is_empty() {
        check.reject(path, "does nothing: it needs route, redirect, directResponse or delegate");
    }
    if route.mirror.is_some() && !route.mirrors.is_empty() {
        check.reject(format!("{path}.mirrors"), "cannot stand beside mirror");
    }
}

fn headers(headers: Option<&api::Headers>, path: &str, check: &mut Check<'_>) {
    let Some(headers) = headers else { return };
    let sides = [
        ("request", headers.request.as_ref(), HeaderUse::Request),
        ("response", headers.response.as_ref(), HeaderUse::Other),
    ];
    for (side, operations, header_use) in sides {
        let Some(operations) = operations else { continue };
        for (field, values) in [("add", &operations.add), ("set", &operations.set)] {
            for (name, value) in values {
                check.changed_header(&format!("{path}.{side}.{field}"), name, header_use);
                check.header_value(&format!("{path}.{side}.{field}.{name}"), value);
            }
        }
        for name in &operations.remove {
            check.changed_header(&format!("{path}.{side}.remove"), name, HeaderUse::Other);
        }
    }
}

fn cors(cors: &api::CorsPolicy, path: &str, check: &mut Check<'_>) {
    use api::string_match::MatchType;
    const METHODS: [&str; 10] =
        ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "*"];
    for (i, origin) in cors.allow_origins.iter().enumerate() {
        let text = match &origin.match_type {
            Some(MatchType::Exact(text) | MatchType::Prefix(text) | MatchType::Regex(text)) => text.as_str(),
            None => "",
        };
        if text.is_empty() {
            check.reject(format!("{path}.allowOrigins[{i}]"), "says nothing");
        }
    }
    for method in cors.allow_methods.iter().filter(|method| !METHODS.contains(&method.as_str())) {
        check.reject(format!("{path}.allowMethods"), format!("{method:?} is not a method of HTTP"));
    }
    for (field, names) in [("allowHeaders", &cors.allow_headers), ("exposeHeaders", &cors.expose_headers)] {
        names.iter().for_each(|name| check.cors_header(&format!("{path}.{field}"), name));
    }
    if cors.max_age.as_ref().is_some_and(|age| age.nanos > 0) {
        check.reject(format!("{path}.maxAge"), "must be whole seconds");
    }
}

fn redirect(
    redirect: &api::HttpRedirect,
    matches: &[api::HttpMatchRequest],
    path: &str,
    check: &mut Check<'_>,
) {
    use api::string_match::MatchType;
    let by_prefix = !redirect.prefix_rewrite.is_empty();
    if by_prefix && !redirect.uri.is_empty() {
        check.reject(path, "has both uri and prefixRewrite");
    }
    let is_prefix = |uri: &api::StringMatch| matches!(uri.match_type, Some(MatchType::Prefix(_)));
    let not_prefix = matches.iter().filter_map(|m| m.uri.as_ref()).any(|uri| !is_prefix(uri));
    if by_prefix && not_prefix {
        check.reject(format!("{path}.prefixRewrite"), "needs matches by a prefix of the uri");
    }
    let texts = [&redirect.uri, &redirect.prefix_rewrite, &redirect.authority, &redirect.scheme];
    if texts.iter().all(|text| text.is_empty()) && redirect.redirect_port.is_none() {
        check.reject(path, "leads nowhere: it needs uri, authority, scheme or port");
    }
    if !matches!(redirect.scheme.as_str(), "" | "http" | "https") {
        check.reject(format!("{path}.scheme"), format!("{:?} is neither http nor https", redirect.scheme));
    }
}

fn rewrite(rewrite: &api::HttpRewrite, headers: Option<&api::Headers>, path: &str, check: &mut Check<'_>) {
    match &rewrite.uri_regex_rewrite {
        Some(_) if !rewrite.uri.is_empty() => check.reject(path, "has both uri and uriRegexRewrite"),
        Some(regex) if regex.r#match.is_empty() || regex.rewrite.is_empty() => {
            check.reject(format!("{path}.uriRegexRewrite"), "needs both match and rewrite");
        }
        None if rewrite.uri.is_empty() && rewrite.authority.is_empty() => {
            check.reject(path, "changes nothing: it needs uri, uriRegexRewrite or authority");
        }
        _ => (),
    }
    let request = headers.and_then(|headers| headers.request.as_ref());
    let named = request.into_iter().flat_map(|request| request.set.keys().chain(request.add.keys()));
    let hosts =
        named.filter(|name| name.eq_ignore_ascii_case("host") || name.eq_ignore_ascii_case(":authority"));
    if hosts.count() + usize::from(!rewrite.authority.is_empty()) > 1 {
        check.reject(format!("{path}.authority"), "the host of the request is set more than once");
    }
}
