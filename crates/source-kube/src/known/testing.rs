//! Objects that say themselves what is to become of them, for tests.

use pilot_base::{Issue, ObjectRef};
use pilot_config::{Document, Tree};
use pilot_model::ConfigId;

use super::{Belief, Change, Collapse, Known, Look, Verdict, What};

pub(crate) struct Word;

impl Look for Word {
    type Value = String;

    fn look(&self, object: Tree<'_>) -> Verdict<String> {
        match object.text_at(&["word"]) {
            "broken" => Verdict::Broken(issue()),
            "ignored" => Verdict::Ignore,
            word => Verdict::Take(word.to_owned(), Vec::new()),
        }
    }

    /// A word of endpoints: as many as it has letters.
    fn weight(&self, word: &String) -> u32 {
        u32::try_from(word.len()).unwrap()
    }

    fn unreadable(&self, _: &ConfigId, _: &str) -> Vec<Issue> {
        issue()
    }
}

fn issue() -> Vec<Issue> {
    vec![Issue::error(ObjectRef::default(), "", "broken")]
}

pub(crate) fn object(name: &str, version: u32, word: &str) -> String {
    format!(r#"{{"metadata": {{"name": "{name}", "resourceVersion": "{version}"}}, "word": "{word}"}}"#)
}

pub(crate) fn said(changes: impl IntoIterator<Item = Change<String>>) -> Vec<String> {
    let say = |change: Change<String>| {
        let what = match change.what {
            What::Put(word) => format!("={word}"),
            What::Gone => " gone".to_owned(),
            What::Same => " same".to_owned(),
        };
        format!("{}{what} {}", change.id.name, change.issues.len())
    };
    changes.into_iter().map(say).collect()
}

pub(crate) fn put(known: &mut Known, text: &str) -> Vec<String> {
    said(known.put(Document::parse(text.as_bytes()).unwrap().tree(), &Word))
}

pub(crate) fn list(known: &mut Known, objects: &[String]) -> (Vec<String>, Option<Collapse>) {
    list_as(known, objects, Belief::Doubts)
}

pub(crate) fn list_as(
    known: &mut Known,
    objects: &[String],
    belief: Belief,
) -> (Vec<String>, Option<Collapse>) {
    let mut listing = known.begin();
    for text in objects {
        listing.see(Document::parse(text.as_bytes()).unwrap().tree(), &Word);
    }
    let (changes, collapse) = listing.end(known, belief);
    (said(changes), collapse)
}
