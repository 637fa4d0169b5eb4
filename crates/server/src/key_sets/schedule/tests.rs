use super::{AT_ONCE, BELIEVED, FAILED_AT_ONCE, FIRST_ROUND, Patience, Schedule};
use crate::engine::WantedKeys;
use pilot_base::{Millis, Name};
use pilot_model::{KeySet, KeySource};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

fn source(name: &str) -> KeySource {
    KeySource::Uri(Name::new(name))
}

fn wanted(names: &[&str]) -> WantedKeys {
    names.iter().map(|name| (source(name), Duration::from_secs(5))).collect()
}

fn schedule() -> Schedule {
    Schedule::new(Duration::from_secs(1200))
}

fn asked(schedule: &mut Schedule, now: u64) -> usize {
    schedule.due(now).len()
}

#[test]
fn keys_are_asked_for_at_once_and_then_now_and_again() {
    let mut schedule = schedule();
    assert!(schedule.want(&wanted(&["a"]), 0).is_empty());
    assert_eq!(asked(&mut schedule, 0), 1);
    assert_eq!(asked(&mut schedule, 0), 0, "one question at a time");
    let set = schedule.answered(&source("a"), Ok(Name::new("k")), 10);
    assert_eq!(set, Some(KeySet { keys: Some(Name::new("k")), failure: None }));
    assert_eq!(schedule.next(), Some(1_200_010));
    assert_eq!(asked(&mut schedule, 1_200_009), 0);
    assert_eq!(asked(&mut schedule, 1_200_010), 1);
}

#[test]
fn failures_are_repeated_ever_more_slowly_and_keep_the_last_keys() {
    let mut schedule = schedule();
    schedule.want(&wanted(&["a"]), 0);
    asked(&mut schedule, 0);
    schedule.answered(&source("a"), Ok(Name::new("k")), 0);
    let mut now = 1_200_000;
    for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(asked(&mut schedule, now), 1);
        let set = schedule.answered(&source("a"), Err("no".to_owned()), now);
        assert_eq!(set, Some(KeySet { keys: Some(Name::new("k")), failure: Some(Name::new("no")) }));
        now += pause * 1_000;
        assert_eq!(schedule.next(), Some(now));
    }
    asked(&mut schedule, now);
    let set = schedule.answered(&source("a"), Err("no".to_owned()), BELIEVED).unwrap();
    assert_eq!(set.keys, None, "after a week they are too old");
}

#[test]
fn keys_that_only_changed_places_are_no_news() {
    let first = Name::new(r#"{"keys":[{"kid":"a","k":"AQ"},{"kid":"b","k":"Ag"}]}"#);
    let shuffled = Name::new(r#"{"keys": [{"kid": "b", "k": "Ag"}, {"k": "AQ", "kid": "a"}]}"#);
    let other = Name::new(r#"{"keys":[{"kid":"a","k":"AQ"},{"kid":"b","k":"Aw"}]}"#);
    let mut schedule = schedule();
    schedule.want(&wanted(&["a"]), 0);
    let mut told = |keys: &Name, now| {
        assert_eq!(asked(&mut schedule, now), 1);
        schedule.answered(&source("a"), Ok(keys.clone()), now).unwrap().keys
    };
    assert_eq!(told(&first, 0), Some(first.clone()));
    assert_eq!(told(&shuffled, 1_200_000), Some(first));
    assert_eq!(told(&other, 2_400_000), Some(other.clone()));
    assert_eq!(schedule.next(), Some(3_600_000), "and yet they count as confirmed");
}

#[test]
fn what_nobody_wants_is_forgotten_even_while_it_comes() {
    let mut schedule = schedule();
    schedule.want(&wanted(&["a", "b"]), 0);
    assert_eq!(asked(&mut schedule, 0), 2);
    assert_eq!(schedule.want(&wanted(&["b"]), 0), [source("a")]);
    assert_eq!(schedule.answered(&source("a"), Ok(Name::new("k")), 0), None);
}

#[test]
fn whoever_is_asked_holds_a_thread_though_nobody_wants_to_know_any_more() {
    let names = |group: &str| (0..AT_ONCE).map(|i| format!("{group}{i}")).collect::<Vec<_>>();
    let want = |schedule: &mut Schedule, names: &[String]| {
        schedule.want(&wanted(&names.iter().map(String::as_str).collect::<Vec<_>>()), 0);
    };
    let (first, second) = (names("a"), names("b"));
    let mut schedule = schedule();
    want(&mut schedule, &first);
    assert_eq!(asked(&mut schedule, 0), AT_ONCE);
    want(&mut schedule, &second);
    assert_eq!(asked(&mut schedule, 0), 0, "no thread is free");
    assert_eq!(schedule.next(), None);
    assert_eq!(schedule.answered(&source("a0"), Ok(Name::new("k")), 0), None);
    assert_eq!(asked(&mut schedule, 0), 1);
    want(&mut schedule, &first);
    for name in &first[1..] {
        assert!(schedule.answered(&source(name), Ok(Name::new("k")), 0).is_some(), "wanted again meanwhile");
    }
    assert_eq!(asked(&mut schedule, 0), 1, "only the one whose answer came too early");
}

#[test]
fn only_some_are_asked_at_once() {
    let names: Vec<String> = (0..AT_ONCE + 3).map(|i| i.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut schedule = schedule();
    schedule.want(&wanted(&names), 0);
    assert_eq!(asked(&mut schedule, 0), AT_ONCE);
    assert_eq!(schedule.next(), None);
    schedule.answered(&source("0"), Err("no".to_owned()), 0);
    assert_eq!(asked(&mut schedule, 0), 1);
}

fn many(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{name}{i:03}")).collect()
}

/// All of them may take an hour.
fn patiently_wanted(names: &[String]) -> WantedKeys {
    names.iter().map(|name| (source(name), Duration::from_secs(3600))).collect()
}

fn names_due(schedule: &mut Schedule, now: Millis) -> Vec<String> {
    schedule.due(now).into_iter().map(|(source, _)| source.as_str().to_owned()).collect()
}

#[test]
fn no_policy_makes_us_wait_longer_than_ten_seconds() {
    let seconds = Duration::from_secs;
    let mut schedule = schedule();
    schedule.want(&[(source("a"), seconds(3600)), (source("b"), seconds(3))].into(), 0);
    let long = Patience { request: seconds(10), question: seconds(10) };
    let short = Patience { request: seconds(3), question: seconds(10) };
    assert_eq!(schedule.due(0), [(source("a"), long), (source("b"), short)]);
}

#[test]
fn new_ones_are_asked_before_known_ones_and_those_before_who_failed() {
    let mut schedule = schedule();
    schedule.want(&wanted(&["failed", "known"]), 0);
    asked(&mut schedule, 0);
    schedule.answered(&source("known"), Ok(Name::new("k")), 0);
    schedule.answered(&source("failed"), Err("no".to_owned()), 0);
    schedule.want(&wanted(&["failed", "known", "new"]), 1_200_000);
    assert_eq!(names_due(&mut schedule, 1_200_000), ["new", "known", "failed"]);
}

#[test]
fn who_failed_leaves_threads_to_the_others() {
    let names = many("failing", AT_ONCE);
    let mut schedule = schedule();
    schedule.want(&patiently_wanted(&names), 0);
    for name in names_due(&mut schedule, 0) {
        schedule.answered(&source(&name), Err("no".to_owned()), 0);
    }
    assert_eq!(asked(&mut schedule, 1_000), FAILED_AT_ONCE);
    assert_eq!(schedule.next(), None, "the others that failed wait for an answer");
    schedule.want(&patiently_wanted(&[names, many("new", AT_ONCE)].concat()), 1_000);
    let new = names_due(&mut schedule, 1_000);
    assert_eq!(new.len(), AT_ONCE - FAILED_AT_ONCE);
    assert!(new.iter().all(|name| name.starts_with("new")));
}

/// Issuers of which those that are well answer soon, and the others never.
struct Play {
    schedule: Schedule,
    now: Millis,
    /// Who is being asked, by when that ends.
    open: BTreeSet<(Millis, KeySource)>,
    asked: BTreeMap<String, Vec<Millis>>,
}

impl Play {
    fn new() -> Self {
        Self { schedule: schedule(), now: 0, open: BTreeSet::new(), asked: BTreeMap::new() }
    }

    fn until(&mut self, end: Millis) {
        loop {
            for (source, patience) in self.schedule.due(self.now) {
                let name = source.as_str().to_owned();
                let is_well = name.starts_with("well");
                let wait = if is_well { Duration::from_millis(50) } else { patience.request };
                self.asked.entry(name).or_default().push(self.now);
                self.open.insert((self.now + u64::try_from(wait.as_millis()).unwrap(), source));
            }
            let answer = self.open.first().map(|(at, _)| *at);
            let next = [answer, self.schedule.next()].into_iter().flatten().min().unwrap_or(end);
            if next >= end {
                self.now = end;
                return;
            }
            assert!(next > self.now, "no storm");
            self.now = next;
            let later = self.open.split_off(&(next + 1, source("")));
            for (_, source) in std::mem::replace(&mut self.open, later) {
                let keys = Ok(Name::new("k"));
                let is_well = source.as_str().starts_with("well");
                let answer = if is_well { keys } else { Err("it hangs".to_owned()) };
                self.schedule.answered(&source, answer, next);
            }
        }
    }
}

#[test]
fn a_start_asks_everybody_once_though_nobody_answers() {
    let names = many("hangs", 6 * AT_ONCE);
    let mut play = Play::new();
    play.schedule.want(&patiently_wanted(&names), 0);
    play.until(FIRST_ROUND);
    let never: Vec<_> = names.iter().filter(|name| !play.asked.contains_key(*name)).collect();
    assert!(never.is_empty(), "{never:?}");
}

#[test]
fn issuers_that_hang_keep_nobody_else_waiting() {
    let (hanging, well) = (many("hangs", 5 * AT_ONCE), many("well", AT_ONCE));
    let mut play = Play::new();
    play.schedule.want(&patiently_wanted(&[hanging.clone(), well.clone()].concat()), 0);
    let end = 4 * 3_600 * 1_000;
    play.until(end);
    for name in &well {
        let asked = &play.asked[name];
        assert!(asked[0] < FIRST_ROUND, "{name} was first asked at {}", asked[0]);
        // The answer takes a little while; and half of the threads are all that is sure.
        let longest = asked.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest <= Some(1_200_200), "{name} was left out for {longest:?}");
    }
    for name in &hanging {
        assert!(play.asked[name].len() > 100, "{name} was forgotten");
    }
    play.schedule.want(&patiently_wanted(&[hanging, well, vec!["well, new".to_owned()]].concat()), end);
    play.until(end + 1_000);
    assert_eq!(play.asked["well, new"], [end]);
}
