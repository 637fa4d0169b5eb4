use pilot_base::{Issue, ObjectRef};
use pilot_config::{Document, Tree};

use super::{Change, Known, Look, Verdict, What};

/// Objects say themselves what is to become of them.
struct Word;

impl Look for Word {
    type Value = String;

    fn look(&self, object: Tree<'_>) -> Verdict<String> {
        let issue = || vec![Issue::error(ObjectRef::default(), "", "broken")];
        match object.text_at(&["word"]) {
            "broken" => Verdict::Broken(issue()),
            "ignored" => Verdict::Ignore,
            word => Verdict::Take(word.to_owned(), Vec::new()),
        }
    }
}

fn object(name: &str, version: u32, word: &str) -> String {
    format!(r#"{{"metadata": {{"name": "{name}", "resourceVersion": "{version}"}}, "word": "{word}"}}"#)
}

fn said(changes: impl IntoIterator<Item = Change<String>>) -> Vec<String> {
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

fn put(known: &mut Known, text: &str) -> Vec<String> {
    said(known.put(Document::parse(text.as_bytes()).unwrap().tree(), &Word))
}

fn list(known: &mut Known, objects: &[String]) -> (Vec<String>, bool) {
    let mut listing = known.begin();
    for text in objects {
        listing.see(Document::parse(text.as_bytes()).unwrap().tree(), &Word);
    }
    let (changes, collapse) = listing.end(known);
    (said(changes), collapse.is_some())
}

#[test]
fn a_list_is_told_as_what_is_different() {
    let mut known = Known::default();
    let all = [object("a", 1, "x"), object("b", 1, "x")];
    assert_eq!(list(&mut known, &all), (vec!["a=x 0".to_owned(), "b=x 0".to_owned()], false));
    assert_eq!(list(&mut known, &all), (vec![], false));
    let next = [object("b", 2, "y"), object("c", 1, "x")];
    assert_eq!(list(&mut known, &next).0, ["b=y 0", "c=x 0", "a gone 0"]);
}

#[test]
fn a_list_that_breaks_off_changes_nothing() {
    let mut known = Known::default();
    list(&mut known, &[object("a", 1, "x")]);
    let mut listing = known.begin::<String>();
    listing.see(Document::parse(object("a", 2, "y").as_bytes()).unwrap().tree(), &Word);
    drop(listing);
    assert_eq!(put(&mut known, &object("a", 2, "y")), ["a=y 0"]);
}

#[test]
fn what_is_broken_keeps_what_was_told_and_is_well_again_once() {
    let mut known = Known::default();
    assert_eq!(put(&mut known, &object("a", 1, "x")), ["a=x 0"]);
    assert_eq!(put(&mut known, &object("a", 2, "broken")), ["a same 1"]);
    assert_eq!(put(&mut known, &object("a", 3, "y")), ["a=y 0"]);
    assert_eq!(put(&mut known, &object("b", 1, "broken")), ["b same 1"]);
    assert_eq!(put(&mut known, &object("b", 2, "ignored")), ["b same 0"]);
    assert_eq!(put(&mut known, &object("b", 3, "ignored")), [""; 0]);
    assert_eq!(put(&mut known, &object("a", 4, "ignored")), ["a gone 0"], "it is for somebody else now");
}

#[test]
fn what_was_never_told_is_not_taken_back() {
    let mut known = Known::default();
    put(&mut known, &object("a", 1, "ignored"));
    let text = object("a", 1, "ignored");
    assert_eq!(said(known.gone(Document::parse(text.as_bytes()).unwrap().tree())), [""; 0]);
    put(&mut known, &object("a", 2, "x"));
    assert_eq!(put(&mut known, &object("a", 2, "x")), [""; 0], "told again after a cut");
    assert_eq!(said(known.gone(Document::parse(text.as_bytes()).unwrap().tree())), ["a gone 0"]);
}

#[test]
fn a_collapse_is_held_until_it_is_confirmed() {
    let mut known = Known::default();
    let all: Vec<String> = (0..20).map(|i| object(&format!("o{i:02}"), 1, "x")).collect();
    list(&mut known, &all);
    let few = [object("o00", 2, "y")];
    assert_eq!(list(&mut known, &few), (vec!["o00=y 0".to_owned()], true), "what is there counts at once");
    assert_eq!(
        list(&mut known, &all[..18]),
        (vec!["o00=x 0".to_owned(), "o18 gone 0".to_owned(), "o19 gone 0".to_owned()], false)
    );
    assert!(list(&mut known, &few).1);
    assert!(list(&mut known, &few).1);
    let (changes, doubted) = list(&mut known, &few);
    assert_eq!((changes.len(), doubted), (17, false), "three lists have said so");
    // A few may go at any time.
    let mut known = Known::default();
    list(&mut known, &all[..5]);
    assert_eq!(list(&mut known, &[]).0.len(), 5);
}
