//! One collection of objects, listed once and watched from then on.
//!
//! ```text
//!   list, page by page ──► everything there is ──► watch from there ──► what changes
//!        ▲                                            │ cut: watch again from where it was
//!        └──── the API server does not remember ◄─────┘ refused: wait, longer and longer
//! ```
//!
//! What was told is only taken back when a list does not have it or a watch says that it is gone. A list that suddenly
//! misses most of what was there is not believed at once (see [`Known`]).

use std::sync::Arc;
use std::time::Duration;

use pilot_config::{Document, Tree};
use tokio::sync::{mpsc, watch};

use crate::client::{Call, CallError, Client, Lines};
use crate::known::{Change, Collapse, Known, Look};
use crate::pace::{Backoff, jitter};
use crate::resource::Resource;

/// Objects in one page of a list.
const PAGE: &str = "500";
/// A watch ends by itself after so long, so that the load moves to other API servers.
const WATCH: Duration = Duration::from_secs(300);
/// So many changes are told together at most.
const CHANGES_AT_ONCE: usize = 512;
/// A watch that is over earlier than this has not been much of one.
const SHORT: u64 = 1000;
/// How long to wait before a list that cannot be believed is asked for again.
const DOUBT: Duration = Duration::from_secs(5);

/// What becomes of a collection.
#[derive(Debug)]
pub enum Update<T> {
    /// What is different now. The first one, and each after a loss, is `whole`: nothing that is there is missing.
    Changed { whole: bool, changes: Vec<Change<T>> },
    /// It cannot be listed or watched at the moment.
    Trouble(Trouble),
    /// It is watched.
    Well,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    Call(CallError),
    /// Most of it is gone, if that is true.
    Collapse(Collapse),
}

/// Who is told.
pub type Teller<T> = mpsc::Sender<T>;

pub struct Follow<L> {
    pub client: Client,
    /// Where the objects stand now. If that changes, they are listed there.
    pub place: watch::Receiver<Resource>,
    pub look: Arc<L>,
}

/// How a watch ended.
enum End {
    /// As it should, or because the connection was cut.
    Over,
    /// The API server does not know any more what was after the version that we have.
    Expired,
    /// It could not be begun.
    Failed(CallError),
    /// Nobody listens any more.
    Deaf,
}

impl<L: Look> Follow<L> {
    /// Runs until nobody listens. `wrap` says whose update it is.
    pub async fn run<M: Send>(mut self, teller: Teller<M>, wrap: impl Fn(Update<L::Value>) -> M + Send) {
        let mut known = Known::default();
        let mut version: Option<String> = None;
        let mut backoff = Backoff::new();
        let mut resource = self.place.borrow_and_update().clone();
        loop {
            let Some(at) = &mut version else {
                resource.clone_from(&self.place.borrow_and_update());
                let (update, wait) = match self.list(&resource, &mut known).await {
                    Ok((update, at, None)) => {
                        version = Some(at);
                        (update, None)
                    }
                    Ok((update, _, Some(collapse))) => {
                        if teller.send(wrap(Update::Trouble(Trouble::Collapse(collapse)))).await.is_err() {
                            return;
                        }
                        (update, Some(jitter(DOUBT)))
                    }
                    Err(error) => {
                        let wait = backoff.wait(error.retry_after());
                        (Update::Trouble(Trouble::Call(error)), Some(wait))
                    }
                };
                if teller.send(wrap(update)).await.is_err() {
                    return;
                }
                if let Some(wait) = wait {
                    tokio::time::sleep(wait).await;
                }
                continue;
            };
            let began = self.client.clock().now();
            let watching = Watching { resource: &resource, version: at, known: &mut known };
            match self.watch(watching, &teller, &wrap).await {
                End::Deaf => return,
                End::Expired => version = None,
                End::Over => {
                    let lasted = self.client.clock().now().saturating_sub(began);
                    if lasted < SHORT {
                        tokio::time::sleep(backoff.wait(None)).await;
                    } else {
                        backoff.reset();
                    }
                }
                End::Failed(error) => {
                    let wait = backoff.wait(error.retry_after());
                    if teller.send(wrap(Update::Trouble(Trouble::Call(error)))).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Everything there is, as changes to what is known; the version of it; and whether it can be believed.
    async fn list(
        &self,
        resource: &Resource,
        known: &mut Known,
    ) -> Result<(Update<L::Value>, String, Option<Collapse>), CallError> {
        let mut listing = known.begin();
        let mut token = String::new();
        let version = loop {
            let mut parameters = vec![("limit", PAGE)];
            if !token.is_empty() {
                parameters.push(("continue", &token));
            }
            let path = resource.query(&parameters);
            let call = Call { accept: resource.content.of_list(), ..Call::get(&path) };
            let body = self.client.call(call).await?;
            let document = Document::parse(&body).map_err(CallError::Broken)?;
            let page = document.tree();
            for object in page.get("items").into_iter().flat_map(Tree::items) {
                listing.see(object, &*self.look);
            }
            let metadata = |field: &str| page.text_at(&["metadata", field]).to_owned();
            token = metadata("continue");
            if token.is_empty() {
                break metadata("resourceVersion");
            }
        };
        let (changes, collapse) = listing.end(known);
        Ok((Update::Changed { whole: collapse.is_none(), changes }, version, collapse))
    }

    async fn watch<M: Send>(
        &mut self,
        watching: Watching<'_>,
        teller: &Teller<M>,
        wrap: &(impl Fn(Update<L::Value>) -> M + Send),
    ) -> End {
        let Watching { resource, version, known } = watching;
        let span = jitter(WATCH);
        let seconds = span.as_secs().to_string();
        let path = resource.query(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
            ("timeoutSeconds", &seconds),
        ]);
        let call = Call { accept: resource.content.of_watch(), ..Call::get(&path) };
        let response = match self.client.send(call).await {
            Ok(response) => response,
            Err(error) if is_expired(error.status()) => return End::Expired,
            Err(error) => return End::Failed(error),
        };
        if teller.send(wrap(Update::Well)).await.is_err() {
            return End::Deaf;
        }
        // Bookmarks come every minute or so; who says nothing after the end is gone.
        let mut lines = Lines::new(response.into_body(), span + Duration::from_secs(30));
        loop {
            let next = tokio::select! {
                next = lines.next() => next,
                () = moved(&mut self.place) => return End::Expired,
                () = teller.closed() => return End::Deaf,
            };
            let Ok(Some(first)) = next else { return End::Over };
            let mut changes = Vec::new();
            let mut line = Some(first);
            let mut heard = Heard::More;
            while let Some(text) = line {
                heard = hear(&text, version, (known, &*self.look), &mut changes);
                let go_on = matches!(heard, Heard::More) && changes.len() < CHANGES_AT_ONCE;
                line = if go_on { lines.ready() } else { None };
            }
            let update = Update::Changed { whole: false, changes };
            if !matches!(&update, Update::Changed { changes, .. } if changes.is_empty())
                && teller.send(wrap(update)).await.is_err()
            {
                return End::Deaf;
            }
            match heard {
                Heard::More => {}
                Heard::Expired => return End::Expired,
                Heard::Broken => return End::Over,
            }
        }
    }
}

/// Where a watch stands.
struct Watching<'a> {
    resource: &'a Resource,
    version: &'a mut String,
    known: &'a mut Known,
}

/// Waits until the objects stand somewhere else; for ever if they never will.
async fn moved(place: &mut watch::Receiver<Resource>) {
    if place.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// One event of a watch.
fn hear<L: Look>(
    line: &[u8],
    version: &mut String,
    (known, look): (&mut Known, &L),
    changes: &mut Vec<Change<L::Value>>,
) -> Heard {
    let Ok(document) = Document::parse(line) else { return Heard::Broken };
    let event = document.tree();
    let Some(object) = event.get("object") else { return Heard::Broken };
    match event.text_at(&["type"]) {
        "ADDED" | "MODIFIED" => changes.extend(known.put(object, look)),
        "DELETED" => changes.extend(known.gone(object)),
        "BOOKMARK" => {}
        // An error stands in the object.
        _ => {
            let code = object.get("code").and_then(Tree::number).and_then(|code| u16::try_from(code).ok());
            return if is_expired(code) { Heard::Expired } else { Heard::Broken };
        }
    }
    let told = object.text_at(&["metadata", "resourceVersion"]);
    if !told.is_empty() {
        told.clone_into(version);
    }
    Heard::More
}

enum Heard {
    More,
    Expired,
    Broken,
}

/// `410 Gone`, also when a server has not reached the version yet, as after a restore.
fn is_expired(status: Option<u16>) -> bool {
    matches!(status, Some(410 | 504))
}
