//! Matches on the claims of a token, which users write like headers: `@request.auth.claims.group`, or
//! `@request.auth.claims[group][id]` where names have dots in them.

use pilot_envoy_api::envoy::r#type::matcher::v3 as api;
use pilot_model::StringMatch;

use crate::convert::string_matcher;

const PREFIX: &str = "@request.auth.claims";
/// The filter that reads tokens, and where it puts what it read.
const FILTER: &str = "envoy.filters.http.jwt_authn";
const PAYLOAD: &str = "payload";

/// The matcher for a claim; nothing for a real header.
pub(super) fn matcher(name: &str, wanted: Option<&StringMatch>) -> Option<api::MetadataMatcher> {
    use api::list_matcher::MatchPattern as InList;
    use api::metadata_matcher::{PathSegment, path_segment::Segment};
    use api::value_matcher::MatchPattern;
    let path = std::iter::once(PAYLOAD).chain(claims(name)?);
    let key = |key: &str| PathSegment { segment: Some(Segment::Key(key.to_owned())) };
    let text = wanted.map(string_matcher).unwrap_or_default();
    let value = api::ValueMatcher { match_pattern: Some(MatchPattern::StringMatch(text)) };
    // A claim is a text or a list of them.
    let in_list = api::ListMatcher { match_pattern: Some(InList::OneOf(Box::new(value.clone()))) };
    let in_list = api::ValueMatcher { match_pattern: Some(MatchPattern::ListMatch(Box::new(in_list))) };
    let either = api::OrMatcher { value_matchers: vec![in_list, value] };
    Some(api::MetadataMatcher {
        filter: FILTER.to_owned(),
        path: path.map(key).collect(),
        value: Some(api::ValueMatcher { match_pattern: Some(MatchPattern::OrMatch(either)) }),
        invert: false,
    })
}

fn claims(name: &str) -> Option<Vec<&str>> {
    let beginning = name.get(..PREFIX.len())?;
    let rest = name.get(PREFIX.len()..).filter(|_| beginning.eq_ignore_ascii_case(PREFIX))?;
    if let Some(dotted) = rest.strip_prefix('.').filter(|names| !names.is_empty()) {
        return Some(dotted.split('.').collect());
    }
    let inner = rest.strip_prefix('[')?.strip_suffix(']').filter(|names| !names.is_empty())?;
    Some(inner.split("][").collect())
}

#[cfg(test)]
mod tests {
    use super::claims;

    #[test]
    fn claims_are_told_from_headers() {
        assert_eq!(claims("@request.auth.claims.group.id"), Some(vec!["group", "id"]));
        assert_eq!(claims("@Request.auth.claims[a.b][c]"), Some(vec!["a.b", "c"]));
        for header in ["x-header", "@request.auth.claims", "@request.auth.claims.", "@request.auth.claims[]"]
        {
            assert_eq!(claims(header), None, "{header}");
        }
    }
}
