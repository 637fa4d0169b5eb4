use pilot_base::Name;
use pilot_envoy_api::envoy::config::core::v3 as core;
use pilot_envoy_api::envoy::config::route::v3 as api;
use pilot_envoy_api::envoy::r#type::matcher::v3::RegexMatchAndSubstitute;
use pilot_mesh::ClusterName;
use pilot_model::{
    Body, Destination, DirectResponse, HttpRoute, Percent, Redirect, RedirectPort, Rewrite, Span, UriRewrite,
    WeightedDestination,
};

use super::retry::{self, Spread};
use super::{Context, hash, header};
use crate::convert::{duration, fractional_percent, regex, seconds};

pub(super) fn to(cluster: &Name) -> api::RouteAction {
    use api::route_action::ClusterSpecifier;
    api::RouteAction {
        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster.to_string())),
        ..api::RouteAction::default()
    }
}

/// How long a request may take; for ever, if nobody says. The client's own wish for a gRPC call counts up to that.
#[allow(deprecated, reason = "its successor has regressions, and all supported proxies read this field")]
pub(super) fn set_timeout(action: &mut api::RouteAction, timeout: Option<Span>) {
    let timeout = timeout.map_or(seconds(0), duration);
    action.timeout = Some(timeout);
    action.max_grpc_timeout = Some(timeout);
}

/// Sends a request on.
pub(super) fn forward(
    route: &mut api::Route,
    http: &HttpRoute,
    authority: Option<String>,
    context: &Context<'_>,
) {
    use api::route_action::{ClusterSpecifier, HostRewriteSpecifier};
    let mut action = api::RouteAction::default();
    set_timeout(&mut action, http.timeout);
    if context.traits.proxyless {
        use api::route_action::MaxStreamDuration;
        // Libraries do not read the older field.
        #[allow(deprecated, reason = "this takes it back")]
        let older = action.max_grpc_timeout.take();
        action.max_stream_duration =
            Some(MaxStreamDuration { max_stream_duration: older, ..MaxStreamDuration::default() });
    }
    let mut authority = authority;
    if let Some(rewrite) = &http.rewrite {
        set_rewrite(&mut action, rewrite);
        action.append_x_forwarded_host = context.traits.x_forwarded_host;
        if !rewrite.authority.is_empty() {
            authority = Some(rewrite.authority.to_string());
        }
    }
    action.host_rewrite_specifier = authority.map(HostRewriteSpecifier::HostRewriteLiteral);
    action.request_mirror_policies = http.copies().filter_map(|copy| mirror(copy, context)).collect();
    let mut spread = Spread::Anywhere;
    if let [only] = &http.route[..] {
        let hash = hash::of_destination(&only.destination, context);
        if hash.is_some() {
            spread = Spread::SameHost;
        }
        let cluster = cluster(&only.destination, context);
        action.cluster_specifier = Some(ClusterSpecifier::Cluster(cluster.to_string()));
        if let Some(headers) = &only.headers {
            let own = header::operations(headers).apply(route);
            // The route's own word counts over that of its destination.
            if action.host_rewrite_specifier.is_none() {
                action.host_rewrite_specifier = own.map(HostRewriteSpecifier::HostRewriteLiteral);
            }
        }
        action.hash_policy = hash.and_then(hash::hash_policy).into_iter().collect();
    } else {
        let shares: Vec<&WeightedDestination> = http.route.iter().filter(|w| w.weight > 0).collect();
        action.hash_policy = shares
            .iter()
            .filter_map(|w| hash::of_destination(&w.destination, context).and_then(hash::hash_policy))
            .collect();
        let clusters = shares.iter().map(|share| weighted(share, context)).collect();
        action.cluster_specifier = Some(ClusterSpecifier::WeightedClusters(api::WeightedCluster {
            clusters,
            ..api::WeightedCluster::default()
        }));
    }
    let retries = http.retries.as_ref().or(context.settings.mesh.retries.as_ref());
    action.retry_policy = retry::policy(retries, spread);
    route.action = Some(api::route::Action::Route(action));
}

/// Without a port of its own a destination is called at its only port, or at the port that was called.
fn cluster(destination: &Destination, context: &Context<'_>) -> Name {
    let port = destination.port.or_else(|| (context.only_port)(destination)).unwrap_or(context.port);
    ClusterName::outbound(port, &destination.subset, &(context.real_host)(&destination.host))
}

fn weighted(share: &WeightedDestination, context: &Context<'_>) -> api::weighted_cluster::ClusterWeight {
    let mut out = api::weighted_cluster::ClusterWeight {
        name: cluster(&share.destination, context).to_string(),
        weight: Some(share.weight),
        ..api::weighted_cluster::ClusterWeight::default()
    };
    if let Some(headers) = &share.headers {
        header::operations(headers).apply_to_weight(&mut out);
    }
    out
}

fn set_rewrite(action: &mut api::RouteAction, rewrite: &Rewrite) {
    match &rewrite.uri {
        Some(UriRewrite::Prefix(prefix)) => action.prefix_rewrite = prefix.to_string(),
        Some(UriRewrite::Regex { pattern, substitution }) => {
            action.regex_rewrite = Some(RegexMatchAndSubstitute {
                pattern: Some(regex(pattern)),
                substitution: substitution.to_string(),
            });
        }
        None => (),
    }
}

/// A copy of the request, if any share of them is asked for.
fn mirror(
    (to, percent): (&Destination, Percent),
    context: &Context<'_>,
) -> Option<api::route_action::RequestMirrorPolicy> {
    let nothing = match percent {
        Percent::Whole(percent) => percent == 0,
        Percent::Exact(percent) => percent <= 0.0,
    };
    (!nothing).then(|| api::route_action::RequestMirrorPolicy {
        cluster: cluster(to, context).to_string(),
        runtime_fraction: Some(core::RuntimeFractionalPercent {
            default_value: Some(fractional_percent(percent)),
            ..core::RuntimeFractionalPercent::default()
        }),
        trace_sampled: Some(false),
        disable_shadow_host_suffix_append: context.settings.options.features.keep_shadow_host,
        ..api::route_action::RequestMirrorPolicy::default()
    })
}

/// Sends the client elsewhere; nothing for a code that Envoy cannot send.
pub(super) fn redirect(redirect: &Redirect, context: &Context<'_>) -> Option<api::RedirectAction> {
    use api::redirect_action::{PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier};
    let code = match redirect.code {
        0 | 301 => RedirectResponseCode::MovedPermanently,
        302 => RedirectResponseCode::Found,
        303 => RedirectResponseCode::SeeOther,
        307 => RedirectResponseCode::TemporaryRedirect,
        308 => RedirectResponseCode::PermanentRedirect,
        _ => return None,
    };
    let path = if redirect.prefix_rewrite.is_empty() {
        PathRewriteSpecifier::PathRedirect(redirect.uri.to_string())
    } else {
        PathRewriteSpecifier::PrefixRewrite(redirect.prefix_rewrite.to_string())
    };
    let port = match redirect.port {
        Some(RedirectPort::FromRequestPort) => Some(context.port),
        Some(RedirectPort::Number(port)) => Some(port),
        Some(RedirectPort::FromProtocolDefault) | None => None,
    };
    let scheme = redirect.scheme.to_string();
    // A port that goes without saying is not said.
    let implied = match scheme.as_str() {
        "" if context.tls => Some(443),
        "" | "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    let port = port.filter(|port| Some(*port) != implied);
    Some(api::RedirectAction {
        host_redirect: redirect.authority.to_string(),
        port_redirect: u32::from(port.unwrap_or(0)),
        path_rewrite_specifier: Some(path),
        scheme_rewrite_specifier: (!scheme.is_empty())
            .then_some(SchemeRewriteSpecifier::SchemeRedirect(scheme)),
        response_code: code as i32,
        ..api::RedirectAction::default()
    })
}

pub(super) fn direct_response(response: &DirectResponse) -> api::DirectResponseAction {
    use core::data_source::Specifier;
    let body = response.body.as_ref().map(|body| match body {
        Body::Text(text) => Specifier::InlineString(text.to_string()),
        Body::Bytes(bytes) => Specifier::InlineBytes(bytes.clone()),
    });
    api::DirectResponseAction {
        status: response.status,
        body: body
            .map(|specifier| core::DataSource { specifier: Some(specifier), ..core::DataSource::default() }),
        ..api::DirectResponseAction::default()
    }
}
