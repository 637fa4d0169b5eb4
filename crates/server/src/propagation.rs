//! Who has accepted what an object says: worked out when somebody asks, for the objects that he asks about.
//!
//! The engine tells whom they concern, as of which epoch; how far those proxies have come they write down themselves
//! (`standing.rs`). So a push pays nothing for questions, and a question costs what its objects shape.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Issue, Name, ObjectRef};
use pilot_model::{Object, ObjectKey, ProxyId};
use pilot_pipeline::{Concerned, Pipeline};
use pilot_xds::{Encoded, TypeUrl};
use tokio::time::Instant;

use crate::engine::EngineHandle;
use crate::publish::Publisher;
use crate::refusal::Refusal;
use crate::standing::{Standing, Standings};

/// An object that is asked about.
#[derive(Clone)]
pub(crate) enum Asked {
    /// Whatever it says.
    Name(ObjectKey),
    /// As somebody wrote it: it is known once the server says the same.
    Written(Box<Object>),
}

/// How much of it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    Missing,
    /// It is there and says something else.
    Otherwise,
    /// It has said so since this epoch.
    Since(u64),
}

/// How long to wait, and for what.
#[derive(Clone, Copy)]
pub(crate) struct Wait {
    pub(crate) until: Instant,
    /// The mark of what was told before: anything else is news.
    pub(crate) seen: Option<u64>,
}

/// What has become of one object.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Progress {
    pub(crate) object: ObjectRef,
    pub(crate) known: Known,
    /// Is it known whom it concerns? Otherwise it shapes too much to be followed, and everybody counts.
    pub(crate) is_followed: bool,
    /// How many connected proxies it concerns, and how many of these have accepted it.
    pub(crate) concerned: usize,
    pub(crate) accepted: usize,
    /// Who has not answered yet.
    pub(crate) behind: Vec<Name>,
    /// Who refuses something that it is part of.
    pub(crate) refused: Vec<Refusal>,
    /// What the server finds wrong with it.
    pub(crate) issues: Vec<Issue>,
}

impl Asked {
    fn key(&self) -> ObjectKey {
        match self {
            Self::Name(key) => key.clone(),
            Self::Written(object) => object.key(),
        }
    }

    fn object(&self) -> ObjectRef {
        let (kind, id) = self.key();
        id.object(kind)
    }

    fn known(&self, pipeline: &Pipeline) -> Known {
        match pipeline.changed_at(&self.key()) {
            None => Known::Missing,
            Some(epoch) => match self {
                Self::Written(object) if !pipeline.says(object) => Known::Otherwise,
                _ => Known::Since(epoch),
            },
        }
    }
}

impl Progress {
    /// Is it known, and accepted by everybody?
    pub(crate) fn is_complete(&self) -> bool {
        matches!(self.known, Known::Since(_)) && self.accepted == self.concerned
    }
}

/// Whom an object concerns.
struct Concern {
    known: Known,
    /// When the object last changed, as it was looked at.
    changed: Option<u64>,
    is_followed: bool,
    /// Each with the newest epoch in which it was told anything: who has that has all that went before. Objects that
    /// concern the same proxies share the list.
    proxies: Arc<[(ProxyId, u64)]>,
}

impl Concern {
    /// What a proxy must have accepted that is told nothing newer than that.
    fn need(&self, newest: u64) -> u64 {
        match self.known {
            Known::Since(epoch) => epoch.min(newest),
            Known::Missing | Known::Otherwise => newest,
        }
    }
}

/// Tells what has become of objects: at once, or when all of them are accepted by everybody, or when there is news, or when
/// the time is over. Nothing if the engine is gone.
pub(crate) async fn progress(
    engine: &EngineHandle,
    asked: Vec<Asked>,
    wait: Wait,
    mark: impl Fn(&[Progress]) -> u64,
) -> Option<Vec<Progress>> {
    let asked: Arc<[Asked]> = asked.into();
    let mut commits = engine.commits();
    let mut concerns = Vec::new();
    let mut guilt = Guilt::default();
    look(engine, &asked, &mut concerns).await?;
    loop {
        let began = Instant::now();
        let moved = engine.standings().next_move();
        tokio::pin!(moved);
        // What moves from here on is not missed.
        moved.as_mut().enable();
        if commits.has_changed().ok()? {
            commits.mark_unchanged();
            if look(engine, &asked, &mut concerns).await? {
                guilt.forget();
            }
        }
        find_guilty(engine, &asked, &concerns, &mut guilt).await?;
        let told = tell(engine, &asked, &concerns, &guilt);
        let is_news = wait.seen.is_some_and(|seen| seen != mark(&told));
        if is_news || told.iter().all(Progress::is_complete) || Instant::now() >= wait.until {
            return Some(told);
        }
        let pause = began + (4 * began.elapsed()).max(PAUSE);
        tokio::select! {
            () = moved => {}
            () = tokio::time::sleep_until(wait.until) => {}
            changed = commits.changed() => {
                changed.ok()?;
                commits.mark_changed();
            }
        }
        // A thousand proxies answer one after the other, and others want to be served too.
        tokio::time::sleep_until(pause.min(wait.until)).await;
    }
}

/// Nobody sees the difference.
const PAUSE: Duration = Duration::from_millis(50);

/// So many rows and proxies are looked at between two commits, and then those of one object more: some milliseconds.
const AT_ONCE: usize = 50_000;

/// Finds out whom objects concern that were not looked at yet, or have changed since. Tells whether there were any.
async fn look(engine: &EngineHandle, asked: &Arc<[Asked]>, concerns: &mut Vec<Concern>) -> Option<bool> {
    let (mut at, mut is_any) = (0, false);
    let mut last: Arc<[(ProxyId, u64)]> = Arc::default();
    while at < asked.len() {
        let asked = Arc::clone(asked);
        let seen: Vec<Option<u64>> = concerns.iter().map(|concern| concern.changed).collect();
        let looked = engine.look(move |pipeline: &Pipeline, publisher: &Publisher| {
            let (mut part, mut cost, mut next) = (Vec::<(usize, Concern)>::new(), 0, at);
            while next < asked.len() && cost < AT_ONCE {
                let is_same =
                    seen.get(next).is_some_and(|seen| *seen == pipeline.changed_at(&asked[next].key()));
                cost += 1;
                if !is_same {
                    let (concern, rows) = concern(&asked[next], pipeline, publisher);
                    cost += rows;
                    part.push((next, concern));
                }
                next += 1;
            }
            (part, next)
        });
        let (part, next) = looked.await?;
        at = next;
        for (place, mut concern) in part {
            is_any = true;
            if concern.proxies == last {
                concern.proxies = Arc::clone(&last);
            }
            last = Arc::clone(&concern.proxies);
            match concerns.get_mut(place) {
                Some(before) => *before = concern,
                None => concerns.push(concern),
            }
        }
    }
    Some(is_any)
}

/// Tells also how much had to be looked at.
fn concern(asked: &Asked, pipeline: &Pipeline, publisher: &Publisher) -> (Concern, usize) {
    let known = asked.known(pipeline);
    let changed = pipeline.changed_at(&asked.key());
    let Known::Since(_) = known else {
        return (Concern { known, changed, is_followed: true, proxies: Arc::default() }, 0);
    };
    let newest = |proxy| {
        let newest = pipeline.audience_of(proxy).and_then(|audience| publisher.version(&audience))?;
        Some((proxy, newest))
    };
    let Concerned { proxies, is_whole, followed } = pipeline.concerned(&asked.key());
    let cost = followed + proxies.len();
    let proxies = proxies.into_iter().filter_map(newest).collect();
    (Concern { known, changed, is_followed: is_whole, proxies }, cost)
}

/// Which of the resources that proxies refuse are made of which object.
#[derive(Default)]
struct Guilt {
    /// What each proxy refuses, by the object that is asked about. Both may be asked for again and again.
    known: BTreeMap<Blamed, bool>,
    /// The same by the address of the resource, for as long as it is the same one.
    of: BTreeMap<(usize, usize), (Arc<Encoded>, bool)>,
}

/// The number of an object, and what a proxy refuses.
type Blamed = (usize, ProxyId, TypeUrl, Vec<Name>);

impl Guilt {
    fn is_known(&self, at: usize, proxy: ProxyId, refusal: &Refusal) -> Option<bool> {
        self.known.get(&(at, proxy, refusal.type_url, refusal.names.clone())).copied()
    }

    /// Others may be sent now under the same names.
    fn forget(&mut self) {
        self.known.clear();
    }

    /// Looks at the tables for a while, and tells what is left.
    fn look(&mut self, asked: &[Asked], pipeline: &Pipeline, mut open: Vec<Blamed>) -> Vec<Blamed> {
        let mut cost = 0;
        while cost < AT_ONCE
            && let Some(blamed) = open.pop()
        {
            let (at, proxy, type_url, names) = &blamed;
            let mut is_any = false;
            for name in names {
                let Some(sent) = pipeline.sent(*proxy, *type_url, name) else { continue };
                let place = (*at, Arc::as_ptr(sent).addr());
                let (_, is_guilty) = self.of.entry(place).or_insert_with(|| {
                    let behind = pipeline.behind(*proxy, name);
                    cost += behind.looked_at;
                    (Arc::clone(sent), behind.includes(&asked[*at].object()))
                });
                is_any |= *is_guilty;
            }
            cost += 1;
            self.known.insert(blamed, is_any);
        }
        open
    }
}

async fn find_guilty(
    engine: &EngineHandle,
    asked: &Arc<[Asked]>,
    concerns: &[Concern],
    guilt: &mut Guilt,
) -> Option<()> {
    let mut open: Vec<Blamed> = Vec::new();
    for (at, concern) in concerns.iter().enumerate() {
        for (proxy, standing) in present(engine.standings(), concern) {
            let refusals = standing.refusals().into_iter();
            let unknown = refusals.filter(|refusal| guilt.is_known(at, proxy, refusal).is_none());
            open.extend(unknown.map(|refusal| (at, proxy, refusal.type_url, refusal.names)));
        }
    }
    while !open.is_empty() {
        let (asked, mut found) = (Arc::clone(asked), std::mem::take(guilt));
        let looked = engine.look(move |pipeline: &Pipeline, _: &Publisher| {
            let open = found.look(&asked, pipeline, open);
            (found, open)
        });
        (*guilt, open) = looked.await?;
    }
    Some(())
}

/// Those whom it concerns and who are still connected.
fn present(standings: &Standings, concern: &Concern) -> Vec<(ProxyId, Arc<Standing>)> {
    let there = |(proxy, _): &(ProxyId, u64)| Some((*proxy, standings.get(*proxy)?));
    concern.proxies.iter().filter_map(there).collect()
}

fn tell(engine: &EngineHandle, asked: &[Asked], concerns: &[Concern], guilt: &Guilt) -> Vec<Progress> {
    let objects: Vec<ObjectRef> = asked.iter().map(Asked::object).collect();
    let issues = engine.errors_of(&objects);
    let each = objects.into_iter().zip(issues).zip(concerns).enumerate();
    each.map(|(at, ((object, issues), concern))| {
        let mut progress = Progress {
            known: concern.known,
            is_followed: concern.is_followed,
            concerned: 0,
            accepted: 0,
            behind: Vec::new(),
            refused: Vec::new(),
            issues,
            object,
        };
        let mut names = BTreeSet::new();
        for (proxy, newest) in concern.proxies.iter() {
            let Some(standing) = engine.standings().get(*proxy) else { continue };
            progress.concerned += 1;
            let is_guilty = |refusal: &Refusal| guilt.is_known(at, *proxy, refusal).unwrap_or(false);
            let refused: Vec<Refusal> = standing.refusals().into_iter().filter(is_guilty).collect();
            if !refused.is_empty() {
                progress.refused.extend(refused);
            } else if standing.has(concern.need(*newest)) {
                progress.accepted += 1;
            } else {
                names.insert(standing.proxy.name.clone());
            }
        }
        progress.behind = names.into_iter().collect();
        progress
    })
    .collect()
}

/// Nobody waits for longer in one go: connections that only stay open are cut off by what lies between.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);
