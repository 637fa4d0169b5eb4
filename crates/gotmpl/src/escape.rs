use std::fmt::Write;

use crate::format;
use crate::value::Value;

/// One text as it is, more than one as `print` writes them.
pub(crate) fn joined(arguments: &[Value]) -> String {
    format::print(arguments)
}

pub(crate) fn html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => escaped.push('\u{fffd}'),
            '"' => escaped.push_str("&#34;"),
            '\'' => escaped.push_str("&#39;"),
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            c => escaped.push(c),
        }
    }
    escaped
}

pub(crate) fn js(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '\'' => escaped.push_str("\\'"),
            '"' => escaped.push_str("\\\""),
            '<' | '>' | '&' | '=' | '\0'..='\u{1f}' => hex(&mut escaped, u32::from(c)),
            // What cannot be seen, as far as the standard library knows.
            c if u32::from(c) > 0x7e && (c.is_control() || (c.is_whitespace() && c != ' ')) => {
                hex(&mut escaped, u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

fn hex(escaped: &mut String, number: u32) {
    let _written = write!(escaped, "\\u{number:04X}");
}

pub(crate) fn urlquery(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(char::from(byte));
            }
            b' ' => escaped.push('+'),
            byte => {
                let _written = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

/// A text in double quotes, as Go writes it.
pub(crate) fn quoted(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 2);
    escaped.push('"');
    for c in text.chars() {
        match c {
            '"' => escaped.push_str("\\\""),
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '\t' => escaped.push_str("\\t"),
            '\r' => escaped.push_str("\\r"),
            '\u{7}' => escaped.push_str("\\a"),
            '\u{8}' => escaped.push_str("\\b"),
            '\u{b}' => escaped.push_str("\\v"),
            '\u{c}' => escaped.push_str("\\f"),
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7f => {
                let _written = write!(escaped, "\\x{:02x}", u32::from(c));
            }
            c if c.is_control() => {
                let _written = write!(escaped, "\\u{:04x}", u32::from(c));
            }
            c => escaped.push(c),
        }
    }
    escaped.push('"');
    escaped
}
