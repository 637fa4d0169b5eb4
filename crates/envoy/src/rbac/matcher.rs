//! Values with wildcards, as Envoy's matchers.

use pilot_base::{Cidr, Name};
use pilot_envoy_api::envoy::config::core::v3::CidrRange;
use pilot_envoy_api::envoy::config::route::v3 as route;
use pilot_envoy_api::envoy::r#type::matcher::v3 as api;

use crate::convert::cidr_range;

const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";
/// Under which the claims of a token are left.
pub(crate) const JWT_PAYLOAD: &str = "payload";

pub(super) enum Pattern<'a> {
    Any,
    Suffix(&'a str),
    Prefix(&'a str),
    Exact(&'a str),
}

pub(super) fn pattern(value: &str) -> Pattern<'_> {
    if value == "*" {
        Pattern::Any
    } else if let Some(suffix) = value.strip_prefix('*') {
        Pattern::Suffix(suffix)
    } else if let Some(prefix) = value.strip_suffix('*') {
        Pattern::Prefix(prefix)
    } else {
        Pattern::Exact(value)
    }
}

fn string(pattern: api::string_matcher::MatchPattern) -> api::StringMatcher {
    api::StringMatcher { match_pattern: Some(pattern), ignore_case: false }
}

pub(super) fn exact(text: &str) -> api::StringMatcher {
    string(api::string_matcher::MatchPattern::Exact(text.to_owned()))
}

pub(super) fn prefix(text: &str) -> api::StringMatcher {
    string(api::string_matcher::MatchPattern::Prefix(text.to_owned()))
}

pub(super) fn suffix(text: &str) -> api::StringMatcher {
    string(api::string_matcher::MatchPattern::Suffix(text.to_owned()))
}

pub(super) fn regex(text: String) -> api::StringMatcher {
    let regex = api::RegexMatcher { regex: text, ..api::RegexMatcher::default() };
    string(api::string_matcher::MatchPattern::SafeRegex(regex))
}

/// Anything, but not nothing.
pub(super) fn something() -> api::StringMatcher {
    regex(".+".to_owned())
}

pub(super) fn text(value: &str) -> api::StringMatcher {
    match pattern(value) {
        Pattern::Any => something(),
        Pattern::Suffix(text) => suffix(text),
        Pattern::Prefix(text) => prefix(text),
        Pattern::Exact(text) => exact(text),
    }
}

/// Go's and RE2's way to take a text literally.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    Matters,
    Ignored,
}

pub(super) fn header(name: &str, value: &str, case: Case) -> route::HeaderMatcher {
    use route::header_matcher::HeaderMatchSpecifier;
    let specifier = match pattern(value) {
        Pattern::Any => HeaderMatchSpecifier::PresentMatch(true),
        _ => HeaderMatchSpecifier::StringMatch(api::StringMatcher {
            ignore_case: case == Case::Ignored,
            ..text(value)
        }),
    };
    route::HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(specifier),
        ..route::HeaderMatcher::default()
    }
}

/// An address or a range; all of them were checked when they were read.
pub(super) fn cidr(value: &str) -> Option<CidrRange> {
    Cidr::parse_or_address(value).map(cidr_range)
}

fn value(pattern: api::value_matcher::MatchPattern) -> api::ValueMatcher {
    api::ValueMatcher { match_pattern: Some(pattern) }
}

pub(super) fn string_value(text: api::StringMatcher) -> api::ValueMatcher {
    value(api::value_matcher::MatchPattern::StringMatch(text))
}

pub(super) fn list_value(member: api::ValueMatcher) -> api::ValueMatcher {
    use api::list_matcher::MatchPattern;
    let list = api::ListMatcher { match_pattern: Some(MatchPattern::OneOf(Box::new(member))) };
    value(api::value_matcher::MatchPattern::ListMatch(Box::new(list)))
}

pub(super) fn any_value(mut values: Vec<api::ValueMatcher>) -> api::ValueMatcher {
    if values.len() == 1 {
        return values.remove(0);
    }
    value(api::value_matcher::MatchPattern::OrMatch(api::OrMatcher { value_matchers: values }))
}

pub(super) fn any_text(values: &[Name]) -> api::ValueMatcher {
    any_value(values.iter().map(|value| string_value(text(value))).collect())
}

pub(super) fn metadata(filter: &str, path: &[&str], value: api::ValueMatcher) -> api::MetadataMatcher {
    use api::metadata_matcher::{PathSegment, path_segment::Segment};
    let segment = |key: &&str| PathSegment { segment: Some(Segment::Key((*key).to_owned())) };
    api::MetadataMatcher {
        filter: filter.to_owned(),
        path: path.iter().map(segment).collect(),
        value: Some(value),
        ..api::MetadataMatcher::default()
    }
}

/// A claim that is a text.
pub(super) fn claim(name: &str, text: api::StringMatcher) -> api::MetadataMatcher {
    metadata(JWT_FILTER, &[JWT_PAYLOAD, name], string_value(text))
}

/// A claim that is a text or a list of texts, any of which may be one of these.
pub(super) fn claim_any(names: &[&str], values: &[Name]) -> api::MetadataMatcher {
    let path: Vec<&str> = std::iter::once(JWT_PAYLOAD).chain(names.iter().copied()).collect();
    let one = any_text(values);
    metadata(JWT_FILTER, &path, any_value(vec![list_value(one.clone()), one]))
}
