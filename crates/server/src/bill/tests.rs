use std::sync::Arc;

use pilot_base::ObjectRef;

use super::{Bill, Committed, DROPPED_TOGETHER, Line, MOST_LINES, Statement};
use crate::cause::Cause;

fn rule(name: &str) -> ObjectRef {
    ObjectRef::new("VirtualService", "shop", name)
}

fn commit(bill: &Bill, epoch: u64, objects: &[ObjectRef], nanos: u64) -> Arc<Cause> {
    bill.committed(Committed { epoch, objects: objects.to_vec(), nanos, arrived: 0, now: epoch * 1000 })
}

fn line(statement: &Statement, object: &ObjectRef) -> Option<Line> {
    statement.lines.iter().find(|(o, _)| o == object).map(|(_, line)| *line)
}

#[test]
fn a_commit_and_what_is_sent_because_of_it_is_on_the_bill_of_its_object() {
    let bill = Bill::default();
    let cause = commit(&bill, 1, &[rule("a")], 700);
    cause.pushed(50);
    cause.pushed(30);
    commit(&bill, 2, &[rule("b")], 900);
    let statement = bill.statement(10);
    let a = Line { nanos: 700.0, bytes: 80.0, pushes: 2, changes: 1, last_change: 1 };
    assert_eq!(line(&statement, &rule("a")), Some(a));
    let b = Line { nanos: 900.0, changes: 1, last_change: 2, ..Line::default() };
    assert_eq!(line(&statement, &rule("b")), Some(b));
    let totals = statement.totals;
    assert_eq!((totals.commits, totals.nanos, totals.bytes, totals.pushes), (2, 1600, 80, 2));
}

#[test]
fn objects_that_changed_together_share_evenly() {
    let bill = Bill::default();
    let proxy = |id: &str| ObjectRef::new("Proxy", "", id);
    let cause = commit(&bill, 1, &[rule("a"), proxy("7"), proxy("8"), rule("b")], 400);
    cause.pushed(1000);
    let statement = bill.statement(10);
    let of = |object: &ObjectRef| line(&statement, object).map(|line| (line.nanos, line.bytes, line.pushes));
    assert_eq!(of(&rule("a")), Some((100.0, 250.0, 1)));
    assert_eq!(of(&rule("b")), Some((100.0, 250.0, 1)));
    assert_eq!(of(&ObjectRef::new("Proxy", "", "")), Some((200.0, 500.0, 1)), "all proxies are one");
    assert_eq!(statement.objects, 3);
}

#[test]
fn what_proxies_ask_for_themselves_is_on_no_rules_bill() {
    let bill = Bill::default();
    commit(&bill, 1, &[rule("a")], 1);
    bill.guests().pushed(4000);
    let statement = bill.statement(1);
    assert_eq!(statement.lines[0].0.to_string(), "Proxy ", "it comes first");
    assert_eq!((statement.lines.len(), statement.objects), (1, 2));
    assert_eq!(bill.statement(1).totals.bytes, 4000, "nothing is counted twice");
}

#[test]
fn what_is_sent_late_still_counts() {
    let bill = Bill::default();
    let slow = commit(&bill, 1, &[rule("slow")], 1);
    for epoch in 2..2000 {
        commit(&bill, epoch, &[rule("busy")], 1).pushed(1);
    }
    assert!(bill.account.lock().open.len() < 600, "causes that nobody holds are forgotten");
    slow.pushed(77);
    let statement = bill.statement(10);
    assert_eq!(line(&statement, &rule("slow")).map(|line| line.bytes), Some(77.0));
    assert_eq!(line(&statement, &rule("busy")).map(|line| line.pushes), Some(1998));
}

#[test]
fn only_the_most_expensive_keep_their_lines_and_nothing_is_lost() {
    let bill = Bill::default();
    commit(&bill, 1, &[rule("dear")], 1_000_000);
    let all = MOST_LINES + DROPPED_TOGETHER;
    for at in 0..all {
        commit(&bill, 2, &[rule(&format!("cheap-{at}"))], 10);
    }
    let statement = bill.statement(usize::MAX);
    assert_eq!((statement.objects, statement.lines.len()), (MOST_LINES, MOST_LINES));
    assert_eq!(statement.lines[0].0, rule("dear"));
    let listed: f64 = statement.lines.iter().map(|(_, line)| line.nanos).sum();
    let nanos = listed + statement.others.nanos;
    assert_eq!(nanos, 1_000_000.0 + 10.0 * all as f64);
}
