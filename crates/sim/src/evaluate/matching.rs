//! Does a text, a header, a path fit what a rule wants?

use pilot_envoy_api::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use pilot_envoy_api::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use pilot_envoy_api::envoy::config::route::v3::route_match::PathSpecifier;
use pilot_envoy_api::envoy::config::route::v3::{HeaderMatcher, QueryParameterMatcher, RouteMatch};
use pilot_envoy_api::envoy::r#type::matcher::v3::StringMatcher;
use pilot_envoy_api::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use regex::Regex;

use super::HttpCall;

/// Envoy's expressions must fit the whole text.
fn fits_whole(pattern: &str, text: &str) -> Result<bool, String> {
    let regex = Regex::new(&format!("^(?:{pattern})$")).map_err(|error| error.to_string())?;
    Ok(regex.is_match(text))
}

pub(super) fn text(matcher: &StringMatcher, value: &str) -> Result<bool, String> {
    let fold = |text: &str| if matcher.ignore_case { text.to_lowercase() } else { text.to_owned() };
    let value = fold(value);
    Ok(match &matcher.match_pattern {
        Some(MatchPattern::Exact(exact)) => value == fold(exact),
        Some(MatchPattern::Prefix(prefix)) => value.starts_with(&fold(prefix)),
        Some(MatchPattern::Suffix(suffix)) => value.ends_with(&fold(suffix)),
        Some(MatchPattern::Contains(part)) => value.contains(&fold(part)),
        Some(MatchPattern::SafeRegex(regex)) => fits_whole(&regex.regex, &value)?,
        other => return Err(format!("unknown string matcher {other:?}")),
    })
}

/// A header of a request, the ones that HTTP/2 made headers included.
fn header_value(call: &HttpCall, name: &str) -> Option<String> {
    match name {
        ":method" => Some(call.method.clone()),
        ":authority" => Some(call.authority.clone()),
        ":path" => Some(call.path.clone()),
        ":scheme" => Some("http".to_owned()),
        name => {
            let same = call.headers.iter().filter(|(header, _)| header.eq_ignore_ascii_case(name));
            let all: Vec<&str> = same.map(|(_, value)| value.as_str()).collect();
            (!all.is_empty()).then(|| all.join(","))
        }
    }
}

pub(super) fn header(matcher: &HeaderMatcher, call: &HttpCall) -> Result<bool, String> {
    let mut value = header_value(call, &matcher.name);
    if value.is_none() && matcher.treat_missing_header_as_empty {
        value = Some(String::new());
    }
    let fits = match (&matcher.header_match_specifier, &value) {
        (Some(HeaderMatchSpecifier::PresentMatch(present)), value) => value.is_some() == *present,
        (None, value) => value.is_some(),
        // A header that is missing fits nothing, not even the opposite of something.
        (Some(_), None) => return Ok(false),
        (Some(HeaderMatchSpecifier::StringMatch(matcher)), Some(value)) => text(matcher, value)?,
        (Some(other), Some(_)) => return Err(format!("unknown header matcher {other:?}")),
    };
    Ok(fits != matcher.invert_match)
}

fn query(matcher: &QueryParameterMatcher, query: &str) -> Result<bool, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let value = pairs.filter(|(name, _)| *name == matcher.name).map(|(_, value)| value).next();
    match (&matcher.query_parameter_match_specifier, value) {
        (Some(QueryParameterMatchSpecifier::PresentMatch(present)), value) => Ok(value.is_some() == *present),
        (None, value) => Ok(value.is_some()),
        (Some(QueryParameterMatchSpecifier::StringMatch(_)), None) => Ok(false),
        (Some(QueryParameterMatchSpecifier::StringMatch(matcher)), Some(value)) => text(matcher, value),
    }
}

fn path(matcher: &RouteMatch, path: &str) -> Result<bool, String> {
    let fold = |text: &str| {
        if matcher.case_sensitive.unwrap_or(true) { text.to_owned() } else { text.to_lowercase() }
    };
    let folded = fold(path);
    Ok(match &matcher.path_specifier {
        Some(PathSpecifier::Prefix(prefix)) => folded.starts_with(&fold(prefix)),
        Some(PathSpecifier::Path(exact)) => folded == fold(exact),
        Some(PathSpecifier::PathSeparatedPrefix(prefix)) => {
            folded.strip_prefix(&fold(prefix)).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        Some(PathSpecifier::SafeRegex(regex)) => fits_whole(&regex.regex, path)?,
        other => return Err(format!("unknown path matcher {other:?}")),
    })
}

pub(super) fn route(matcher: &RouteMatch, call: &HttpCall) -> Result<bool, String> {
    let (only_path, query_text) = call.path.split_once('?').unwrap_or((&call.path, ""));
    if !path(matcher, only_path)? {
        return Ok(false);
    }
    for wanted in &matcher.headers {
        if !header(wanted, call)? {
            return Ok(false);
        }
    }
    for wanted in &matcher.query_parameters {
        if !query(wanted, query_text)? {
            return Ok(false);
        }
    }
    Ok(true)
}
