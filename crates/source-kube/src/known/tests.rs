use pilot_base::Name;
use pilot_config::Document;
use pilot_model::ConfigId;

use super::testing::{Word, list, list_as, object, put, said};
use super::{Belief, Collapse, Known, Lost};

#[test]
fn a_list_is_told_as_what_is_different() {
    let mut known = Known::default();
    let all = [object("a", 1, "x"), object("b", 1, "x")];
    assert_eq!(list(&mut known, &all), (vec!["a=x 0".to_owned(), "b=x 0".to_owned()], None));
    assert_eq!(list(&mut known, &all), (vec![], None));
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
fn whoever_goes_on_from_what_another_told_takes_back_what_is_gone_and_doubts_as_much() {
    let before = |count: usize| (0..count).map(|i| (ConfigId::new("", format!("o{i:02}")), 1));
    let mut known = Known::told_before(before(3));
    let there = [object("o01", 7, "x"), object("o05", 7, "x")];
    let (said, collapse) = list(&mut known, &there);
    assert_eq!(said, ["o01=x 0", "o05=x 0", "o00 gone 0", "o02 gone 0"], "in which version is not known");
    assert_eq!((collapse, list(&mut known, &there)), (None, (vec![], None)));

    let mut known = Known::told_before(before(20));
    let (said, collapse) = list(&mut known, &there);
    assert_eq!((said.len(), collapse), (2, Some(Collapse { of: Lost::Objects, had: 20, gone: 18 })));
    assert_eq!(list_as(&mut known, &there, Belief::Believes).0.len(), 18);
}

#[test]
fn a_collapse_is_held_until_somebody_believes_it() {
    let mut known = Known::default();
    let all: Vec<String> = (0..20).map(|i| object(&format!("o{i:02}"), 1, "x")).collect();
    list(&mut known, &all);
    let few = [object("o00", 2, "y")];
    let collapse = Some(Collapse { of: Lost::Objects, had: 20, gone: 19 });
    assert_eq!(
        list(&mut known, &few),
        (vec!["o00=y 0".to_owned()], collapse),
        "what is there counts at once"
    );
    for _ in 0..10 {
        assert_eq!(list(&mut known, &few), (vec![], collapse), "saying it often does not make it true");
    }
    assert!(!known.is_settled());
    let most = (vec!["o00=x 0".to_owned(), "o18 gone 0".to_owned(), "o19 gone 0".to_owned()], None);
    assert_eq!(list(&mut known, &all[..18]), most);
    assert!(known.is_settled());
    assert!(list(&mut known, &few).1.is_some());
    let (changes, collapse) = list_as(&mut known, &few, Belief::Believes);
    assert_eq!((changes.len(), collapse), (17, None));
    assert!(known.is_settled());
    // A few may go at any time.
    let mut known = Known::default();
    list(&mut known, &all[..5]);
    assert_eq!(list(&mut known, &[]).0.len(), 5);
}

#[test]
fn what_is_held_goes_when_a_watch_says_so_and_counts_when_it_is_back() {
    let mut known = Known::default();
    let all: Vec<String> = (0..12).map(|i| object(&format!("o{i:02}"), 1, "x")).collect();
    list(&mut known, &all);
    assert!(list(&mut known, &[]).1.is_some());
    let gone =
        |known: &mut Known, text: &str| said(known.gone(Document::parse(text.as_bytes()).unwrap().tree()));
    assert_eq!(gone(&mut known, &all[0]), ["o00 gone 0"]);
    for object in &all[1..] {
        assert!(!known.is_settled());
        put(&mut known, &object.replace(r#"n": "1"#, r#"n": "2"#));
    }
    assert!(known.is_settled());
}

#[test]
fn objects_that_are_there_and_empty_are_a_collapse_too() {
    let mut known = Known::default();
    let full = [object("a", 1, "tenletters"), object("b", 1, "tenletters")];
    list(&mut known, &full);
    let empty = [object("a", 2, ""), object("b", 2, "x"), object("c", 1, "new")];
    let collapse = Some(Collapse { of: Lost::Endpoints, had: 20, gone: 16 });
    let told = vec!["c=new 0".to_owned()];
    assert_eq!(list(&mut known, &empty), (told, collapse), "both stay as they were");
    let collapse = Some(Collapse { of: Lost::Endpoints, had: 23, gone: 19 });
    assert_eq!(list(&mut known, &empty), (vec![], collapse));
    assert_eq!(put(&mut known, &object("a", 3, "")), ["a= 0"], "a watch is believed");
    let (changes, collapse) = list_as(&mut known, &empty[1..], Belief::Believes);
    assert_eq!((changes, collapse), (vec!["b=x 0".to_owned(), "a gone 0".to_owned()], None));
    // What moves from one to another is not lost.
    list(&mut known, &full);
    let moved = [object("a", 4, ""), object("b", 4, "tenletterstenletters")];
    assert_eq!(list(&mut known, &moved).1, None);
}

#[test]
fn a_list_of_one_namespace_says_nothing_of_others_and_is_ahead_of_the_watch() {
    let within = |namespace: &str, name: &str, version: u32| {
        object(name, version, "x").replace("{\"name", &format!("{{\"namespace\": \"{namespace}\", \"name"))
    };
    let mut known = Known::default();
    list(&mut known, &[within("n", "a", 1), within("n", "b", 1), within("m", "a", 1)]);
    let mut listing = known.begin_within(&Name::new("n"));
    for text in [within("n", "a", 7), within("n", "c", 6)] {
        listing.see(Document::parse(text.as_bytes()).unwrap().tree(), &Word);
    }
    let (changes, _) = listing.end(&mut known, Belief::Doubts);
    known.is_ahead(&Name::new("n"), "9");
    assert_eq!(said(changes), ["a=x 0", "c=x 0", "b gone 0"]);
    // What the watch has yet to tell of it is known already; of others it is news.
    for (text, expected) in [
        (within("n", "a", 5), vec![]),
        (within("n", "b", 4), vec![]),
        (within("m", "a", 8), vec!["a=x 0"]),
        (within("n", "a", 10), vec!["a=x 0"]),
    ] {
        assert_eq!(put(&mut known, &text), expected, "{text}");
    }
    known.reached("9");
    assert_eq!(put(&mut known, &within("n", "c", 8)), ["c=x 0"]);
}
