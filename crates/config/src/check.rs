mod export;
mod gateway_name;
pub(crate) mod header;
pub(crate) mod host;
pub(crate) mod jwks;
mod policy_target;
mod text;

pub(crate) use export::Exported;
pub(crate) use host::{is_host_name, is_label, is_trust_domain, is_wildcard_host};

use pilot_api::Duration;
use pilot_base::{Issue, Name, ObjectRef};
use pilot_model::Span;

use crate::yaml::{Node, place};

/// Collects what is wrong with one object while it is decoded.
pub(crate) struct Check<'a> {
    object: ObjectRef,
    /// The object's tree, to find the line of a field.
    node: &'a Node<'a>,
    file: &'a str,
    issues: Vec<Issue>,
    /// Is something so wrong that the object cannot be used?
    rejected: bool,
}

impl<'a> Check<'a> {
    pub(crate) fn new(object: ObjectRef, node: &'a Node<'a>, file: &'a str) -> Self {
        Self { object, node, file, issues: Vec::new(), rejected: false }
    }

    /// The object cannot be used.
    pub(crate) fn reject(&mut self, path: impl AsRef<str>, message: impl Into<String>) {
        self.rejected = true;
        let issue = Issue::error(self.object.clone(), path.as_ref(), message);
        self.push(issue);
    }

    /// A part of the object is left out; the rest is used.
    pub(crate) fn leave_out(&mut self, path: impl AsRef<str>, message: impl Into<String>) {
        let issue = Issue::error(self.object.clone(), path.as_ref(), message);
        self.push(issue);
    }

    pub(crate) fn warn(&mut self, path: impl AsRef<str>, message: impl Into<String>) {
        let issue = Issue::warning(self.object.clone(), path.as_ref(), message);
        self.push(issue);
    }

    /// The value of a field, if it is there.
    pub(crate) fn node(&self, path: &str) -> Option<&'a Node<'a>> {
        let (node, is_whole) = closest(self.node, path);
        is_whole.then_some(node)
    }

    fn push(&mut self, issue: Issue) {
        let line = line_of(self.node, &issue.path);
        self.issues.push(issue.at(place(self.file, line)));
    }

    /// Whose faults are collected.
    pub(crate) fn object(&self) -> &ObjectRef {
        &self.object
    }

    pub(crate) fn is_rejected(&self) -> bool {
        self.rejected
    }

    pub(crate) fn into_issues(self) -> Vec<Issue> {
        self.issues
    }

    // --- values that many kinds have

    pub(crate) fn span(&mut self, path: impl AsRef<str>, duration: Option<Duration>) -> Option<Span> {
        let duration = duration?;
        match (u64::try_from(duration.seconds), u32::try_from(duration.nanos)) {
            (Ok(seconds), Ok(nanos)) => Some(Span::new(seconds, nanos)),
            _ => {
                self.reject(path, "must not be negative");
                None
            }
        }
    }

    /// A time that Envoy can count: of at least a millisecond, and of whole ones.
    pub(crate) fn whole_millis(&mut self, path: impl AsRef<str>, duration: Option<Duration>) {
        let Some(Duration { seconds, nanos }) = duration else { return };
        // Less than nothing is told where it is read.
        let negative = seconds < 0 || nanos < 0;
        if !negative && seconds == 0 && nanos < 1_000_000 {
            self.reject(path, "must be a millisecond at least");
        } else if !negative && nanos % 1_000_000 != 0 {
            self.reject(path, "must be whole milliseconds");
        }
    }

    pub(crate) fn port(&mut self, path: impl AsRef<str>, number: u32) -> u16 {
        match u16::try_from(number) {
            Ok(port) if port > 0 => port,
            _ => {
                self.reject(path, format!("{number} is not a port: it must be between 1 and 65535"));
                0
            }
        }
    }

    /// A count for which zero means that nothing was said.
    pub(crate) fn count(&mut self, path: impl AsRef<str>, value: i32) -> u32 {
        u32::try_from(value).unwrap_or_else(|_| {
            self.reject(path, "must not be negative");
            0
        })
    }
}

/// The line at which a field stands, or that of the closest thing around it that is there.
fn line_of(node: &Node<'_>, path: &str) -> usize {
    closest(node, path).0.line
}

/// What stands at a path, or the closest thing around it; and whether it is the whole path that was found.
fn closest<'a>(node: &'a Node<'a>, path: &str) -> (&'a Node<'a>, bool) {
    use crate::yaml::Value;
    let mut at = node;
    for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
        let next = match (step.strip_suffix(']'), &at.value) {
            (Some(index), Value::List(items)) => index.parse::<usize>().ok().and_then(|i| items.get(i)),
            _ => at.get(step),
        };
        match next {
            Some(node) => at = node,
            None => return (at, false),
        }
    }
    (at, true)
}

/// A list with no more room than it needs. One that is made of a list of messages would keep the room of those, which is
/// several times as much, for as long as the object lives.
pub(crate) fn fitted<T>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = items.collect();
    all.shrink_to_fit();
    all
}

pub(crate) fn names(texts: Vec<String>) -> Vec<Name> {
    texts.into_iter().map(Name::from).collect()
}
