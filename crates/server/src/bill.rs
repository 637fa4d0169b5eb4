//! What each object has cost so far: the time to compute what its changes changed, and the bytes that were sent because of
//! them. See docs/adr/0005-bill.md for what is counted and what is not.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use pilot_base::{Micros, Millis, Name, ObjectRef};

use crate::cause::Cause;

/// The bill. The engine's thread writes it, commit by commit; pages read it.
pub(crate) struct Bill {
    account: Mutex<Account>,
    guests: Arc<Cause>,
}

/// What one object has cost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Line {
    /// Processor time of commits. Of a commit that several objects changed in, each has an equal share.
    pub(crate) nanos: f64,
    /// Sent because of its changes, with equal shares too.
    pub(crate) bytes: f64,
    /// Responses that carried its changes, alone or with others.
    pub(crate) pushes: u64,
    /// Commits in which it changed.
    pub(crate) changes: u64,
    pub(crate) last_change: Millis,
}

/// What the server has cost and holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) commits: u64,
    pub(crate) nanos: u64,
    pub(crate) bytes: u64,
    pub(crate) pushes: u64,
    pub(crate) proxies: usize,
    pub(crate) audiences: usize,
}

/// The bill at one moment, the most expensive first.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Statement {
    pub(crate) totals: Totals,
    pub(crate) lines: Vec<(ObjectRef, Line)>,
    /// How many objects have a line.
    pub(crate) objects: usize,
    /// What those cost together that have none, because they cost too little.
    pub(crate) others: Line,
}

/// What a commit did, as far as it is billed.
pub(crate) struct Committed {
    pub(crate) epoch: u64,
    pub(crate) objects: Vec<ObjectRef>,
    pub(crate) nanos: u64,
    pub(crate) arrived: Micros,
    pub(crate) now: Micros,
}

/// So many objects have a line: a megabyte or two, and more than anybody reads.
const MOST_LINES: usize = 10_000;
/// Lines are dropped this many at once, so that finding the cheapest is rare.
const DROPPED_TOGETHER: usize = 2_000;
/// Causes are settled when there are so many, and then when there are twice as many as were left.
const FEW_OPEN: usize = 256;
/// What it costs to send a byte, about: copying, framing and the kernel. It only decides the order of lines.
const NANOS_PER_BYTE: f64 = 1.0;

/// All proxies are one object: which of them came does not matter to who reads rules.
const PROXY: &str = "Proxy";

impl Default for Bill {
    fn default() -> Self {
        let proxies = ObjectRef::new(PROXY, Name::empty(), Name::empty());
        let guests = Arc::new(Cause::new(0, (0, 0), vec![proxies]));
        Self { account: Mutex::default(), guests }
    }
}

impl Bill {
    /// Writes down a commit; what is sent because of it is to be counted at the cause.
    pub(crate) fn committed(&self, commit: Committed) -> Arc<Cause> {
        self.account.lock().committed(commit)
    }

    pub(crate) fn note_population(&self, proxies: usize, audiences: usize) {
        let totals = &mut self.account.lock().totals;
        (totals.proxies, totals.audiences) = (proxies, audiences);
    }

    /// The cause of what is sent to proxies because they came or asked, and not because something changed.
    pub(crate) fn guests(&self) -> &Arc<Cause> {
        &self.guests
    }

    pub(crate) fn statement(&self, top: usize) -> Statement {
        let mut account = self.account.lock();
        account.add(&self.guests);
        account.settle();
        account.statement(top)
    }
}

#[derive(Default)]
struct Account {
    lines: BTreeMap<ObjectRef, Line>,
    others: Line,
    totals: Totals,
    /// Causes to which streams may still add.
    open: Vec<Arc<Cause>>,
    /// How many may be open before they are settled.
    settle_at: usize,
}

impl Account {
    fn committed(&mut self, commit: Committed) -> Arc<Cause> {
        let Committed { epoch, objects, nanos, arrived, now } = commit;
        let mut cause = Cause::new(epoch, (arrived, now), objects);
        merge_proxies(&mut cause.shares);
        self.totals.commits += 1;
        self.totals.nanos += nanos;
        let all = shares(&cause);
        for (object, share) in &cause.shares {
            let line = self.lines.entry(object.clone()).or_default();
            line.nanos += part(nanos, *share, all);
            line.changes += 1;
            line.last_change = now / 1000;
        }
        let cause = Arc::new(cause);
        self.open.push(Arc::clone(&cause));
        if self.open.len() > self.settle_at.max(FEW_OPEN) {
            self.settle();
        }
        if self.lines.len() > MOST_LINES + DROPPED_TOGETHER {
            self.drop_cheapest();
        }
        cause
    }

    /// Collects what streams have counted, and forgets the causes to which nobody can add any more.
    fn settle(&mut self) {
        for cause in std::mem::take(&mut self.open) {
            // Looked at first: whoever holds it may add to it until he lets go.
            let is_held = Arc::strong_count(&cause) > 1;
            self.add(&cause);
            if is_held {
                self.open.push(cause);
            }
        }
        self.settle_at = self.open.len() * 2;
    }

    fn add(&mut self, cause: &Cause) {
        let (bytes, pushes) = cause.take();
        if (bytes, pushes) == (0, 0) {
            return;
        }
        self.totals.bytes += bytes;
        self.totals.pushes += pushes;
        let all = shares(cause);
        for (object, share) in &cause.shares {
            let line = self.lines.entry(object.clone()).or_default();
            line.bytes += part(bytes, *share, all);
            line.pushes += pushes;
        }
    }

    /// Those that cost least lose their lines; of equals the one that changed longer ago.
    fn drop_cheapest(&mut self) {
        let mut costs: Vec<(f64, Millis)> = self.lines.values().map(rank).collect();
        // The most expensive of those that are dropped. Of its equals as many stay as there is room for.
        let (dearer, least, _) = costs.select_nth_unstable_by(MOST_LINES, |a, b| compare(b, a));
        let least = *least;
        let mut room = dearer.iter().filter(|cost| compare(cost, &least).is_eq()).count();
        let others = &mut self.others;
        self.lines.retain(|_, line| {
            let order = compare(&rank(line), &least);
            let stays = order.is_gt() || order.is_eq() && room > 0;
            room -= usize::from(stays && order.is_eq());
            if !stays {
                others.take_over(line);
            }
            stays
        });
    }

    fn statement(&self, top: usize) -> Statement {
        let mut lines: Vec<(&ObjectRef, &Line)> = self.lines.iter().collect();
        lines.sort_by(|(_, a), (_, b)| compare(&rank(b), &rank(a)));
        Statement {
            totals: self.totals,
            objects: lines.len(),
            lines: lines.into_iter().take(top).map(|(object, line)| (object.clone(), *line)).collect(),
            others: self.others,
        }
    }
}

impl Line {
    fn take_over(&mut self, other: &Self) {
        self.nanos += other.nanos;
        self.bytes += other.bytes;
        self.pushes += other.pushes;
        self.changes += other.changes;
        self.last_change = self.last_change.max(other.last_change);
    }
}

/// All proxies become one object with as many shares.
fn merge_proxies(shares: &mut Vec<(ObjectRef, u32)>) {
    let before = shares.len();
    shares.retain(|(object, _)| object.kind != PROXY);
    let proxies = u32::try_from(before - shares.len()).unwrap_or(u32::MAX);
    if proxies > 0 {
        shares.push((ObjectRef::new(PROXY, Name::empty(), Name::empty()), proxies));
    }
}

fn shares(cause: &Cause) -> u64 {
    cause.shares.iter().map(|(_, share)| u64::from(*share)).sum()
}

#[allow(clippy::cast_precision_loss, reason = "a bill is read by people, who need no more than 15 digits")]
fn part(of: u64, share: u32, all: u64) -> f64 {
    of as f64 * f64::from(share) / all.max(1) as f64
}

fn rank(line: &Line) -> (f64, Millis) {
    (line.nanos + line.bytes * NANOS_PER_BYTE, line.last_change)
}

fn compare(a: &(f64, Millis), b: &(f64, Millis)) -> std::cmp::Ordering {
    a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
}
