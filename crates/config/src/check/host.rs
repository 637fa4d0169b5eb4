//! Names as DNS has them.

/// A part of a name between dots.
pub(crate) fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
    !text.is_empty()
        && text.len() <= 63
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Labels between dots, with or without a dot at the end.
fn are_labels(text: &str) -> bool {
    let text = text.strip_suffix('.').filter(|rest| !rest.is_empty()).unwrap_or(text);
    text.split('.').all(is_label)
}

/// A name that could belong to a host. One that ends in a number would be an address.
pub(crate) fn is_host_name(text: &str) -> bool {
    let last = text.rsplit('.').next().unwrap_or_default();
    let numeric = !last.is_empty() && last.chars().all(|c| c.is_ascii_digit());
    text.len() <= 255 && !numeric && are_labels(text)
}

/// A host name, of which the first label may be or begin with a wildcard.
pub(crate) fn is_wildcard_host(text: &str) -> bool {
    let (first, rest) = match text.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (text, None),
    };
    let label = first.strip_prefix("*-").or_else(|| first.strip_prefix('*')).unwrap_or(first);
    let wild = first == "*" || is_label(label);
    text.len() <= 255 && wild && rest.is_none_or(is_host_name)
}

/// Like a host name, but it may end in a number.
pub(crate) fn is_trust_domain(text: &str) -> bool {
    are_labels(text)
}

#[cfg(test)]
mod tests {
    use super::{is_host_name, is_wildcard_host};

    #[test]
    fn hosts_are_told_from_what_is_none() {
        for good in ["a", "a.b", "a-1.svc.cluster.local.", "istio-system"] {
            assert!(is_host_name(good), "{good}");
        }
        for bad in ["", "-a", "a..b", "a_b", "10.0.0.1", "*.a"] {
            assert!(!is_host_name(bad), "{bad}");
        }
        for good in ["*", "*.a.b", "*-x.a", "a.b"] {
            assert!(is_wildcard_host(good), "{good}");
        }
        assert!(!is_wildcard_host("a.*.b"));
    }
}
