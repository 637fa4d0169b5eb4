//! Services that are asked for one by one, as far as they may be different.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::Ended;

/// Who is to be asked for, who is being asked for, and who could not be. Nobody is asked for twice at once; who may have
/// changed while that happened is asked for again.
pub struct Readings<T> {
    waiting: BTreeSet<String>,
    asked: BTreeSet<String>,
    answers: JoinSet<(String, T)>,
    /// Those that could not be read, when to try again, and how often that has failed.
    failed: BTreeMap<String, (Instant, u32)>,
}

/// Enough to be quick, and few enough for any server.
const AT_ONCE: usize = 16;
/// What cannot be read is tried again soon, and later each time.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

impl<T> Default for Readings<T> {
    fn default() -> Self {
        let (waiting, asked, failed) = Default::default();
        Self { waiting, asked, answers: JoinSet::new(), failed }
    }
}

impl<T: Send + 'static> Readings<T> {
    /// These may be different.
    pub fn add(&mut self, names: impl IntoIterator<Item = String>) {
        self.waiting.extend(names);
    }

    /// It is no more.
    pub fn forget(&mut self, name: &str) {
        self.waiting.remove(name);
        self.failed.remove(name);
    }

    /// It was read.
    pub fn succeeded(&mut self, name: &str) {
        self.failed.remove(name);
    }

    /// It could not be read, for a reason that is no other's.
    pub fn failed(&mut self, name: &str) {
        let failures = self.failed.get(name).map_or(0, |(_, failures)| *failures);
        let pause = SHORTEST.saturating_mul(1 << failures.min(8)).min(LONGEST);
        self.failed.insert(name.to_owned(), (Instant::now() + pause, failures + 1));
    }

    /// Is nobody being asked for?
    pub fn is_idle(&self) -> bool {
        self.answers.is_empty()
    }

    /// Asks for those that wait, some at once.
    pub fn ask<F>(&mut self, question: impl Fn(&str) -> F)
    where
        F: Future<Output = T> + Send + 'static,
    {
        while self.answers.len() < AT_ONCE {
            let next = self.waiting.iter().find(|name| !self.asked.contains(*name)).cloned();
            let Some(name) = next else { break };
            self.waiting.remove(&name);
            self.asked.insert(name.clone());
            let asked = question(&name);
            self.answers.spawn(async move { (name, asked.await) });
        }
    }

    /// The next answer; nothing if nobody is asked for.
    pub async fn next(&mut self) -> Option<Result<(String, T), Ended>> {
        let answer = self.answers.join_next().await?;
        Some(
            answer
                .map_err(|_| Ended::lost("asking broke off"))
                .inspect(|(name, _)| _ = self.asked.remove(name)),
        )
    }

    /// An answer that has come already.
    pub fn try_next(&mut self) -> Option<Result<(String, T), Ended>> {
        let answer = self.answers.try_join_next()?;
        Some(
            answer
                .map_err(|_| Ended::lost("asking broke off"))
                .inspect(|(name, _)| _ = self.asked.remove(name)),
        )
    }

    /// When somebody is to be tried again.
    pub fn due(&self) -> Option<Instant> {
        self.failed.values().map(|(at, _)| *at).min()
    }

    /// Those who are due are asked for again. If that fails too, they are put off again.
    pub fn try_again(&mut self, now: Instant) {
        for (name, (at, _)) in &mut self.failed {
            if *at <= now {
                *at = now + LONGEST;
                self.waiting.insert(name.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Readings;

    #[tokio::test(start_paused = true)]
    async fn nobody_is_asked_for_twice_at_once_and_failures_are_tried_again() {
        let mut readings: Readings<usize> = Readings::default();
        let ask = |readings: &mut Readings<usize>| {
            readings.ask(|name| {
                let length = name.len();
                async move { length }
            });
        };
        readings.add(["a".to_owned()]);
        ask(&mut readings);
        readings.add(["a".to_owned(), "bc".to_owned()]);
        ask(&mut readings);
        let mut seen = Vec::new();
        while let Some(answer) = readings.next().await {
            seen.push(answer.unwrap());
        }
        seen.sort();
        assert_eq!(seen, [("a".to_owned(), 1), ("bc".to_owned(), 2)]);
        ask(&mut readings);
        assert_eq!(readings.next().await.unwrap().unwrap().0, "a", "it may have changed while it was read");
        let now = Instant::now();
        readings.failed("a");
        readings.failed("a");
        assert_eq!(readings.due(), Some(now + Duration::from_secs(2)));
        readings.try_again(now);
        ask(&mut readings);
        assert!(readings.is_idle());
        readings.try_again(now + Duration::from_secs(2));
        ask(&mut readings);
        assert!(!readings.is_idle());
        readings.succeeded("a");
        assert_eq!(readings.due(), None);
    }
}
