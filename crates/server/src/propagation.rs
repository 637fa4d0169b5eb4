//! Who has accepted what an object says: worked out when somebody asks, for the objects that he asks about.
//!
//! The engine tells whom they concern, as of which epoch; how far those proxies have come they write down themselves
//! (`standing.rs`). So a push pays nothing for questions, and a question costs what its objects shape.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pilot_base::{Issue, Name, ObjectRef, Severity};
use pilot_model::{Object, ObjectKey, ProxyId};
use pilot_pipeline::{Concerned, Pipeline};
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

/// Whom an object concerns: each proxy with the epoch that it must have accepted.
struct Concern {
    known: Known,
    is_followed: bool,
    proxies: Vec<(ProxyId, u64)>,
}

/// Between two looks at the tables one and the same proxy may be asked about again and again.
type Blame = BTreeMap<(usize, ProxyId, Vec<Name>), bool>;

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
    let mut concerns = engine.look(concerns_of(&asked)).await?;
    let mut blame = Blame::new();
    loop {
        let moved = engine.standings().next_move();
        tokio::pin!(moved);
        // What moves from here on is not missed.
        moved.as_mut().enable();
        find_guilty(engine, &asked, &concerns, &mut blame).await?;
        let told = tell(engine, &asked, &concerns, &blame);
        let is_news = wait.seen.is_some_and(|seen| seen != mark(&told));
        if is_news || told.iter().all(Progress::is_complete) || Instant::now() >= wait.until {
            return Some(told);
        }
        tokio::select! {
            () = moved => {}
            () = tokio::time::sleep_until(wait.until) => {}
            changed = commits.changed() => {
                changed.ok()?;
                if let Some(newer) = engine.look(newer(&asked, &concerns)).await? {
                    concerns = newer;
                    blame.clear();
                }
            }
        }
    }
}

fn concerns_of(asked: &Arc<[Asked]>) -> impl FnOnce(&Pipeline, &Publisher) -> Vec<Concern> + Send + use<> {
    let asked = Arc::clone(asked);
    move |pipeline, publisher| asked.iter().map(|asked| concern(asked, pipeline, publisher)).collect()
}

/// The same, if an object has changed since.
fn newer(
    asked: &Arc<[Asked]>,
    concerns: &[Concern],
) -> impl FnOnce(&Pipeline, &Publisher) -> Option<Vec<Concern>> + Send + use<> {
    let (asked, before) =
        (Arc::clone(asked), concerns.iter().map(|concern| concern.known).collect::<Vec<_>>());
    move |pipeline, publisher| {
        let is_same = asked.iter().map(|asked| asked.known(pipeline)).eq(before);
        (!is_same).then(|| asked.iter().map(|asked| concern(asked, pipeline, publisher)).collect())
    }
}

fn concern(asked: &Asked, pipeline: &Pipeline, publisher: &Publisher) -> Concern {
    let known = asked.known(pipeline);
    let Known::Since(epoch) = known else {
        return Concern { known, is_followed: true, proxies: Vec::new() };
    };
    let needs = |proxy| {
        // Who is told nothing newer than that has the change when he has that.
        let newest = pipeline.audience_of(proxy).and_then(|audience| publisher.version(&audience))?;
        Some((proxy, epoch.min(newest)))
    };
    let Concerned { proxies, is_whole } = pipeline.concerned(&asked.key());
    Concern { known, is_followed: is_whole, proxies: proxies.into_iter().filter_map(needs).collect() }
}

/// Which of the resources that proxies refuse are made of which object.
async fn find_guilty(
    engine: &EngineHandle,
    asked: &Arc<[Asked]>,
    concerns: &[Concern],
    blame: &mut Blame,
) -> Option<()> {
    let mut unknown: Vec<(usize, ProxyId, Vec<Name>)> = Vec::new();
    for (at, concern) in concerns.iter().enumerate() {
        for (proxy, standing) in present(engine.standings(), concern) {
            let refused = standing.refusals().into_iter().map(|refusal| (at, proxy, refusal.names));
            unknown.extend(refused.filter(|place| !blame.contains_key(place)));
        }
    }
    if unknown.is_empty() {
        return Some(());
    }
    let asked = Arc::clone(asked);
    let found = engine.look(move |pipeline: &Pipeline, _: &Publisher| {
        let mut known: BTreeMap<_, bool> = BTreeMap::new();
        let mut is_guilty = |at: usize, proxy: ProxyId, name: &Name| {
            // Proxies that are sent the same bytes refuse the same object.
            let place = (pipeline.audience_of(proxy), name.clone(), at);
            *known.entry(place).or_insert_with(|| pipeline.is_made_of(proxy, name, &asked[at].object()))
        };
        let guilty = |(at, proxy, names): (usize, ProxyId, Vec<Name>)| {
            let is_any = names.iter().any(|name| is_guilty(at, proxy, name));
            ((at, proxy, names), is_any)
        };
        unknown.into_iter().map(guilty).collect::<Vec<_>>()
    });
    blame.extend(found.await?);
    Some(())
}

/// Those whom it concerns and who are still connected.
fn present(standings: &Standings, concern: &Concern) -> Vec<(ProxyId, Arc<Standing>)> {
    let there = |(proxy, _): &(ProxyId, u64)| Some((*proxy, standings.get(*proxy)?));
    concern.proxies.iter().filter_map(there).collect()
}

fn tell(engine: &EngineHandle, asked: &[Asked], concerns: &[Concern], blame: &Blame) -> Vec<Progress> {
    let issues = engine.issues();
    let each = asked.iter().zip(concerns).enumerate();
    each.map(|(at, (asked, concern))| {
        let object = asked.object();
        let mut progress = Progress {
            known: concern.known,
            is_followed: concern.is_followed,
            concerned: 0,
            accepted: 0,
            behind: Vec::new(),
            refused: Vec::new(),
            issues: issues
                .iter()
                .filter(|issue| issue.object == object && issue.severity == Severity::Error)
                .cloned()
                .collect(),
            object,
        };
        let mut names = BTreeSet::new();
        for (proxy, need) in &concern.proxies {
            let Some(standing) = engine.standings().get(*proxy) else { continue };
            progress.concerned += 1;
            let is_guilty =
                |refusal: &Refusal| blame.get(&(at, *proxy, refusal.names.clone())).copied().unwrap_or(false);
            let refused: Vec<Refusal> = standing.refusals().into_iter().filter(is_guilty).collect();
            if !refused.is_empty() {
                progress.refused.extend(refused);
            } else if standing.has(*need) {
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
