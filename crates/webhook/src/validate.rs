use pilot_base::Severity;
use pilot_config::{ReadOptions, Tree, read_object, rule_kind};

use crate::review::Refusal;

/// What becomes of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Good {
        warnings: Vec<String>,
    },
    /// It goes away, or is only looked at.
    NotAsked,
    Bad(Refusal, String),
}

/// All that stands at the top of an object.
const FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// Looks at an object by itself. What only all of them together show is told where it can be mended: in its status.
pub(crate) fn validate(object: Tree<'_>, namespace: &str) -> Verdict {
    let text = |field: &str| object.text_at(&[field]);
    let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
    let Some(kind) = rule_kind(group, text("kind")) else {
        let why = format!("unrecognized type {}, Kind={}", text("apiVersion"), text("kind"));
        return Verdict::Bad(Refusal::UnknownType, why);
    };
    let reading = read_object(object, kind, "", &ReadOptions::default());
    let (errors, warnings): (Vec<_>, Vec<_>) =
        reading.issues.iter().partition(|issue| issue.severity == Severity::Error);
    let told = |issue: &&pilot_base::Issue| match issue.path.as_str() {
        "" => issue.message.clone(),
        path => format!("{path}: {}", issue.message),
    };
    if !errors.is_empty() || !reading.broken.is_empty() {
        let all: Vec<String> = errors.iter().map(told).collect();
        return Verdict::Bad(Refusal::Invalid, format!("configuration is invalid: {}", all.join("; ")));
    }
    if let Some((field, _)) = object.entries().find(|(field, _)| !FIELDS.contains(field)) {
        let name = object.text_at(&["metadata", "name"]);
        let why = format!("unknown field {field:?} on {kind} resource {namespace}/{name}");
        return Verdict::Bad(Refusal::Invalid, why);
    }
    Verdict::Good { warnings: warnings.iter().map(told).collect() }
}
