//! Is what was seen what was expected?

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::scenario::{Expect, Shares};

/// What came of one call.
#[derive(Clone, Default, Debug)]
pub struct Seen {
    /// How often, of all calls that were made together.
    pub weight: f64,
    /// Zero if there was no HTTP answer.
    pub status: u16,
    pub from: Option<String>,
    pub path: String,
    pub host: String,
    pub method: String,
    pub sni: String,
    pub request: BTreeMap<String, String>,
    pub response: BTreeMap<String, String>,
    pub body: String,
    pub after: Duration,
}

/// How exactly shares are known.
#[derive(Clone, Copy, Debug)]
pub enum Precision {
    /// They were computed.
    Exact,
    /// So many calls were counted.
    Counted(u32),
}

/// Envoy's timers count milliseconds from when it last looked at its clock.
const TIMER_TICK: Duration = Duration::from_millis(20);

/// Who answered, if no backend did.
pub const NOBODY: &str = "nobody";

/// Everything that is not as it should be.
pub fn compare(expect: &Expect, seen: &[Seen], precision: Precision) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_http = seen.iter().any(|seen| seen.status != 0);
    if is_http || expect.status.is_some() {
        let status =
            expect.status.clone().unwrap_or_else(|| Shares(BTreeMap::from([("200".to_owned(), 100.0)])));
        shares("status", &status, &counted(seen, |seen| seen.status.to_string()), precision, &mut wrong);
    }
    let who = |seen: &Seen| seen.from.clone().unwrap_or_else(|| NOBODY.to_owned());
    if let Some(from) = &expect.from {
        shares("from", from, &counted(seen, who), precision, &mut wrong);
    }
    if expect.same {
        let all: BTreeSet<String> = seen.iter().map(who).collect();
        if all.len() != 1 || all.contains(NOBODY) {
            wrong.push(format!("same: answers came from {all:?}"));
        }
    }
    for one in seen {
        single(expect, one, &mut wrong);
    }
    wrong.sort();
    wrong.dedup();
    wrong
}

fn single(expect: &Expect, seen: &Seen, wrong: &mut Vec<String>) {
    let texts = [("path", &expect.path, &seen.path), ("host", &expect.host, &seen.host)];
    let more = [
        ("method", &expect.method, &seen.method),
        ("body", &expect.body, &seen.body),
        ("sni", &expect.sni, &seen.sni),
    ];
    for (what, expected, seen) in texts.into_iter().chain(more) {
        if expected.as_ref().is_some_and(|expected| expected != seen) {
            wrong.push(format!(
                "{what}: expected {:?}, saw {seen:?}",
                expected.as_deref().unwrap_or_default()
            ));
        }
    }
    for (what, expected, seen) in
        [("request", &expect.request, &seen.request), ("response", &expect.response, &seen.response)]
    {
        for (name, expected) in expected {
            if expected.as_ref() != seen.get(name) {
                wrong.push(format!("{what} header {name}: expected {expected:?}, saw {:?}", seen.get(name)));
            }
        }
    }
    if seen.after + TIMER_TICK < expect.after {
        wrong.push(format!("after: expected at least {:?}, saw {:?}", expect.after, seen.after));
    }
}

fn counted(seen: &[Seen], of: impl Fn(&Seen) -> String) -> BTreeMap<String, f64> {
    let total: f64 = seen.iter().map(|seen| seen.weight).sum();
    let mut all = BTreeMap::new();
    for one in seen {
        *all.entry(of(one)).or_insert(0.0) += one.weight / total.max(f64::MIN_POSITIVE);
    }
    all
}

fn shares(
    what: &str,
    expected: &Shares,
    seen: &BTreeMap<String, f64>,
    precision: Precision,
    wrong: &mut Vec<String>,
) {
    let names: BTreeSet<&String> = expected.0.keys().chain(seen.keys()).collect();
    let is_right = |name: &&String| {
        let share = expected.0.get(*name).copied().unwrap_or(0.0) / 100.0;
        let seen = seen.get(*name).copied().unwrap_or(0.0);
        (seen - share).abs() <= allowed(share, precision)
    };
    if !names.iter().all(is_right) {
        let percent: Vec<String> =
            seen.iter().map(|(name, share)| format!("{name} {:.1}%", share * 100.0)).collect();
        wrong.push(format!("{what}: expected {:?}, saw {}", expected.0, percent.join(", ")));
    }
}

/// Four standard deviations: chance goes beyond that once in 15,000 times.
fn allowed(share: f64, precision: Precision) -> f64 {
    match precision {
        Precision::Exact => 1e-3,
        Precision::Counted(times) => {
            let times = f64::from(times.max(1));
            let deviation = (share * (1.0 - share) / times).sqrt();
            if deviation == 0.0 { 1e-9 } else { 4.0 * deviation + 1.0 / times }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Precision, Seen, compare};
    use crate::scenario::Expect;
    use serde_json::json;

    fn seen(from: &str, weight: f64) -> Seen {
        Seen { weight, status: 200, from: Some(from.to_owned()), ..Seen::default() }
    }

    fn check(expect: serde_json::Value, answers: &[Seen], precision: Precision) -> usize {
        let expect: Expect = serde_json::from_value(expect).unwrap();
        compare(&expect, answers, precision).len()
    }

    #[test]
    fn shares_are_exact_or_as_good_as_chance_allows() {
        let expect = || json!({"from": {"a": "25%", "b": "75%"}});
        assert_eq!(check(expect(), &[seen("a", 0.25), seen("b", 0.75)], Precision::Exact), 0);
        assert_eq!(check(expect(), &[seen("a", 0.30), seen("b", 0.70)], Precision::Exact), 1);
        assert_eq!(check(expect(), &[seen("a", 60.0), seen("b", 140.0)], Precision::Counted(200)), 0);
        assert_eq!(check(expect(), &[seen("a", 100.0), seen("b", 100.0)], Precision::Counted(200)), 1);
        assert_eq!(
            check(json!({"from": "a"}), &[seen("a", 199.0), seen("b", 1.0)], Precision::Counted(200)),
            1
        );
        assert_eq!(check(json!({"same": true}), &[seen("a", 1.0), seen("b", 1.0)], Precision::Counted(2)), 1);
    }

    #[test]
    fn every_field_can_be_wrong() {
        let answer = || {
            let mut answer = seen("a", 1.0);
            answer.path = "/x".to_owned();
            answer.request.insert("k".to_owned(), "v".to_owned());
            [answer]
        };
        let wrong = |expect| check(expect, &answer(), Precision::Exact);
        assert_eq!(wrong(json!({"path": "/x", "request": {"k": "v", "none": null}})), 0);
        assert_eq!(wrong(json!({"path": "/y"})), 1);
        assert_eq!(wrong(json!({"request": {"k": null}})), 1);
        assert_eq!(wrong(json!({"response": {"k": "v"}})), 1);
        assert_eq!(wrong(json!({"status": 503})), 1);
        assert_eq!(wrong(json!({"after": "1s"})), 1);
    }
}
