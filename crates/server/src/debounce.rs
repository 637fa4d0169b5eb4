use std::collections::BTreeSet;
use std::time::Duration;

use pilot_base::{Micros, Millis, Name};
use pilot_incr::Shard;
use pilot_model::Kind;
use pilot_source::{Batch, Event};

/// How long changes wait for others, so that many that come one after the other are worked on together. Without it what
/// has come is worked on at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Debounce {
    /// Changes wait until nothing came for so long.
    pub after: Duration,
    /// But no change waits longer.
    pub max: Duration,
    /// Do changes that are only about endpoints wait too?
    pub endpoints: bool,
}

/// What a source told.
pub(crate) struct Told {
    pub(crate) shard: Shard,
    pub(crate) name: Name,
    pub(crate) batches: Vec<Batch>,
    pub(crate) at: Micros,
}

impl Told {
    fn events(&self) -> impl Iterator<Item = &Event> {
        self.batches.iter().flat_map(|batch| &batch.events)
    }
}

/// What is to become of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// It is worked on at once; what waits goes on waiting.
    Pass,
    /// It waits.
    Wait,
    /// It is worked on at once, behind all that waits.
    Flush,
}

/// Where changes wait. It looks at no clock: whoever asks says what time it is.
pub(crate) struct Gate {
    debounce: Option<Debounce>,
    waiting: Vec<Told>,
    /// Sources of which something about endpoints waits.
    with_endpoints: BTreeSet<Shard>,
    first: Millis,
    last: Millis,
}

/// So many changes wait at most, so that memory does not grow without limit.
const MOST_WAITING: usize = 1024;

impl Gate {
    pub(crate) fn new(debounce: Option<Debounce>) -> Self {
        Self { debounce, waiting: Vec::new(), with_endpoints: BTreeSet::new(), first: 0, last: 0 }
    }

    /// Where a change goes. What begins anew never waits, because proxies wait for it. Of one source nothing overtakes
    /// what is about the same objects.
    pub(crate) fn lane(&self, told: &Told) -> Lane {
        let Some(debounce) = self.debounce else { return Lane::Pass };
        if told.events().any(|event| matches!(event, Event::Init | Event::InitApply(_) | Event::InitDone)) {
            return Lane::Flush;
        }
        if debounce.endpoints || !told.events().all(is_about_endpoints) {
            return Lane::Wait;
        }
        if self.with_endpoints.contains(&told.shard) { Lane::Flush } else { Lane::Pass }
    }

    pub(crate) fn wait(&mut self, told: Told, now: Millis) {
        if self.waiting.is_empty() {
            self.first = now;
        }
        self.last = now;
        if told.events().any(is_about_endpoints) {
            self.with_endpoints.insert(told.shard);
        }
        self.waiting.push(told);
    }

    /// When what waits has waited long enough; nothing if nothing waits.
    pub(crate) fn due_at(&self) -> Option<Millis> {
        let Debounce { after, max, .. } = self.debounce.filter(|_| !self.waiting.is_empty())?;
        if self.waiting.len() >= MOST_WAITING {
            return Some(self.last);
        }
        let later = |since: Millis, span: Duration| {
            since.saturating_add(Millis::try_from(span.as_millis()).unwrap_or(Millis::MAX))
        };
        Some(later(self.last, after).min(later(self.first, max)))
    }

    pub(crate) fn is_due(&self, now: Millis) -> bool {
        self.due_at().is_some_and(|at| now >= at)
    }

    /// Lets through what waits, in the order in which it came.
    pub(crate) fn open(&mut self) -> Vec<Told> {
        self.with_endpoints.clear();
        std::mem::take(&mut self.waiting)
    }
}

fn is_about_endpoints(event: &Event) -> bool {
    let kind = match event {
        Event::Apply(object) | Event::InitApply(object) => object.key().0,
        Event::Delete((kind, _)) => *kind,
        Event::Init | Event::InitDone | Event::Mesh(_) | Event::Networks(_) => return false,
    };
    matches!(kind, Kind::EndpointSlice | Kind::Endpoints | Kind::Pod | Kind::Node)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pilot_base::Name;
    use pilot_incr::Shard;
    use pilot_model::{ConfigId, Kind};
    use pilot_source::{Batch, Event};

    use super::{Debounce, Gate, Lane, MOST_WAITING, Told};

    const ONE: Shard = Shard(1);
    const OTHER: Shard = Shard(2);
    const ALL: Debounce =
        Debounce { after: Duration::from_millis(100), max: Duration::from_millis(250), endpoints: true };
    const RULES: Debounce = Debounce { endpoints: false, ..ALL };

    fn says(shard: Shard, events: Vec<Event>) -> Told {
        Told { shard, name: Name::new("test"), batches: vec![Batch { events, issues: Vec::new() }], at: 0 }
    }

    fn change(shard: Shard, kinds: &[Kind]) -> Told {
        let gone = |kind: &Kind| Event::Delete((*kind, ConfigId::new("shop", "a")));
        says(shard, kinds.iter().map(gone).collect())
    }

    fn rule(shard: Shard) -> Told {
        change(shard, &[Kind::VirtualService])
    }

    #[test]
    fn silence_lets_changes_through_and_so_does_having_waited_long() {
        let mut gate = Gate::new(Some(ALL));
        assert_eq!((gate.lane(&rule(ONE)), gate.due_at()), (Lane::Wait, None));
        gate.wait(rule(ONE), 1000);
        assert_eq!((gate.due_at(), gate.is_due(1099), gate.is_due(1100)), (Some(1100), false, true));
        gate.wait(rule(OTHER), 1090);
        assert_eq!(gate.due_at(), Some(1190), "every change begins the silence anew");
        gate.wait(rule(ONE), 1180);
        assert_eq!(gate.due_at(), Some(1250), "but the first has waited long enough then");
        let shards: Vec<Shard> = gate.open().iter().map(|told| told.shard).collect();
        assert_eq!((shards, gate.due_at()), (vec![ONE, OTHER, ONE], None));
        gate.wait(rule(ONE), 5000);
        assert_eq!(gate.due_at(), Some(5100), "the next begins from its own time");
    }

    #[test]
    fn without_the_setting_nothing_waits() {
        assert_eq!(Gate::new(None).lane(&rule(ONE)), Lane::Pass);
    }

    #[test]
    fn what_begins_anew_takes_along_what_waits() {
        for debounce in [ALL, RULES] {
            let begins = says(ONE, vec![Event::Init, Event::InitDone]);
            assert_eq!(Gate::new(Some(debounce)).lane(&begins), Lane::Flush);
        }
    }

    #[test]
    fn endpoints_wait_only_if_they_are_to() {
        let slices = |shard| change(shard, &[Kind::EndpointSlice]);
        let mixed = || change(ONE, &[Kind::EndpointSlice, Kind::Service]);
        assert_eq!(Gate::new(Some(ALL)).lane(&slices(ONE)), Lane::Wait);
        let mut gate = Gate::new(Some(RULES));
        assert_eq!((gate.lane(&slices(ONE)), gate.lane(&mixed())), (Lane::Pass, Lane::Wait));
        gate.wait(rule(ONE), 0);
        assert_eq!(gate.lane(&slices(ONE)), Lane::Pass, "what waits is about something else");
        gate.wait(mixed(), 0);
        assert_eq!(gate.lane(&slices(ONE)), Lane::Flush, "an older word must not come after a newer one");
        assert_eq!(gate.lane(&slices(OTHER)), Lane::Pass, "others have words of their own");
        gate.open();
        assert_eq!(gate.lane(&slices(ONE)), Lane::Pass);
    }

    #[test]
    fn not_too_many_wait() {
        let mut gate = Gate::new(Some(ALL));
        (0..MOST_WAITING).for_each(|_| gate.wait(rule(ONE), 7));
        assert!(gate.is_due(7));
    }
}
