use std::collections::BTreeSet;

use pilot_base::{Issue, Name, ObjectRef};
use pilot_model::{ConfigId, Namespace, Object};
use pilot_source::Event;
use tokio::time::Instant;

use super::{Attempt, Cluster, Told};
use crate::client::testing;

fn namespace(i: usize) -> Object {
    Object::Namespace(ConfigId::new("", format!("n{i:02}")), Namespace::default())
}

fn all(count: usize) -> Vec<Event> {
    let objects = (0..count).map(namespace).map(Event::InitApply);
    [Event::Init].into_iter().chain(objects).chain([Event::InitDone]).collect()
}

fn begin(cluster: &mut Cluster, number: u64) -> Told {
    let before = cluster.before().unwrap_or_default();
    let attempt = Attempt {
        number,
        config: number.to_string(),
        client: testing::client("https://10.0.0.1"),
        tasks: Vec::new(),
        before: before.into_keys().collect(),
        troubled: BTreeSet::new(),
    };
    cluster.begin("s", attempt)
}

/// One that has told five namespaces.
fn synced() -> Cluster {
    let mut cluster = Cluster::default();
    assert!(begin(&mut cluster, 1).client.is_some(), "there is no other way");
    assert_eq!(cluster.take(1, all(5)).put.len(), 5);
    cluster
}

#[test]
fn another_way_is_believed_once_it_has_told_everything_and_only_what_is_gone_is_taken_back() {
    let mut cluster = synced();
    assert!(begin(&mut cluster, 2).client.is_none());
    // Meanwhile the first is believed: one comes, one goes.
    assert_eq!(cluster.take(1, vec![Event::Apply(namespace(7)), Event::Apply(namespace(8))]).put.len(), 2);
    assert_eq!(cluster.take(1, vec![Event::Delete(namespace(0).key())]).gone.len(), 1);
    let news = vec![Event::Apply(namespace(7)), Event::Delete(namespace(0).key()), Event::InitDone];
    let told = cluster.take(2, news);
    assert!(told.client.is_some());
    assert_eq!((told.put.len(), told.gone), (1, vec![namespace(8).key()]));
    assert!(cluster.take(2, vec![Event::Delete(namespace(1).key())]).gone.len() == 1);
    assert!(!cluster.note(1, &[]), "the first is let go");
}

#[test]
fn what_is_wrong_is_forgiven_with_the_attempt_that_said_so() {
    let mut cluster = synced();
    let issue = vec![Issue::error(ObjectRef::default(), "", "not good")];
    begin(&mut cluster, 2);
    assert!(cluster.note(2, &[(Name::new("a"), issue.clone()), (Name::new("b"), issue.clone())]));
    assert!(cluster.note(2, &[(Name::new("b"), Vec::new())]));
    let told = begin(&mut cluster, 3);
    assert_eq!(told.forgiven, BTreeSet::from([Name::new("a")]));
    assert!(!cluster.note(2, &[]) && cluster.note(3, &[(Name::new("c"), issue)]));
    // The first is said again: nothing else is tried.
    let mut told = Told::default();
    assert!(cluster.is_reached_by("1", &mut told) && !cluster.note(3, &[]));
    assert_eq!(told.forgiven, BTreeSet::from([Name::new("c")]));
    assert!(!cluster.is_reached_by("3", &mut told));
}

#[test]
fn who_has_told_nothing_yet_is_replaced_at_once() {
    let mut cluster = Cluster::default();
    begin(&mut cluster, 1);
    cluster.take(1, all(2)[..2].to_vec());
    assert!(begin(&mut cluster, 2).client.is_some() && !cluster.note(1, &[]));
    assert_eq!(cluster.take(2, all(3)).put.len(), 3);
}

#[test]
fn a_secret_that_comes_back_in_time_changes_nothing() {
    let mut cluster = synced();
    let at = Instant::now();
    cluster.leave(at);
    cluster.stay("s");
    assert!(cluster.settle(at).gone.is_empty() && !cluster.is_over());
    cluster.leave(at);
    assert_eq!(cluster.settle(at).gone.len(), 5);
    assert!(cluster.is_over());
}
