//! YAML as a tree that knows where each value stood.
//!
//! Plain words are read as Kubernetes reads them (`yes` and `on` are booleans), so that a file means the same here and
//! there. Files come from users: depth, size of aliases and number of nodes are limited.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

/// Deeper than any rule, shallower than any stack.
pub(crate) const MAX_DEPTH: usize = 64;
/// Where a value stood that was not written in lines.
pub(crate) const NO_LINE: usize = 0;
/// Nodes in one file, counting each use of an alias: a file of a few lines can otherwise stand for billions.
const MAX_NODES: usize = 2_000_000;

/// A value and the line it begins at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node<'a> {
    pub(crate) line: usize,
    pub(crate) value: Value<'a>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    List(Vec<Node<'a>>),
    Map(Vec<(Cow<'a, str>, Node<'a>)>),
    /// A list or a map that stands too deep to be read. A file is refused for it; what an API server tells is only cut
    /// off here, so that one object is the worse for it and not all that are told with it.
    Cut,
}

impl Value<'_> {
    /// Why a value cannot be read.
    pub(crate) fn cut() -> String {
        format!("more than {MAX_DEPTH} levels deep")
    }
}

/// Why a text is not YAML we can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct YamlError {
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl<'a> Node<'a> {
    pub(crate) fn get(&self, key: &str) -> Option<&Node<'a>> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, node)| node),
            _ => None,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Where something stands: the file, and its line if it has one.
pub(crate) fn place(file: &str, line: usize) -> String {
    if line == NO_LINE { file.to_owned() } else { format!("{file}:{line}") }
}

/// The documents of a file; empty ones are left out.
pub(crate) fn parse(text: &str) -> Result<Vec<Node<'_>>, YamlError> {
    let (documents, twice) = parse_lenient(text)?;
    twice.into_iter().next().map_or(Ok(documents), Err)
}

/// The documents of a file, and which keys were given twice. Kubernetes takes the last of them.
pub(crate) fn parse_lenient(text: &str) -> Result<(Vec<Node<'_>>, Vec<YamlError>), YamlError> {
    let mut builder = Builder { text, ..Builder::default() };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| scan_error(&error))?;
        builder.event(event, span)?;
    }
    builder.documents.retain(|node| node.value != Value::Null);
    Ok((builder.documents, builder.twice))
}

fn scan_error(error: &ScanError) -> YamlError {
    YamlError { line: error.marker().line(), message: error.info().to_owned() }
}

/// A list or map that is not finished.
enum Open<'a> {
    List(Vec<Node<'a>>),
    Map { entries: Vec<(Cow<'a, str>, Node<'a>)>, key: Option<(Cow<'a, str>, usize)>, key_end: usize },
}

#[derive(Default)]
struct Builder<'a> {
    text: &'a str,
    documents: Vec<Node<'a>>,
    stack: Vec<(Open<'a>, usize, usize)>,
    anchors: std::collections::BTreeMap<usize, (Node<'a>, usize)>,
    nodes: usize,
    twice: Vec<YamlError>,
}

impl<'a> Builder<'a> {
    fn event(&mut self, event: Event<'a>, span: Span) -> Result<(), YamlError> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                // A key is a word, whatever it would mean as a value.
                let value = if self.expects_key(span) {
                    Value::Text(text)
                } else {
                    scalar(text, style, tag.as_deref())
                };
                self.put(Node { line, value }, anchor, 1)
            }
            Event::Alias(id) => match self.anchors.get(&id).cloned() {
                Some((node, size)) => self.put(Node { line, ..node }, 0, size),
                None => fail(line, "an alias to a value that contains it"),
            },
            Event::SequenceStart(anchor, _) => self.open(Open::List(Vec::new()), line, anchor),
            Event::MappingStart(anchor, _) => {
                self.open(Open::Map { entries: Vec::new(), key: None, key_end: 0 }, line, anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    /// Is a word at this place a key?
    fn expects_key(&mut self, span: Span) -> bool {
        match self.stack.last_mut() {
            Some((Open::Map { key: None, key_end, .. }, ..)) => {
                *key_end = span.end.index();
                true
            }
            _ => false,
        }
    }

    /// `[2001:db8::]` is an address to Kubernetes, and to newer YAML a map in a list. Nobody means the latter.
    fn word_in_list(&self, entries: &[(Cow<'a, str>, Node<'a>)], key_end: usize) -> Option<Value<'a>> {
        let ([(key, Node { value: Value::Null, .. })], Some((Open::List(_), ..))) =
            (entries, self.stack.last())
        else {
            return None;
        };
        let mut after = self.text.chars().skip(key_end);
        let is_word = after.next() == Some(':') && after.next().is_some_and(|c| matches!(c, ',' | ']' | '}'));
        is_word.then(|| Value::Text(Cow::Owned(format!("{key}:"))))
    }

    fn open(&mut self, open: Open<'a>, line: usize, anchor: usize) -> Result<(), YamlError> {
        if self.stack.len() >= MAX_DEPTH {
            return fail(line, Value::cut());
        }
        self.stack.push((open, line, anchor));
        Ok(())
    }

    fn close(&mut self) -> Result<(), YamlError> {
        let Some((open, line, anchor)) = self.stack.pop() else { return Ok(()) };
        let value = match open {
            Open::List(items) => Value::List(items),
            Open::Map { entries, key_end, .. } => match self.word_in_list(&entries, key_end) {
                Some(word) => word,
                None => Value::Map(merge_keys(entries)),
            },
        };
        let node = Node { line, value };
        let size = if anchor == 0 { 1 } else { count(&node) };
        self.put(node, anchor, size)
    }

    fn put(&mut self, node: Node<'a>, anchor: usize, size: usize) -> Result<(), YamlError> {
        self.nodes += size;
        if self.nodes > MAX_NODES {
            return fail(node.line, format!("more than {MAX_NODES} values in one file"));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, (node.clone(), size));
        }
        match self.stack.last_mut() {
            None => self.documents.push(node),
            Some((Open::List(items), ..)) => items.push(node),
            Some((Open::Map { entries, key, .. }, ..)) => match key.take() {
                None => *key = Some((key_text(node.value, node.line)?, node.line)),
                Some((name, line)) => {
                    let known = entries.iter_mut().find(|(k, _)| *k == name && name != "<<");
                    match known {
                        Some((_, value)) => {
                            self.twice.push(YamlError { line, message: format!("{name:?} is given twice") });
                            *value = node;
                        }
                        None => entries.push((name, node)),
                    }
                }
            },
        }
        Ok(())
    }
}

fn fail<T>(line: usize, message: impl Into<String>) -> Result<T, YamlError> {
    Err(YamlError { line, message: message.into() })
}

fn count(node: &Node<'_>) -> usize {
    match &node.value {
        Value::List(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Map(entries) => 1 + entries.iter().map(|(_, node)| count(node)).sum::<usize>(),
        _ => 1,
    }
}

fn key_text(value: Value<'_>, line: usize) -> Result<Cow<'_, str>, YamlError> {
    match value {
        Value::Text(text) => Ok(text),
        Value::Bool(value) => Ok(Cow::Owned(value.to_string())),
        Value::Int(value) => Ok(Cow::Owned(value.to_string())),
        Value::Float(value) => Ok(Cow::Owned(value.to_string())),
        Value::Null => Ok(Cow::Borrowed("null")),
        Value::List(_) | Value::Map(_) | Value::Cut => fail(line, "a list or map cannot be a key"),
    }
}

/// `<<: *other` takes over the entries of another map; what the map says itself counts more.
fn merge_keys<'a>(entries: Vec<(Cow<'a, str>, Node<'a>)>) -> Vec<(Cow<'a, str>, Node<'a>)> {
    if !entries.iter().any(|(key, _)| key == "<<") {
        return entries;
    }
    let (merges, mut own): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(key, _)| key == "<<");
    for (_, node) in merges {
        let maps = match node.value {
            Value::List(items) => items,
            value => vec![Node { line: node.line, value }],
        };
        for map in maps {
            let Value::Map(inherited) = map.value else { continue };
            for (key, node) in inherited {
                if !own.iter().any(|(k, _)| *k == key) {
                    own.push((key, node));
                }
            }
        }
    }
    own
}

fn scalar<'a>(text: Cow<'a, str>, style: ScalarStyle, tag: Option<&Tag>) -> Value<'a> {
    let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
    if style != ScalarStyle::Plain || is_text {
        return Value::Text(text);
    }
    match text.as_ref() {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            Value::Bool(true)
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            Value::Bool(false)
        }
        _ => number(&text).unwrap_or(Value::Text(text)),
    }
}

fn number(text: &str) -> Option<Value<'static>> {
    let first = text.bytes().next()?;
    if !first.is_ascii_digit() && !matches!(first, b'-' | b'+' | b'.') {
        return None;
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let radix = |prefix: &str, radix| i64::from_str_radix(digits.strip_prefix(prefix)?, radix).ok();
    if let Some(value) = radix("0x", 16).or_else(|| radix("0o", 8)).or_else(|| radix("0b", 2)) {
        return Some(Value::Int(sign * value));
    }
    // A leading zero means octal, as it did in YAML 1.1.
    if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit()) {
        return i64::from_str_radix(digits, 8).ok().map(|value| Value::Int(sign * value));
    }
    if let Ok(value) = text.parse::<i64>() {
        return Some(Value::Int(value));
    }
    let looks_like_float =
        digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'-' | b'+'));
    let has_digit = digits.bytes().any(|b| b.is_ascii_digit());
    let value = text.parse::<f64>().ok().filter(|_| looks_like_float && has_digit)?;
    Some(Value::Float(value))
}

#[cfg(test)]
mod tests {
    use super::{Value, parse};

    fn one(text: &str) -> Value<'_> {
        parse(text).unwrap().remove(0).get("v").unwrap().value.clone()
    }

    #[test]
    fn plain_words_mean_what_they_mean_to_kubernetes() {
        assert_eq!(one("v: yes"), Value::Bool(true));
        assert_eq!(one("v: \"yes\""), Value::Text("yes".into()));
        assert_eq!(one("v: 010"), Value::Int(8));
        assert_eq!(one("v: 1.5"), Value::Float(1.5));
        assert_eq!(one("v: 10.0.0.1"), Value::Text("10.0.0.1".into()));
        assert_eq!(one("v: 1h"), Value::Text("1h".into()));
        assert_eq!(one("v: !!str 5"), Value::Text("5".into()));
    }

    #[test]
    fn lines_are_known() {
        let documents = parse("a: 1\n---\n# nothing\n---\nb:\n  c: x\n").unwrap();
        assert_eq!(documents.len(), 2);
        assert_eq!(documents[1].get("b").unwrap().get("c").unwrap().line, 6);
        let error = parse("a: 1\nb: [\nc: 2\n").unwrap_err();
        assert!(error.line >= 2, "{error:?}");
        assert!(parse("a: 1\na: 2\n").unwrap_err().message.contains("given twice"));
    }

    #[test]
    fn anchors_and_merges_work_within_limits() {
        let documents = parse("x: &x {p: 1, q: 2}\ny:\n  <<: *x\n  q: 3\n").unwrap();
        let y = documents[0].get("y").unwrap();
        assert_eq!(
            (y.get("p").unwrap().value.clone(), y.get("q").unwrap().value.clone()),
            (Value::Int(1), Value::Int(3))
        );
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for i in 1..12 {
            let p = i - 1;
            bomb += &format!("a{i}: &a{i} [*a{p},*a{p},*a{p},*a{p},*a{p},*a{p},*a{p},*a{p},*a{p},*a{p}]\n");
        }
        assert!(parse(&bomb).unwrap_err().message.contains("more than"));
        assert!(parse(&"[".repeat(5000)).is_err());
        assert!(parse(&"- ".repeat(100)).unwrap_err().message.contains("deep"));
    }

    #[test]
    fn an_address_that_ends_in_colons_is_a_word() {
        let list = |text: &'static str| match &parse(text).unwrap()[0].value {
            Value::Map(entries) => match &entries[0].1.value {
                Value::List(items) => items.iter().map(|item| item.value.clone()).collect::<Vec<_>>(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        let word = |text: &'static str| Value::Text(text.into());
        assert_eq!(list("a: [1.2.3.4, 2001:db8::]"), [word("1.2.3.4"), word("2001:db8::")]);
        assert_eq!(list("a: [::, 2001:db8::/32]"), [word("::"), word("2001:db8::/32")]);
        assert!(matches!(list("a: [b: ]")[0], Value::Map(_)));
    }
}
