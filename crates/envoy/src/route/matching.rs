use pilot_base::Name;
use pilot_envoy_api::envoy::config::route::v3 as api;
use pilot_envoy_api::envoy::r#type::matcher::v3::MetadataMatcher;
use pilot_model::{HttpMatch, StringMatch};

use super::claim;

use crate::convert::{regex, string_matcher};

/// Which requests a route takes; all, if nothing is asked.
pub(super) fn route_match(wanted: Option<&HttpMatch>) -> api::RouteMatch {
    use api::route_match::PathSpecifier;
    let all = api::RouteMatch {
        path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
        ..api::RouteMatch::default()
    };
    let Some(wanted) = wanted else { return all };
    let path = wanted.uri.as_ref().map(|uri| match uri {
        StringMatch::Exact(path) => PathSpecifier::Path(path.to_string()),
        StringMatch::Prefix(prefix) => PathSpecifier::Prefix(prefix.to_string()),
        StringMatch::Segments(prefix) => PathSpecifier::PathSeparatedPrefix(prefix.to_string()),
        StringMatch::Regex(pattern) => PathSpecifier::SafeRegex(regex(pattern)),
    });
    let (mut headers, mut dynamic_metadata) = (Vec::new(), Vec::new());
    for (name, m) in &wanted.headers {
        match claim::matcher(name, m.as_ref()) {
            Some(matcher) => dynamic_metadata.push(matcher),
            None => headers.push(header(name, m.as_ref())),
        }
    }
    for (name, m) in &wanted.without_headers {
        match claim::matcher(name, m.as_ref()) {
            Some(matcher) => dynamic_metadata.push(MetadataMatcher { invert: true, ..matcher }),
            None => headers.push(without(name, m.as_ref())),
        }
    }
    headers.sort_by(|a, b| a.name.cmp(&b.name));
    let pseudo =
        [(":method", &wanted.method), (":authority", &wanted.authority), (":scheme", &wanted.scheme)];
    headers.extend(pseudo.into_iter().filter_map(|(name, m)| Some(header(name, Some(m.as_ref()?)))));
    api::RouteMatch {
        path_specifier: path.or(all.path_specifier),
        case_sensitive: Some(!wanted.ignore_uri_case),
        headers,
        dynamic_metadata,
        query_parameters: wanted
            .query_params
            .iter()
            .map(|(name, m)| query_parameter(name, m.as_ref()))
            .collect(),
        ..api::RouteMatch::default()
    }
}

/// Is it enough that the thing is there? A lone star is no regular expression and has always meant that.
fn only_present(wanted: Option<&StringMatch>) -> bool {
    wanted.is_none_or(|wanted| matches!(wanted, StringMatch::Regex(pattern) if pattern == "*"))
}

fn header(name: &str, wanted: Option<&StringMatch>) -> api::HeaderMatcher {
    use api::header_matcher::HeaderMatchSpecifier;
    let specifier = match wanted.filter(|_| !only_present(wanted)) {
        Some(wanted) => HeaderMatchSpecifier::StringMatch(string_matcher(wanted)),
        None => HeaderMatchSpecifier::PresentMatch(true),
    };
    api::HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(specifier),
        ..api::HeaderMatcher::default()
    }
}

/// A request without the header does not have the value either.
fn without(name: &str, wanted: Option<&StringMatch>) -> api::HeaderMatcher {
    api::HeaderMatcher {
        invert_match: true,
        treat_missing_header_as_empty: !only_present(wanted),
        ..header(name, wanted)
    }
}

fn query_parameter(name: &Name, wanted: Option<&StringMatch>) -> api::QueryParameterMatcher {
    use api::query_parameter_matcher::QueryParameterMatchSpecifier;
    let specifier = match wanted.filter(|_| !only_present(wanted)) {
        Some(wanted) => QueryParameterMatchSpecifier::StringMatch(string_matcher(wanted)),
        None => QueryParameterMatchSpecifier::PresentMatch(true),
    };
    api::QueryParameterMatcher { name: name.to_string(), query_parameter_match_specifier: Some(specifier) }
}
