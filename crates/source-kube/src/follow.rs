//! One collection of objects, listed once and watched from then on.
//!
//! ```text
//!   list, page by page ──► everything there is ──► watch from there ──► what changes
//!        ▲                                            │ cut: watch again from where it was
//!        └──── the API server does not remember ◄─────┘ refused: wait, longer and longer
//! ```
//!
//! What was told is only taken back when a list does not have it or a watch says that it is gone. A list that suddenly
//! misses most of what was there is not believed at once: it is watched from there on, and what it lacks is kept (see
//! [`Doubts`](pilot_source::Doubts)).

mod events;
mod pages;
mod salvage;

use std::time::Duration;

use pilot_base::{Millis, Name};
use pilot_model::ConfigId;
use pilot_source::Doubt;
use tokio::sync::{mpsc, watch};

use self::events::{hear, is_expired};
use crate::client::{Call, CallError, Client, Lines};
use crate::known::{Belief, Change, Collapse, Known, Look};
use crate::pace::{Backoff, jitter};
use crate::resource::Resource;
use crate::selection::Since;

/// A watch ends by itself after so long, so that the load moves to other API servers.
const WATCH: Duration = Duration::from_secs(300);
/// Bookmarks come every minute or so. Who says nothing for longer is asked again: something between us may be gone.
const SILENCE: Duration = Duration::from_secs(150);
/// So many changes are told together at most.
const CHANGES_AT_ONCE: usize = 512;
/// A watch that is over earlier than this has not been much of one.
const SHORT: Millis = 1000;
/// An API server that has just been started does not know yet who may do what. One that goes on refusing means it.
pub(crate) const SETTLED: Millis = 3000;

/// What becomes of a collection.
#[derive(Debug)]
pub enum Update<T> {
    /// What is different now. The first one, and each after a loss, is `whole`: nothing that is there is missing, as of an
    /// epoch of the [`Selection`](crate::Selection), if there is one.
    Changed { whole: bool, epoch: u64, changes: Vec<Change<T>> },
    /// It cannot be listed or watched at the moment.
    Trouble(Trouble),
    /// It is watched.
    Well,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    Call(CallError),
    /// We may not see it, and that is not only so because the API server has just been started.
    Forbidden(CallError),
    /// Most of it is gone, if that is true.
    Collapse(Collapse),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Call(error) | Self::Forbidden(error) => error.fmt(f),
            Self::Collapse(collapse) => collapse.fmt(f),
        }
    }
}

/// Who is told.
pub type Teller<T> = mpsc::Sender<T>;

pub struct Follow<L> {
    client: Client,
    /// Where the objects stand now. If that changes, they are listed there.
    place: watch::Receiver<Resource>,
    look: L,
    known: Known,
    /// What is usually made of a list that lacks most of what there was.
    belief: Belief,
}

/// How a watch ended.
enum End {
    /// As it should, or because the connection was cut.
    Over,
    /// Everything has to be listed: what was after the version that we have is not known any more.
    Expired,
    /// It could not be begun, or what it says cannot be read.
    Failed(CallError),
}

/// Nobody listens any more.
struct Deaf;

impl<L: Look> Follow<L> {
    pub fn new(client: Client, place: watch::Receiver<Resource>, look: L) -> Self {
        Self { client, place, look, known: Known::default(), belief: Belief::Doubts }
    }

    /// The same for objects that stay where they are.
    pub fn fixed(client: Client, resource: Resource, look: L) -> Self {
        let (_, place) = watch::channel(resource);
        Self::new(client, place, look)
    }

    /// For who writes what is missing: what is gone is gone, however much it is.
    #[must_use]
    pub fn believing(self) -> Self {
        Self { belief: Belief::Believes, ..self }
    }

    /// For who goes on where somebody else left off: what was told before is only taken back if it is gone.
    #[must_use]
    pub(crate) fn knowing(self, before: impl IntoIterator<Item = (ConfigId, u32)>) -> Self {
        Self { known: Known::told_before(before), ..self }
    }

    /// Runs until nobody listens. `wrap` says whose update it is.
    pub async fn run<M: Send>(mut self, teller: Teller<M>, wrap: impl Fn(Update<L::Value>) -> M + Send) {
        let resource = self.place.borrow().clone();
        let mut following = Following {
            to: (teller, wrap),
            resource,
            known: std::mem::take(&mut self.known),
            version: None,
            epoch: 0,
            backoff: Backoff::new(),
            doubt: None,
            belief: self.belief,
            refused_since: None,
            erred: false,
            follow: self,
        };
        while following.step().await.is_ok() {}
    }
}

/// Where it stands.
struct Following<L, M, W> {
    follow: Follow<L>,
    to: (Teller<M>, W),
    resource: Resource,
    known: Known,
    /// The version of what is known; nothing if all of it has to be listed.
    version: Option<String>,
    /// As of when it is known whose objects count.
    epoch: u64,
    backoff: Backoff,
    /// What is held back.
    doubt: Option<(Doubt, Collapse)>,
    /// Of the next list.
    belief: Belief,
    refused_since: Option<Millis>,
    /// Was an error the last that a watch said?
    erred: bool,
}

impl<L: Look, M: Send, W: Fn(Update<L::Value>) -> M + Send> Following<L, M, W> {
    async fn tell(&self, update: Update<L::Value>) -> Result<(), Deaf> {
        self.to.0.send((self.to.1)(update)).await.map_err(|_| Deaf)
    }

    /// Nothing that is there is missing now.
    async fn whole(&self, changes: Vec<Change<L::Value>>) -> Result<(), Deaf> {
        self.tell(Update::Changed { whole: true, epoch: self.epoch, changes }).await
    }

    async fn some(&self, changes: Vec<Change<L::Value>>) -> Result<(), Deaf> {
        self.tell(Update::Changed { whole: false, epoch: self.epoch, changes }).await
    }

    async fn step(&mut self) -> Result<(), Deaf> {
        if self.version.is_none() {
            return self.list().await;
        }
        let began = self.follow.client.clock().now();
        match self.watch().await? {
            End::Expired => {
                self.version = None;
                Ok(())
            }
            End::Over => {
                let lasted = self.follow.client.clock().now().saturating_sub(began);
                if lasted < SHORT {
                    tokio::time::sleep(self.backoff.wait(None)).await;
                } else {
                    self.backoff.reset();
                }
                Ok(())
            }
            End::Failed(error) => self.failed(error).await,
        }
    }

    /// Says so, and waits.
    async fn failed(&mut self, error: CallError) -> Result<(), Deaf> {
        let wait = self.backoff.wait(error.retry_after());
        let now = self.follow.client.clock().now();
        let trouble = if error.status() == Some(403) {
            let since = *self.refused_since.get_or_insert(now);
            let is_settled = now.saturating_sub(since) >= SETTLED;
            if is_settled { Trouble::Forbidden(error) } else { Trouble::Call(error) }
        } else {
            self.refused_since = None;
            Trouble::Call(error)
        };
        self.tell(Update::Trouble(trouble)).await?;
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Lists everything there is.
    async fn list(&mut self) -> Result<(), Deaf> {
        self.resource.clone_from(&self.follow.place.borrow_and_update());
        let epoch = self.follow.look.selection().map_or(0, |selection| selection.epoch());
        let belief = std::mem::replace(&mut self.belief, self.follow.belief);
        let (listing, version) = match self.read(None).await? {
            Ok(read) => read,
            Err(error) => return self.failed(error).await,
        };
        let (changes, collapse) = listing.end(&mut self.known, belief);
        self.doubt(collapse);
        (self.version, self.epoch, self.refused_since) = (Some(version), epoch, None);
        self.whole(changes).await
    }

    /// Notes what cannot be true. What was so before is no more doubtful for being so again.
    fn doubt(&mut self, collapse: Option<Collapse>) {
        let Some(collapse) = collapse else {
            self.doubt = None;
            return;
        };
        if self
            .doubt
            .as_ref()
            .is_some_and(|(_, before)| before.of == collapse.of && before.gone >= collapse.gone)
        {
            return;
        }
        let client = &self.follow.client;
        let place = Name::from(format!("{}: {}", client.name(), self.resource.name()));
        self.doubt = Some((client.doubts().raise(place, collapse.to_string()), collapse));
    }

    /// Lists the namespaces whose objects count now and did not before, or the other way round. Tells whether what is known
    /// is whole again.
    async fn catch_up(&mut self) -> Result<Result<bool, CallError>, Deaf> {
        let Some(selection) = self.follow.look.selection() else { return Ok(Ok(true)) };
        let epoch = selection.epoch();
        let namespaces = match selection.since(self.epoch) {
            Since::Nothing => return Ok(Ok(true)),
            Since::Everything => return Ok(Ok(false)),
            Since::Namespaces(namespaces) => namespaces,
        };
        for namespace in namespaces {
            if self.resource.namespace.as_ref().is_some_and(|only| *only != namespace) {
                continue;
            }
            let (listing, version) = match self.read(Some(&namespace)).await? {
                Ok(read) => read,
                Err(error) => return Ok(Err(error)),
            };
            let (changes, collapse) = listing.end(&mut self.known, self.follow.belief);
            self.known.is_ahead(&namespace, &version);
            self.some(changes).await?;
            if collapse.is_some() {
                return Ok(Ok(false));
            }
        }
        self.epoch = epoch;
        self.whole(Vec::new()).await?;
        Ok(Ok(true))
    }

    /// Says how it is, now that it is watched.
    async fn well(&mut self) -> Result<(), Deaf> {
        self.refused_since = None;
        match &self.doubt {
            None => self.tell(Update::Well).await,
            Some((_, collapse)) => self.tell(Update::Trouble(Trouble::Collapse(*collapse))).await,
        }
    }

    async fn watch(&mut self) -> Result<End, Deaf> {
        let mut news = self.follow.look.selection().map(|selection| selection.news());
        match self.catch_up().await? {
            Ok(true) => {}
            Ok(false) => return Ok(End::Expired),
            Err(error) => return Ok(End::Failed(error)),
        }
        let span = jitter(WATCH);
        let response = match self.begin_watch(span).await {
            Ok(response) => response,
            Err(error) if is_expired(error.status()) => return Ok(End::Expired),
            Err(error) => return Ok(End::Failed(error)),
        };
        self.well().await?;
        let mut lines = Lines::new(response.into_body(), SILENCE);
        loop {
            let line = tokio::select! {
                line = lines.next() => line,
                () = moved(&mut self.follow.place) => return Ok(End::Expired),
                () = told(&mut news) => {
                    match self.catch_up().await? {
                        // What was wrong on the way is well again.
                        Ok(true) => {
                            self.well().await?;
                            continue;
                        }
                        Ok(false) => return Ok(End::Expired),
                        Err(error) => return Ok(End::Failed(error)),
                    }
                }
                () = is_over(&mut self.doubt) => {
                    self.belief = Belief::Believes;
                    return Ok(End::Expired);
                }
                () = self.to.0.closed() => return Err(Deaf),
            };
            let Ok(Some(line)) = line else { return Ok(End::Over) };
            if let Some(end) = self.hear(line, &mut lines).await? {
                return Ok(end);
            }
        }
    }

    async fn begin_watch(&self, span: Duration) -> Result<http::Response<hyper::body::Incoming>, CallError> {
        let seconds = span.as_secs().to_string();
        let path = self.resource.query(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self.version.as_deref().unwrap_or_default()),
            ("timeoutSeconds", &seconds),
        ]);
        let call = Call { accept: self.resource.content.of_watch(), ..Call::get(&path) };
        self.follow.client.stream(call).await
    }

    /// Takes what has come by now. Tells how the watch has ended, if it has.
    async fn hear(&mut self, first: bytes::Bytes, lines: &mut Lines) -> Result<Option<End>, Deaf> {
        let (mut changes, mut line, mut end) = (Vec::new(), Some(first), None);
        while let Some(text) = line {
            let version = self.version.get_or_insert_default();
            end = hear(&text, version, (&mut self.known, &self.follow.look), &mut changes);
            let goes_on = end.is_none() && changes.len() < CHANGES_AT_ONCE;
            line = if goes_on { lines.ready() } else { None };
        }
        if !changes.is_empty() {
            self.some(changes).await?;
        }
        end = match end {
            None => {
                self.erred = false;
                None
            }
            // An error that a watch tells may have passed; the same again would be told for ever.
            Some(End::Failed(error)) if error.status().is_some() && !self.erred => {
                self.erred = true;
                Some(End::Over)
            }
            Some(End::Failed(error)) => {
                // What it was about is found in a list.
                (self.version, self.erred) = (None, false);
                Some(End::Failed(error))
            }
            ended => ended,
        };
        if self.doubt.is_some() && self.known.is_settled() {
            self.doubt = None;
            self.well().await?;
        }
        Ok(end)
    }
}

/// Waits until the objects stand somewhere else; for ever if they never will.
async fn moved(place: &mut watch::Receiver<Resource>) {
    if place.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until other objects count; for ever if they never will.
async fn told(news: &mut Option<watch::Receiver<u64>>) {
    let will_not = match news {
        Some(news) => news.changed().await.is_err(),
        None => true,
    };
    if will_not {
        std::future::pending::<()>().await;
    }
}

/// Waits until what was held back counts.
async fn is_over(doubt: &mut Option<(Doubt, Collapse)>) {
    match doubt {
        Some((doubt, _)) => doubt.is_over().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
