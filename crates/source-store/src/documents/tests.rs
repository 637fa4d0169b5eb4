use std::time::Duration;

use pilot_config::ReadOptions;
use pilot_source::Keeps as _;
use pilot_source::contract::Mirror;

use super::{Documents, StoreOptions};

fn documents() -> Documents {
    Documents::new(StoreOptions::new("store", ReadOptions::default()))
}

fn rule(name: &str, host: &str) -> Vec<u8> {
    let head =
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {namespace: shop, name: ";
    format!("{head}{name}}}\nspec: {{host: {host}}}\n").into_bytes()
}

fn hosts(mirror: &Mirror) -> Vec<String> {
    let host = |object: &pilot_model::Object| match object {
        pilot_model::Object::DestinationRule(config) => config.spec.host.to_string(),
        other => panic!("{other:?}"),
    };
    mirror.objects().map(host).collect()
}

#[test]
fn of_two_documents_that_say_the_same_the_first_counts() {
    let mut documents = documents();
    let mut mirror = Mirror::default();
    mirror.apply(documents.replace([("b".into(), rule("r", "b.com")), ("a".into(), rule("r", "a.com"))]));
    assert_eq!(hosts(&mirror), ["a.com"]);
    mirror.apply(documents.put("b", &rule("r", "c.com")));
    let issue = mirror.issues.values().flatten().next().unwrap().to_string();
    assert!(issue.starts_with("store/b") && issue.contains("also in a"), "{issue}");
    mirror.apply(documents.remove("a"));
    assert_eq!(hosts(&mirror), ["c.com"]);
    mirror.apply(documents.put("b", b"kind: ["));
    assert_eq!((hosts(&mirror), mirror.issues.len()), (vec!["c.com".to_owned()], 1));
    mirror.apply(documents.put("b", &[0xff]));
    assert!(mirror.issues.values().flatten().next().unwrap().to_string().contains("not UTF-8"));
    mirror.apply(documents.replace([]));
    assert_eq!((hosts(&mirror).len(), mirror.issues.len()), (0, 0));
}

#[test]
fn who_says_the_same_is_told_whoever_came_first() {
    let (mut documents, mut mirror) = (documents(), Mirror::default());
    mirror.apply(documents.replace([("b".into(), rule("r", "b.com"))]));
    assert!(mirror.issues.is_empty());
    mirror.apply(documents.put("a", &rule("r", "a.com")));
    let issues: Vec<String> = mirror.issues.values().flatten().map(ToString::to_string).collect();
    assert!(
        issues.len() == 1 && issues[0].starts_with("store/b") && issues[0].contains("also in a"),
        "{issues:?}"
    );
    assert_eq!(hosts(&mirror), ["a.com"]);
    mirror.apply(documents.remove("a"));
    assert_eq!((hosts(&mirror), mirror.issues.len()), (vec!["b.com".to_owned()], 0));
    // A document that is about something else by now is in nobody's way.
    mirror.apply(documents.put("a", &rule("r", "a.com")));
    assert_eq!(mirror.issues.len(), 1);
    mirror.apply(documents.put("a", &rule("other", "c.com")));
    assert_eq!((hosts(&mirror), mirror.issues.len()), (vec!["c.com".to_owned(), "b.com".to_owned()], 0));
    // What is wrong with a document by itself stays.
    mirror.apply(documents.put("b", b"kind: ["));
    mirror.apply(documents.put("a", &rule("r", "a.com")));
    assert_eq!(mirror.issues.values().map(Vec::len).collect::<Vec<_>>(), [2]);
    mirror.apply(documents.remove("a"));
    assert_eq!(mirror.issues.values().map(Vec::len).collect::<Vec<_>>(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_begun_anew_takes_nothing_back_at_once() {
    let (mut documents, mut mirror) = (documents(), Mirror::default());
    let all = || [("a".to_owned(), rule("a", "a.com")), ("b".to_owned(), rule("b", "b.com"))];
    mirror.apply(documents.replace(all()));
    mirror.apply(documents.replace([]));
    assert_eq!(
        hosts(&mirror).len(),
        0,
        "who is asked all the time and says that there is nothing is believed"
    );
    mirror.apply(documents.replace(all()));
    mirror.apply(documents.lose("no answer"));
    mirror.apply(documents.replace([]));
    assert_eq!((hosts(&mirror).len(), mirror.issues.len()), (2, 1));
    mirror.apply(documents.put("c", &rule("c", "c.com")));
    mirror.apply(documents.remove("a"));
    assert_eq!(hosts(&mirror), ["b.com", "c.com"]);
    assert_eq!(documents.due(), Some(tokio::time::Instant::now() + Duration::from_secs(90)));
    mirror.apply(documents.give_up());
    assert_eq!((hosts(&mirror), mirror.issues.len(), documents.due()), (vec!["c.com".to_owned()], 0, None));
}
