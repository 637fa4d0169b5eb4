//! Headers that rules add, set, remove and look for.

use super::Check;

/// Characters of which names of headers are made.
fn is_token(name: &str) -> bool {
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !name.is_empty() && name.chars().all(token)
}

fn is_authority(name: &str) -> bool {
    name.eq_ignore_ascii_case(":authority") || name.eq_ignore_ascii_case("host")
}

/// What is done with a header, and to what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderUse {
    /// Added to or set in a request, where the host may be changed.
    Request,
    /// Removed, or anything in a response.
    Other,
}

impl Check<'_> {
    pub(crate) fn changed_header(&mut self, path: &str, name: &str, header_use: HeaderUse) {
        if name.is_empty() {
            self.reject(path, "the name of a header is missing");
        } else if is_authority(name) && header_use == HeaderUse::Other {
            self.reject(
                path,
                format!("{name:?} cannot be changed here: only a request can be given another host"),
            );
        } else if name.starts_with(':') && !is_authority(name) {
            self.reject(path, format!("{name:?} begins with a colon; such headers cannot be changed"));
        }
        self.header_text(path, name);
    }

    /// A value, in which `%…%` stands for something that Envoy fills in.
    pub(crate) fn header_value(&mut self, path: &str, value: &str) {
        if value.chars().any(|c| c.is_control() && c != '\t' && !('\u{80}'..='\u{9f}').contains(&c)) {
            self.reject(path, format!("{value:?} has a control character in it, which no header can have"));
        } else if let Err(why) = check_format(value) {
            self.reject(path, format!("{value:?} is not a value that Envoy can fill in: {why}"));
        }
    }

    /// A header that a rule looks for, or a claim of a token that is written like one.
    pub(crate) fn matched_header(&mut self, path: &str, name: &str) {
        const PSEUDO: [&str; 5] = [":method", ":scheme", ":authority", ":path", ":status"];
        if !(is_claim(name) || PSEUDO.contains(&name) || is_token(name)) {
            self.reject(path, format!("{name:?} is not the name of a header"));
        }
    }

    pub(crate) fn cors_header(&mut self, path: &str, name: &str) {
        if name != "*" && !is_token(name) {
            self.reject(path, format!("{name:?} is not the name of a header"));
        }
    }
}

/// `@request.auth.claims.name` or `@request.auth.claims[name]`
pub(crate) fn is_claim(name: &str) -> bool {
    const PREFIX: &str = "@request.auth.claims";
    let Some(rest) = name.get(PREFIX.len()..) else { return false };
    let begins = name.get(..PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX));
    let dotted = rest.strip_prefix('.').is_some_and(|names| !names.is_empty());
    let squared =
        rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).is_some_and(|n| !n.is_empty());
    begins && (dotted || squared)
}

/// `%%` is a percent sign, and any other begins `%NAME%` or `%NAME(arguments)%`.
fn check_format(value: &str) -> Result<(), &'static str> {
    const OPEN: &str = "a % that stands for itself is written %%";
    let mut rest = value;
    while let Some((_, after)) = rest.split_once('%') {
        if let Some(after) = after.strip_prefix('%') {
            rest = after;
            continue;
        }
        let end = after.find(['%', '(']).ok_or(OPEN)?;
        let Some(arguments) = after[end..].strip_prefix('(') else {
            rest = &after[end + 1..];
            continue;
        };
        let after = end_of_arguments(arguments).ok_or("a ) is missing")?;
        rest = after.trim_start_matches(' ').strip_prefix('%').ok_or("a % is missing behind )")?;
    }
    Ok(())
}

/// What comes behind the parenthesis that closes; a backslash takes the meaning of what follows it.
fn end_of_arguments(text: &str) -> Option<&str> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ')' => return Some(&text[at + 1..]),
            _ => (),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{check_format, is_claim};

    #[test]
    fn placeholders_must_be_whole() {
        for good in ["", "a", "100%%", "%HOSTNAME%", "x %REQ(a)% y", "%A([\"b\"])%"] {
            assert!(check_format(good).is_ok(), "{good}");
        }
        for bad in ["%", "abc%123", "%START_TIME%%", "%REQ(a%", "%REQ(a)x%"] {
            assert!(check_format(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn claims_are_told_from_headers() {
        assert!(is_claim("@request.auth.claims.a") && is_claim("@request.auth.claims[a]"));
        assert!(!is_claim("@request.auth.claims") && !is_claim("x"));
    }
}
