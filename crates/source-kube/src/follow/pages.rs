//! Reading a list page by page.

use pilot_base::Name;
use pilot_config::{Document, Tree};

use super::{Deaf, Following, Trouble, Update, salvage};
use crate::client::{Call, CallError};
use crate::known::{Known, Listing, Look};
use crate::pace::Backoff;
use crate::resource::Resource;

/// Objects in one page of a list.
const PAGE: &str = "500";

/// What was listed, and the version of it.
pub(super) type Read<T> = Result<(Listing<T>, String), CallError>;

impl<L: Look, M: Send, W: Fn(Update<L::Value>) -> M + Send> Following<L, M, W> {
    /// Everything there is, or all of one namespace, and the version of it. A page that an API server is too busy for is
    /// asked for again, as those before it need not be.
    pub(super) async fn read(&mut self, namespace: Option<&Name>) -> Result<Read<L::Value>, Deaf> {
        let mut resource = self.resource.clone();
        resource.namespace = namespace.cloned().or(resource.namespace);
        let begin = |known: &Known| namespace.map_or_else(|| known.begin(), |name| known.begin_within(name));
        let (mut listing, mut token) = (begin(&self.known), String::new());
        let (mut size, mut patience) = (Some(PAGE), Backoff::new());
        loop {
            let path = page(&resource, size, &token);
            let call = Call { accept: resource.content.of_list(), ..Call::get(&path) };
            match self.follow.client.call(call).await {
                Ok(body) => match see(&body, &mut listing, &self.follow.look) {
                    Ok((version, next)) if next.is_empty() => return Ok(Ok((listing, version))),
                    Ok((_, next)) => {
                        token = next;
                        patience.reset();
                    }
                    Err(error) => return Ok(Err(error)),
                },
                // It took so long that the API server has forgotten the first page: it is asked for all of it at once.
                Err(error) if error.status() == Some(410) && !token.is_empty() => {
                    (listing, token, size) = (begin(&self.known), String::new(), None);
                }
                Err(error) if may_pass(&error) && !self.has_moved() => {
                    let wait = patience.wait(error.retry_after());
                    self.tell(Update::Trouble(Trouble::Call(error))).await?;
                    tokio::time::sleep(wait).await;
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Do the objects stand somewhere else by now?
    fn has_moved(&self) -> bool {
        self.follow.place.has_changed().unwrap_or(false)
    }
}

/// Where a page of a list is; all of it if nothing is said about its size.
fn page(resource: &Resource, size: Option<&str>, token: &str) -> String {
    let token = Some(token).filter(|token| !token.is_empty());
    let parameters = [("limit", size), ("continue", token)];
    let parameters: Vec<(&str, &str)> =
        parameters.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    resource.query(&parameters)
}

/// Might the same question be answered a little later?
fn may_pass(error: &CallError) -> bool {
    matches!(error.status(), None | Some(429 | 500..))
}

/// Reads a page of a list: its version, and what the next page is asked for with.
fn see<L: Look>(
    body: &[u8],
    listing: &mut Listing<L::Value>,
    look: &L,
) -> Result<(String, String), CallError> {
    let metadata = |page: Tree<'_>| {
        let metadata = |field: &str| page.text_at(&["metadata", field]).to_owned();
        (metadata("resourceVersion"), metadata("continue"))
    };
    match Document::parse(body) {
        Ok(document) => {
            let page = document.tree();
            for object in page.get("items").into_iter().flat_map(Tree::items) {
                listing.see(object, look);
            }
            Ok(metadata(page))
        }
        Err(why) => {
            let head =
                salvage::page(body, &why, listing, look).ok_or_else(|| CallError::Broken(why.clone()))?;
            Ok(metadata(Document::parse(&head).map_err(CallError::Broken)?.tree()))
        }
    }
}
