use std::time::Duration;

use super::{Shelf, Suspicion};
use crate::contract::Mirror;
use crate::registration::{Instance, InstancePort, Registration, RegistryOptions};
use crate::{Batch, Event};

fn instance(id: &str, port: u32) -> Instance {
    let ports = vec![InstancePort { number: port, ..InstancePort::default() }];
    Instance { id: id.into(), address: format!("10.0.0.{id}"), ports, ..Instance::default() }
}

fn service(name: &str, port: u32) -> Registration {
    of(name, vec![instance("1", port)])
}

fn of(name: &str, instances: Vec<Instance>) -> Registration {
    Registration { name: name.into(), instances, ..Registration::default() }
}

fn shelf() -> Shelf {
    Shelf::new(RegistryOptions::new("memory", "mesh"))
}

/// Hosts and how many endpoints each has.
fn told(mirror: &Mirror) -> Vec<String> {
    let each = |object: &pilot_model::Object| match object {
        pilot_model::Object::ServiceEntry(entry) => {
            format!("{} {}", entry.spec.hosts[0], entry.spec.endpoints.len())
        }
        other => panic!("{other:?}"),
    };
    mirror.objects().map(each).collect()
}

#[test]
fn only_differences_are_told() {
    let mut shelf = shelf();
    let mut mirror = Mirror::default();
    mirror.apply(shelf.replace([service("a", 80), service("b", 80)]));
    assert_eq!((mirror.ready, mirror.objects().count()), (true, 2));
    assert!(shelf.replace([service("a", 80), service("b", 80)]).is_empty());
    assert_eq!(shelf.replace([service("a", 81), service("b", 80)]).events.len(), 1);
    let batch = shelf.put(service("c", 0));
    assert_eq!((batch.events.len(), batch.issues.len()), (0, 1), "a service without a port is none");
    assert_eq!(shelf.put(service("c", 0)), Batch::default(), "and is told once");
    mirror.apply(shelf.replace([service("b", 80)]));
    assert_eq!(mirror.objects().count(), 1);
    assert!(mirror.issues.is_empty());
}

#[test]
fn a_loss_is_told_once() {
    let mut shelf = shelf();
    assert!(!shelf.lose(&"no answer").is_empty());
    assert!(shelf.lose(&"no answer").is_empty());
    assert!(!shelf.lose(&"refused").is_empty());
    assert!(!shelf.found().is_empty() && shelf.found().is_empty());
}

#[test]
fn what_cannot_be_used_any_more_keeps_what_it_was() {
    let (mut shelf, mut mirror) = (shelf(), Mirror::default());
    mirror.apply(shelf.replace([service("a", 80), service("b", 80)]));
    mirror.apply(shelf.put(service("a", 0)));
    assert_eq!((told(&mirror), mirror.issues.len()), (vec!["a.mesh 1".into(), "b.mesh 1".into()], 1));
    let unreadable = vec![("1".to_owned(), "why".to_owned())];
    mirror.apply(shelf.put(Registration { unreadable, ..of("b", Vec::new()) }));
    assert_eq!((told(&mirror).len(), mirror.issues.len()), (2, 2));
    mirror.apply(shelf.put(Registration::unknown("b".into(), "not allowed")));
    assert_eq!((told(&mirror).len(), mirror.issues.len()), (2, 2));
    mirror.apply(shelf.put(service("a", 81)));
    mirror.apply(shelf.remove("b"));
    assert_eq!((told(&mirror), mirror.issues.len()), (vec!["a.mesh 1".to_owned()], 0));
}

#[test]
fn each_host_is_an_object_and_one_change_is_one_row() {
    let (mut shelf, mut mirror) = (shelf(), Mirror::default());
    let own = Instance { hosts: vec!["own.example".into()], ..instance("2", 80) };
    mirror.apply(shelf.replace([of("a", vec![instance("1", 80), own.clone()])]));
    assert_eq!(told(&mirror), ["a.mesh 1", "own.example 1"]);
    mirror.rows = 0;
    mirror.apply(shelf.put(of("a", vec![instance("1", 81), own])));
    assert_eq!(mirror.rows, 1);
    mirror.apply(shelf.put(of("a", vec![instance("1", 81), instance("2", 81)])));
    assert_eq!(told(&mirror), ["a.mesh 2"]);
}

#[test]
fn services_of_one_name_are_one_and_that_is_told() {
    let (mut shelf, mut mirror) = (shelf(), Mirror::default());
    mirror.apply(shelf.replace([of("a", vec![instance("1", 80)]), of("a", vec![instance("2", 80)])]));
    assert_eq!(told(&mirror), ["a.mesh 2"]);
    let issue = mirror.issues.values().flatten().next().unwrap().to_string();
    assert!(issue.contains("\"a\" is the name of several services"), "{issue}");
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_after_a_loss_is_kept_until_it_comes_back_or_its_time_is_over() {
    let (mut shelf, mut mirror) = (shelf(), Mirror::default());
    mirror.apply(shelf.replace([of("a", vec![instance("1", 80), instance("2", 80)]), service("b", 80)]));
    mirror.apply(shelf.lose(&"no answer"));
    // A server that has begun anew knows one that has come, and nobody who was there before.
    mirror.apply(shelf.replace([of("a", vec![instance("3", 80)])]));
    assert_eq!(told(&mirror), ["a.mesh 3", "b.mesh 1"]);
    let issue = mirror.issues.values().flatten().next().unwrap().to_string();
    assert!(issue.contains("warning") && issue.contains("3 of 3 instances are missing"), "{issue}");
    // They come back one by one; what goes by itself goes at once.
    mirror.apply(shelf.put(of("a", vec![instance("1", 80), instance("3", 80)])));
    mirror.apply(shelf.put(of("a", vec![instance("1", 80)])));
    assert_eq!(told(&mirror), ["a.mesh 2", "b.mesh 1"]);
    assert!(shelf.holds("a") && shelf.holds("b"));
    mirror.apply(shelf.remove("b"));
    assert_eq!(told(&mirror), ["a.mesh 2", "b.mesh 1"], "it is not the registry that has removed it");
    tokio::time::advance(Duration::from_secs(89)).await;
    let now = tokio::time::Instant::now();
    assert_eq!(shelf.due(), Some(now + Duration::from_secs(1)));
    mirror.apply(shelf.give_up());
    assert_eq!((told(&mirror), shelf.due()), (vec!["a.mesh 1".to_owned()], None));
    assert!(mirror.issues.is_empty(), "{:?}", mirror.issues);
}

#[tokio::test(start_paused = true)]
async fn another_loss_begins_the_time_anew_and_all_may_come_back() {
    let (mut shelf, mut mirror) = (shelf(), Mirror::default());
    mirror.apply(shelf.replace([service("a", 80)]));
    mirror.apply(shelf.lose(&"no answer"));
    mirror.apply(shelf.replace([]));
    assert!(shelf.due().is_some());
    mirror.apply(shelf.lose(&"no answer"));
    assert_eq!(shelf.due(), None, "nothing is taken back while nobody can be asked");
    mirror.apply(shelf.replace([]));
    assert!(shelf.due().is_some() && !mirror.issues.is_empty());
    mirror.apply(shelf.replace([service("a", 80)]));
    assert_eq!((told(&mirror), shelf.due()), (vec!["a.mesh 1".to_owned()], None));
    assert!(mirror.issues.is_empty(), "{:?}", mirror.issues);
}

#[test]
fn who_comes_back_under_another_id_is_held_no_more() {
    let (mut shelf, mut mirror) = (shelf(), Mirror::default());
    mirror.apply(shelf.replace([service("a", 80)]));
    mirror.apply(shelf.lose(&"no answer"));
    mirror.apply(shelf.replace([]));
    assert!(shelf.holds("a"));
    let other = Instance { id: "other".into(), ..instance("1", 80) };
    mirror.apply(shelf.put(of("a", vec![other])));
    assert_eq!((told(&mirror), shelf.holds("a")), (vec!["a.mesh 1".to_owned()], false));
    assert!(mirror.issues.is_empty(), "{:?}", mirror.issues);
    mirror.apply(shelf.lose(&"no answer"));
    mirror.apply(shelf.replace([service("a", 80)]));
    assert!(mirror.issues.is_empty(), "{:?}", mirror.issues);
}

#[test]
fn without_a_loss_only_a_collapse_is_held() {
    let many = |count: usize| (0..count).map(|i| service(&format!("s{i:02}"), 80)).collect::<Vec<_>>();
    let gone = |from: usize, to: usize| {
        let mut shelf = shelf();
        shelf.replace(many(from));
        let batch = shelf.replace(many(to));
        batch.events.iter().filter(|event| matches!(event, Event::Delete(_))).count()
    };
    assert_eq!([gone(1, 0), gone(5, 2), gone(20, 10)], [1, 3, 10]);
    assert_eq!([gone(2, 0), gone(20, 9), gone(20, 0)], [0, 0, 0]);
    let mut shelf = shelf();
    shelf.replace(many(5));
    shelf.doubt(Suspicion::KnowsLess);
    assert_eq!(shelf.replace(many(4)).events.len(), 0, "who is known to know less takes nothing back");
    let mut shelf =
        Shelf::new(RegistryOptions { grace: Duration::ZERO, ..RegistryOptions::new("memory", "mesh") });
    shelf.replace(many(20));
    shelf.lose(&"no answer");
    assert_eq!(shelf.replace([]).events.len(), 20, "without a grace every answer is believed");
}
