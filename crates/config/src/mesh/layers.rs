//! A mesh configuration that stands in several places, of which later ones count more.

use std::borrow::Cow;

use crate::yaml::{Node, Value};

type Entries<'a> = Vec<(Cow<'a, str>, Node<'a>)>;

/// A field replaces what was said before, as a whole; but the settings of proxies and providers add up.
pub(super) fn merge<'a>(below: Node<'a>, above: Node<'a>) -> Node<'a> {
    let line = above.line;
    match (below.value, above.value) {
        (Value::Map(below), Value::Map(above)) => {
            Node { line, value: Value::Map(merge_entries(below, above, field)) }
        }
        (below, Value::Null) => Node { line, value: below },
        (_, above) => Node { line, value: above },
    }
}

fn merge_entries<'a>(
    mut below: Entries<'a>,
    above: Entries<'a>,
    join: fn(&str, Node<'a>, Node<'a>) -> Node<'a>,
) -> Entries<'a> {
    for (key, value) in above {
        match below.iter_mut().find(|(known, _)| *known == key) {
            Some((_, slot)) => {
                let nothing = Node { line: value.line, value: Value::Null };
                let old = std::mem::replace(slot, nothing);
                *slot = join(&key, old, value);
            }
            None => below.push((key, value)),
        }
    }
    below
}

fn field<'a>(key: &str, old: Node<'a>, new: Node<'a>) -> Node<'a> {
    let line = new.line;
    let value = match (key, old.value, new.value) {
        ("defaultConfig", Value::Map(old), Value::Map(new)) => {
            Value::Map(merge_entries(old, new, proxy_field))
        }
        ("defaultProviders", Value::Map(old), Value::Map(new)) => Value::Map(merge_entries(old, new, last)),
        ("extensionProviders", Value::List(old), Value::List(new)) => Value::List(by_name(old, new)),
        ("trustDomainAliases", Value::List(mut old), Value::List(new)) => {
            old.extend(new);
            old.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            old.dedup_by(|a, b| a.as_str() == b.as_str());
            Value::List(old)
        }
        (_, _, new) => new,
    };
    Node { line, value }
}

/// Headers that proxies set: who speaks of some of them leaves the others as they were.
const HEADERS: [&str; 5] =
    ["forwardedClientCert", "requestId", "attemptCount", "server", "envoyDebugHeaders"];

/// Variables for proxies add up, and so do headers; other settings of them are replaced.
fn proxy_field<'a>(key: &str, old: Node<'a>, new: Node<'a>) -> Node<'a> {
    let line = new.line;
    match (key, old.value, new.value) {
        ("proxyMetadata", Value::Map(old), Value::Map(new)) => {
            Node { line, value: Value::Map(merge_entries(old, new, last)) }
        }
        ("proxyHeaders", Value::Map(mut old), Value::Map(new)) => {
            old.retain(|(header, _)| HEADERS.contains(&&**header));
            Node { line, value: Value::Map(merge_entries(old, new, last)) }
        }
        (_, _, value) => Node { line, value },
    }
}

fn last<'a>(_: &str, _: Node<'a>, new: Node<'a>) -> Node<'a> {
    new
}

fn by_name<'a>(mut old: Vec<Node<'a>>, new: Vec<Node<'a>>) -> Vec<Node<'a>> {
    let name = |node: &Node<'a>| node.get("name").and_then(Node::as_str).map(str::to_owned);
    for provider in new {
        match old.iter_mut().find(|known| name(known) == name(&provider)) {
            Some(known) => *known = provider,
            None => old.push(provider),
        }
    }
    old
}
